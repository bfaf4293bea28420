"""Units with a stand-in for systemctl: a file holds the unit's state, verbs change it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from files.agent import act_units
from tests.unit.act_support import ME, MY_GROUP, act, calls, program

NAME = "a.service"
SYSTEMCTL = """
[ "$1" = "--no-block" ] && shift
case $1 in
  show) cat "$HERE/state";;
  *) [ ! -e "$HERE/on-$1" ] || . "$HERE/on-$1";;
esac
"""
RUNNING = {"ActiveState": "active", "SubState": "running", "InvocationID": "one"}
FAILED = {
    "ActiveState": "failed",
    "SubState": "failed",
    "Result": "exit-code",
    "ExecMainStatus": "203",
}
RETRYING = {**FAILED, "ActiveState": "activating", "SubState": "auto-restart"}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HERE", str(tmp_path))
    for pause in ("POLL_S", "SETTLE_S", "TELL_S"):
        monkeypatch.setattr(act_units, pause, 0.0)
    program(tmp_path, "systemctl", SYSTEMCTL)
    program(tmp_path, "journalctl", "true")
    (tmp_path / "state").write_text(state())
    return tmp_path


def state(**properties: str) -> str:
    known = {
        "LoadState": "loaded",
        "ActiveState": "inactive",
        "SubState": "dead",
        "UnitFileState": "enabled",
        "Job": "",
        "Result": "success",
        "ExecMainStatus": "0",
        "ConditionResult": "yes",
        "InvocationID": "",
    }
    return "".join(f"{key}={value}\n" for key, value in {**known, **properties}.items())


def on(host: Path, verb: str, body: str = "", **becomes: str) -> None:
    """What a verb does: run `body`, and bring the unit to a state."""
    after = f"cat > \"$HERE/state\" <<'END'\n{state(**becomes)}END\n" if becomes else ""
    (host / f"on-{verb}").write_text(f"{body}\n{after}")


def asked(host: Path) -> list[str]:
    """The calls of systemctl that are not mere looks."""
    return [line for line in calls(host, "systemctl") if not line.startswith("show")]


def unit(verb: str, **more: Any) -> dict[str, Any]:
    return {"do": f"unit.{verb}", "name": NAME, "limit_s": 1, "put_back": [], **more}


def changed(action: dict[str, Any]) -> bool:
    return bool(act(action).of("done")["0"]["changed"])


def test_start_and_then_nothing(host: Path) -> None:
    on(host, "start", **RUNNING)
    assert changed(unit("start")) is True
    assert changed(unit("start")) is False
    assert asked(host) == [f"--no-block start -- {NAME}"]


def test_a_failed_start_tells_why_and_is_stopped_again(host: Path) -> None:
    on(host, "start", **FAILED)
    program(host, "journalctl", "printf 'one\\ntwo: no such file\\nthree\\n'")
    assert act(unit("start")).failure("0") == (
        f"unit {NAME} failed to start: result exit-code, exit status 203; "
        "its log ends: one | two: no such file | three; it was stopped again"
    )
    assert asked(host)[-1] == f"stop -- {NAME}"
    assert calls(host, "journalctl") == [f"--quiet --no-pager --output=cat --lines=3 --unit {NAME}"]


def test_a_unit_that_systemd_tries_again_has_failed(host: Path) -> None:
    on(host, "start", **RETRYING)
    assert "result exit-code" in act(unit("start")).failure("0")


def test_a_unit_between_two_tries_is_restarted(host: Path) -> None:
    (host / "state").write_text(state(**RETRYING))
    on(host, "restart", **RUNNING)
    assert changed(unit("start")) is True
    assert asked(host) == [f"--no-block restart -- {NAME}"]


def test_a_failed_unit_is_forgiven_first(host: Path) -> None:
    (host / "state").write_text(state(**FAILED))
    on(host, "start", **RUNNING)
    assert changed(unit("start")) is True
    assert asked(host) == [f"reset-failed -- {NAME}", f"--no-block start -- {NAME}"]


def test_a_program_that_ends_right_after_its_start_has_failed(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(host, "start", **RUNNING)

    def settle(seconds: float) -> None:
        if seconds == 0.125:
            (host / "state").write_text(state(**FAILED))

    monkeypatch.setattr(act_units, "SETTLE_S", 0.125)
    monkeypatch.setattr("files.agent.act_units.time.sleep", settle)
    assert "exit status 203" in act(unit("start")).failure("0")


def test_a_start_that_hangs_ends_at_its_limit_and_tells_meanwhile(host: Path) -> None:
    on(host, "start", ActiveState="activating", SubState="start-pre", Job="17")
    events = act(unit("start"))
    assert f"unit {NAME} is still activating (start-pre) after 1 s" in events.failure("0")
    assert "activating (start-pre) for" in events.of("progress")["0"]["message"]


def test_what_systemctl_refuses_is_told_in_its_words(host: Path) -> None:
    on(host, "start", "echo 'Failed to start a.service: Unit a.service is masked.' >&2; exit 1")
    assert (
        act(unit("start"))
        .failure("0")
        .startswith(
            f"unit {NAME} can't be started: Failed to start a.service: Unit a.service is masked."
        )
    )


def test_an_unmet_condition_is_a_failure_and_a_finished_oneshot_is_not(host: Path) -> None:
    on(host, "start", ConditionResult="no")
    assert "condition" in act(unit("start")).failure("0")
    on(host, "start", ActiveState="inactive")
    assert changed(unit("start")) is True


def test_restart_is_proved_by_another_invocation(host: Path) -> None:
    (host / "state").write_text(state(**RUNNING))
    on(host, "restart", **{**RUNNING, "InvocationID": "two"})
    assert changed(unit("restart")) is True
    assert "the same process runs on" in act(unit("restart")).failure("0")


def test_a_failed_restart_puts_the_former_files_back_and_runs_again(
    host: Path, tmp_path: Path
) -> None:
    (host / "state").write_text(state(**RUNNING))
    conf, other = tmp_path / "a.conf", tmp_path / "other.conf"
    conf.write_text("good")
    on(
        host,
        "restart",
        f'if [ "$(cat {conf})" = good ]; then\n'
        f"printf '{state(**{**RUNNING, 'InvocationID': 'three'})}' > \"$HERE/state\"\n"
        f"else printf '{state(**FAILED)}' > \"$HERE/state\"; fi",
    )
    writes = [
        {
            "do": "file.write",
            "path": str(path),
            "content": base64.b64encode(b"bad").decode(),
            "mode": "0644",
            "owner": ME,
            "group": MY_GROUP,
            "secret": False,
            "over_mask": False,
        }
        for path in (conf, other)
    ]
    events = act(*writes, unit("restart", put_back=[str(conf)]))
    assert events.failure("2") == (
        f"unit {NAME} failed to start: result exit-code, exit status 203; "
        f"put back as before: {conf}; {NAME} runs again with that"
    )
    assert (conf.read_text(), other.read_text()) == ("good", "bad")
    assert "ActiveState=active" in (host / "state").read_text()


def test_what_was_switched_together_is_put_back_together(host: Path, tmp_path: Path) -> None:
    """Two servers share a link: the second fails, so the first runs with the former one again."""
    (host / "state").write_text(state(**RUNNING))
    link = tmp_path / "current"
    link.symlink_to("old")
    good, bad = state(**{**RUNNING, "InvocationID": "ID"}), state(**FAILED)
    script = f"""
