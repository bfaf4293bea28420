"""What apt's answers mean: simulations (G6, C04), refusals (C02, C03, C18)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.apt_answers import Step, classify, judge, objections, parse_show, parse_simulation

HELD = """\
Reading package lists...
The following packages have unmet dependencies:
 cuda-drivers : Depends: nvidia-driver-440 (>= 440.33.01) but it is not going to be installed
E: Unable to correct problems, you have held broken packages.
"""
SIGNED_BY = (
    "E: Conflicting values set for option Signed-By regarding source "
    "file:/var/cuda-repo-ubuntu2204-12-4-local/ /: /usr/share/keyrings/cuda-A-keyring.gpg != "
    "/usr/share/keyrings/cuda-B-keyring.gpg\nE: The list of sources could not be read.\n"
)
TRANSITIONAL = """\
Package: nvidia-driver-550-server
Architecture: amd64
Version: 570.172.08-0ubuntu0.22.04.1
Depends: nvidia-driver-570-server
Description: Transitional package for nvidia-driver-570-server
"""
UBUNTU = """\
NOTE: This is only a simulation!
Reading package lists...
Inst libnvidia-compute-550 [550.163.01-0ubuntu1] (580.95.05-0ubuntu1 NVIDIA:cuda [amd64]) []
Remv nvidia-utils-550 [550.163.01-0ubuntu1]
Inst nvidia-driver-580-server (580.95.05-0ubuntu1 Ubuntu:22.04/jammy-updates [amd64])
Conf nvidia-driver-580-server (580.95.05-0ubuntu1 Ubuntu:22.04/jammy-updates [amd64])
"""


def test_simulation_steps() -> None:
    simulation = parse_simulation(UBUNTU)
    assert simulation.steps == (
        Step("libnvidia-compute-550", "550.163.01-0ubuntu1", "580.95.05-0ubuntu1"),
        Step("nvidia-utils-550", "550.163.01-0ubuntu1", None),
        Step("nvidia-driver-580-server", None, "580.95.05-0ubuntu1"),
    )
    assert [step.name for step in simulation.removes] == ["nvidia-utils-550"]


@given(st.text())
def test_simulation_takes_any_text(text: str) -> None:
    for step in parse_simulation(text).steps:
        assert step.name


@pytest.mark.parametrize(
    ("line", "branch", "flavour", "said"),
    [
        ("Inst libcuda1 (580.95.05-1 x [amd64])", 580, "proprietary", None),
        ("Inst libcuda1 (590.48.01-1 x [amd64])", 580, "proprietary", "580 asked, apt gives 590"),
        # a compatibility library and an accessory are of their own versions
        ("Inst cuda-compat-12-4 (550.54.15-1 x [amd64])", 580, "proprietary", None),
        ("Inst libxnvctrl0 (510.47.03-0ubuntu4 x [amd64])", 580, "proprietary", None),
        ("Inst nvidia-kernel-source-580-open (580.95.05-1 x)", 580, "proprietary", "open ones"),
        ("Inst nvidia-kernel-source-580-open (580.95.05-1 x)", 580, "open", None),
        ("Remv nvidia-utils-550 [550.1-1]", 580, "proprietary", None),
        ("Remv docker-ce [5:27.0-1]", 580, "proprietary", "remove docker-ce"),
        ("Inst linux-modules-nvidia-580-server-generic (6.8.0-60.63 x)", 580, "proprietary", None),
    ],
)
def test_objections(line: str, branch: int, flavour: str, said: str | None) -> None:
    found = objections(parse_simulation(line), branch, flavour)
    assert (said is None and found == []) or (said is not None and said in found[0])


def test_c02_own_hold_is_named_and_said_to_be_ours() -> None:
    found = classify(HELD, held=["nvidia-driver-440"])
    assert found.kind == "held"
    assert "nvidia-driver-440 is held" in found.sentence
    assert "the hold is ours" in found.sentence


def test_c02_a_hold_of_somebody_else_is_not_ours() -> None:
    text = HELD.replace("nvidia-driver-440", "dkms")
    assert "the hold is not ours" in classify(text, held=["dkms"]).sentence


def test_c02_without_a_hold_on_what_is_named() -> None:
    found = classify(HELD, held=["nvidia-driver-4"])
    assert found.kind == "dependencies"
    assert "depends: nvidia-driver-440 (>= 440.33.01)" in found.sentence


def test_c03_conflicting_keyrings_name_the_files() -> None:
    uri = "file:/var/cuda-repo-ubuntu2204-12-4-local"
    entries = [
        {"file": "/etc/apt/sources.list.d/a.list", "uri": uri},
        {"file": "/etc/apt/sources.list.d/b.list", "uri": uri},
        {"file": "/etc/apt/sources.list.d/c.list", "uri": "http://other"},
    ]
    found = classify(SIGNED_BY, entries=entries)
    assert found.kind == "sources"
    assert "/etc/apt/sources.list.d/a.list, /etc/apt/sources.list.d/b.list" in found.sentence
    assert "c.list" not in found.sentence


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1432 "
            "(unattended-upgr)",
            "lock",
            "process 1432 (unattended-upgr)",
        ),
        (
            "E: dpkg was interrupted, you must manually run 'dpkg --configure -a'",
            "interrupted",
            "is finished first",
        ),
        ("E: Unable to locate package cuda-drivers-580", "unknown", "cuda-drivers-580 is in no"),
        ("E: Package 'cuda' has no installation candidate", "unknown", "cuda is in no source"),
        ("E: The list of sources could not be read.", "sources", "can't read its sources"),
        ("E: Something new", "other", "Something new"),
        ("", "other", "no message"),
    ],
)
def test_c18_and_others(text: str, kind: str, said: str) -> None:
    found = classify(text)
    assert (found.kind, said in found.sentence) == (kind, True)


def test_c04_transitional_package() -> None:
    answer = {
        "asked": ["nvidia-driver-550-server"],
        "rc": 0,
        "out": "Inst nvidia-driver-570-server (570.172.08-0ubuntu0.22.04.1 Ubuntu [amd64])",
        "err": "",
        "offers": TRANSITIONAL,
    }
    (sentence,) = judge(answer, 550, "proprietary")
    assert sentence.startswith("550 asked, apt gives 570")
    assert "transitional package for nvidia-driver-570-server" in sentence


def test_c04_without_the_word_transitional() -> None:
    answer = {
        "asked": ["cuda-drivers-580"],
        "rc": 0,
        "out": "Inst cuda-drivers-580 (580.105.08-1 NVIDIA [amd64])\n"
        "Inst nvidia-driver (590.44.01-1 NVIDIA [amd64])",
        "err": "",
        "offers": "Package: cuda-drivers-580\nVersion: 580.105.08-1\nDescription: Driver meta",
    }
    (sentence,) = judge(answer, 580, "proprietary")
    assert sentence.startswith("580 asked, apt gives 590 (nvidia-driver 590.44.01-1)")


def test_transitional_within_the_branch_is_no_fault() -> None:
    answer = {
        "asked": ["nvidia-driver-580"],
        "rc": 0,
        "out": "Inst nvidia-driver-580-server (580.95.05-0ubuntu1 Ubuntu [amd64])",
        "offers": "Package: nvidia-driver-580\nVersion: 580.95.05-0ubuntu1\n"
        "Depends: nvidia-driver-580-server\nDescription: Transitional package for "
        "nvidia-driver-580-server",
    }
    assert judge(answer, 580, "proprietary") == []


def test_show_keeps_the_candidate() -> None:
    text = "Package: a\nVersion: 2\n\nPackage: a\nVersion: 1\n\nPackage: b\nVersion: 3\n"
    offers = parse_show(text)
    assert {name: offer.version for name, offer in offers.items()} == {"a": "2", "b": "3"}
    assert offers["a"].transitional_to is None
