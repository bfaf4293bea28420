"""One run per host: two at the same time, and a run that ends without giving its lease back."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.sandbox.conftest import ROOT_LOGIN, Fleet
from tests.sandbox.support import (
    SYSCTL_CHANGE,
    Under,
    big_model,
    converges,
    edit,
    eventually,
    failure,
    forget_models,
    hub_fault,
    settled,
    with_models,
)

HOST = ROOT_LOGIN
ONLY = ("--limit", HOST)
LEASE = "/run/voltfleet/lease"
HOLDER = r"run \S+ of \S+@\S+"
SINCE = r"since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


@pytest.fixture
def slow(converged: Fleet) -> Iterator[Under]:
    """A run that is fetching a model for some seconds, and something for another run to do."""
    option = with_models({"slow": big_model(converged, "slow", 8)})
    with hub_fault(converged, "slow", 1000):
        run = Under(converged, *ONLY, *option)
        run.until("fetches")
        edit(converged, HOST)
        yield run
    run.kill()
    eventually(lambda: free(converged))
    forget_models(converged, HOST, "slow")


def free(fleet: Fleet) -> bool:
    """Whether nobody holds the host, asked as the agent asks."""
    held = [
        fleet.lab.run(HOST, "flock", "-n", path, "true", check=False).returncode
        for path in (LEASE, "/run/voltfleet/apply")
    ]
    return held == [0, 0]


def test_second_run_says_who_holds_the_host_and_refuses(converged: Fleet, slow: Under) -> None:
    sentence = failure(converged.deploy(*ONLY), HOST)
    assert re.search(f"{HOLDER} {SINCE}.* holds this host", sentence), sentence
    assert "model:slow" in sentence, "what the other run does is said"
    assert 'lease_policy = "wait"' in sentence
    run = slow.end()
    assert run.code == 0, run.err[-3000:]
    assert "model:slow" in run.changed(HOST)
    assert SYSCTL_CHANGE in converges(converged, *ONLY).changed(HOST)


def test_second_run_waits_and_then_does_its_own(converged: Fleet, slow: Under) -> None:
    second = Under(converged, *ONLY, "--data", "lease_policy=wait")
    second.until(f"waiting for {HOLDER} {SINCE}")
    first = slow.end()
    assert first.code == 0, first.err[-3000:]
    run = second.end()
    assert run.code == 0, run.err[-3000:]
    assert SYSCTL_CHANGE in run.changed(HOST)


def test_lease_of_a_killed_run_is_free(converged: Fleet, slow: Under) -> None:
    assert not free(converged)
    slow.kill()
    eventually(lambda: free(converged))
    assert SYSCTL_CHANGE in converges(converged, *ONLY).changed(HOST)


def test_run_that_changes_nothing_takes_no_lease(converged: Fleet) -> None:
    look = f"stat -c '%i %y' {LEASE}"
    before, mark = converged.lab.sh(HOST, look), converged.lab.journal_mark(HOST)
    settled(converged, *ONLY)
    assert converged.lab.sh(HOST, look) == before
    assert len(converged.lab.traffic(HOST, mark).sessions) == 1