for name; do :; done
case $* in
  show*) cat "$HERE/$name" || cat "$HERE/state";;
  *restart*b.service) [ $(readlink {link}) = old ] && said='{good}' || said='{bad}';;
  *restart*) said='{good}';;
esac 2>/dev/null
[ -z "$said" ] || printf "$said" | sed "s/=ID/=$(wc -l < $0.calls)/" > "$HERE/$name"
"""
    program(host, "systemctl", script)
    both = [unit("restart", name=f"{name}.service", put_back=[str(link)]) for name in "abc"]
    events = act({"do": "link.set", "path": str(link), "target": "new"}, *both)
    assert set(events.of("done")) == {"0", "1"}
    assert events.failure("2").endswith(
        f"put back as before: {link}; a.service runs again with that, "
        "b.service runs again with that"
    )
    assert link.readlink() == Path("old")
    assert events.failure("3") == (
        "unit c.service: all was put back as before, so it is not switched"
    )
    restarts = [line.split()[-1] for line in asked(host) if " restart " in line]
    assert restarts == ["a.service", "b.service", "a.service", "b.service"]


def test_stop(host: Path) -> None:
    (host / "state").write_text(state(**RUNNING))
    on(host, "stop", ActiveState="inactive")
    assert changed(unit("stop")) is True
    assert changed(unit("stop")) is False
    (host / "state").write_text(state(**RUNNING))
    on(host, "stop", ActiveState="deactivating", SubState="stop-sigterm")
    message = act(unit("stop")).failure("0")
    assert message == f"unit {NAME} is still deactivating (stop-sigterm) 1 s after stopping it"


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [
        ("enable", "disabled", "enabled"),
        ("disable", "enabled", "disabled"),
        ("unmask", "masked", "disabled"),
    ],
)
def test_at_boot(host: Path, verb: str, before: str, after: str) -> None:
    (host / "state").write_text(state(UnitFileState=before))
    assert "0" in act(unit(verb)).of("failed")  # systemctl says yes, the state stays
    on(host, verb, UnitFileState=after)
    assert changed(unit(verb)) is True
    assert changed(unit(verb)) is False


def test_reload(host: Path) -> None:
    assert changed({"do": "unit.reload"}) is True
    assert asked(host) == ["daemon-reload"]
    on(host, "daemon-reload", "echo 'Connection timed out' >&2; exit 1")
    assert act({"do": "unit.reload"}).failure("0") == (
        "systemctl daemon-reload ended with status 1: Connection timed out"
    )


def test_keys_in_the_log_are_not_told(host: Path) -> None:
    on(host, "start", **FAILED)
    program(host, "journalctl", "echo 'main: api_key: sk-abcdef0123456789 is bad'")
    events = act(unit("start"))
    assert "sk-abcdef0123456789" not in json.dumps(events.lines)
    assert "api_key: *** is bad" in events.failure("0")
