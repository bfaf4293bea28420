"""systemd units: reload, unmask, enable, start, restart, stop, each bounded and read back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from .act_files import put_back
from .handler import (
    Action,
    ActionError,
    Context,
    Handler,
    Outcome,
    argument,
    command,
    must,
    texts,
)

LIMIT_S = 60  # of one systemctl call that does not wait for a job
POLL_S = 0.2
TELL_S = 5.0
SETTLE_S = 1.0  # a program of Type=simple is "active" before it had time to fail
PROPERTIES = (
    "LoadState,ActiveState,SubState,UnitFileState,Job,Result,ExecMainStatus,ConditionResult,"
    "InvocationID"
)
ENABLED = ("enabled", "static", "alias", "indirect", "generated")


def reload(context: Context, action: Action) -> Outcome:
    """Let systemd read its unit files again."""
    must(["systemctl", "daemon-reload"], LIMIT_S)
    return Outcome(changed=True)


def unmask(context: Context, action: Action) -> Outcome:
    """Remove a unit's mask, the lasting one and the one until reboot."""
    name = argument(action, "name", str)
    if not _show(name)["UnitFileState"].startswith("masked"):
        return Outcome(changed=False)
    must(["systemctl", "unmask", "--", name], LIMIT_S)
    if _show(name)["UnitFileState"].startswith("masked"):
        must(["systemctl", "unmask", "--runtime", "--", name], LIMIT_S)
    if _show(name)["UnitFileState"].startswith("masked"):
        raise ActionError(f"unit {name} is still masked: look at 'systemctl cat {name}'")
    return Outcome(changed=True)


def enable(context: Context, action: Action) -> Outcome:
    """Let a unit start at boot."""
    name = argument(action, "name", str)
    if _show(name)["UnitFileState"] in ENABLED:
        return Outcome(changed=False)
    must(["systemctl", "enable", "--", name], LIMIT_S)
    state = _show(name)["UnitFileState"]
    if state not in ENABLED:
        raise ActionError(f"unit {name} is {state or 'unknown to systemd'} after enabling it")
    return Outcome(changed=True)


def disable(context: Context, action: Action) -> Outcome:
    """Keep a unit from starting at boot."""
    name = argument(action, "name", str)
    if not _show(name)["UnitFileState"].startswith("enabled"):
        return Outcome(changed=False)
    must(["systemctl", "disable", "--", name], LIMIT_S)
    if _show(name)["UnitFileState"].startswith("enabled"):
        raise ActionError(f"unit {name} is still enabled after disabling it")
    return Outcome(changed=True)


def start(context: Context, action: Action) -> Outcome:
    """Start a unit; one that fails is stopped again, so that systemd does not go on trying."""
    name = argument(action, "name", str)
    state = _show(name)
    if state["ActiveState"] in ("active", "reloading"):
        return Outcome(changed=False)
    if state["ActiveState"] == "failed":
        command(["systemctl", "reset-failed", "--", name], LIMIT_S)
    # a unit between two tries of systemd's counts as started already, so it is restarted
    problem = _bring_up(
        context, action, "restart" if state["SubState"] == "auto-restart" else "start"
    )
    if problem:
        command(["systemctl", "stop", "--", name], LIMIT_S)
        raise ActionError(f"{problem}; it was stopped again")
    return Outcome(changed=True)


def restart(context: Context, action: Action) -> Outcome:
    """Restart a unit. If it fails, what this run replaced of `put_back` becomes what it was."""
    name, paths = argument(action, "name", str), texts(action, "put_back")
    refuse_after_put_back(context, name, paths)
    before = _show(name)["InvocationID"]
    context.restarted[name] = argument(action, "limit_s", int)
    problem = _bring_up(context, action, "restart")
    if problem:
        raise ActionError(f"{problem}{as_before(context, action, paths)}")
    if before and _show(name)["InvocationID"] == before:
        raise ActionError(f"systemctl restarted unit {name}, yet the same process runs on")
    return Outcome(changed=True)


def as_before(context: Context, action: Action, paths: list[str]) -> str:
    """Make what this run replaced of `paths` what it was, and start with that the units it
    restarted; a clause on it for the message of the failed `action`, empty when there was nothing.
    """
    try:
        restored = put_back(context, paths)
        if not restored:
            return ""
        context.put_back.update(restored)
        must(["systemctl", "daemon-reload"], LIMIT_S)
        ends = []
        for name, limit_s in context.restarted.items():
            command(["systemctl", "reset-failed", "--", name], LIMIT_S)
            again = _bring_up(context, {**action, "name": name, "limit_s": limit_s}, "restart")
            end = "does not run with that either" if again else "runs again with that"
            ends.append(f"{name} {end}")
    except ActionError as error:
        return f"; putting back what was there before failed: {error}"
    return f"; put back as before: {', '.join(restored)}; {', '.join(ends)}"


def refuse_after_put_back(context: Context, name: str, paths: list[str]) -> None:
    """Keep a unit as it is when what was to be switched with it has been put back."""
    if context.put_back & set(paths):
        raise ActionError(f"unit {name}: all was put back as before, so it is not switched")


def stop(context: Context, action: Action) -> Outcome:
    """Stop a unit."""
    name, limit_s = argument(action, "name", str), argument(action, "limit_s", int)
    if _show(name)["ActiveState"] in ("inactive", "failed"):
        return Outcome(changed=False)
    must(["systemctl", "--no-block", "stop", "--", name], LIMIT_S)
    state = _wait(context, action, limit_s, lambda s: s["ActiveState"] in ("inactive", "failed"))
    if state["ActiveState"] not in ("inactive", "failed"):
        raise ActionError(f"unit {name} is still {_words(state)} {limit_s} s after stopping it")
    return Outcome(changed=True)


def _show(name: str) -> dict[str, str]:
    """A unit's properties; every one of PROPERTIES is there, empty where systemd has none."""
    ended = must(["systemctl", "show", f"--property={PROPERTIES}", "--", name], LIMIT_S)
    found = dict(line.partition("=")[::2] for line in ended.out.splitlines() if "=" in line)
    return {key: found.get(key, "") for key in PROPERTIES.split(",")}


def _words(state: Mapping[str, str]) -> str:
    return f"{state['ActiveState']} ({state['SubState']})"


def _bring_up(context: Context, action: Action, how: str) -> str:
    """Start or restart a unit and watch it; returns why it does not run, or nothing."""
    name, limit_s = argument(action, "name", str), argument(action, "limit_s", int)
    asked = command(["systemctl", "--no-block", how, "--", name], LIMIT_S)
    if asked.rc != 0:
        return f"unit {name} can't be started: {asked.last_words}"
    state = _wait(context, action, limit_s, _settled)
    if state["ActiveState"] == "active":
        time.sleep(SETTLE_S)
        state = _show(name)
    if state["ActiveState"] in ("active", "reloading"):
        return ""
    if state["ActiveState"] == "inactive" and state["Result"] == "success":
        if state["ConditionResult"] == "no":
            return f"unit {name} was not started: a condition in its unit file is not met"
        return ""  # a oneshot that did its work
    if not _settled(state):
        return f"unit {name} is still {_words(state)} after {limit_s} s{_log(name)}"
    return (
        f"unit {name} failed to start: result {state['Result'] or 'unknown'}, "
        f"exit status {state['ExecMainStatus'] or 'unknown'}{_log(name)}"
    )


def _settled(state: Mapping[str, str]) -> bool:
    """Whether a start is over, well or not; `Job` is set while systemd still works on it."""
    if state["SubState"] == "auto-restart" or state["ActiveState"] == "failed":
        return True
    return state["ActiveState"] in ("active", "inactive") and state["Job"] in ("", "0")


def _wait(
    context: Context, action: Action, limit_s: int, over: Callable[[Mapping[str, str]], bool]
) -> dict[str, str]:
    """Look at a unit until `over` or for `limit_s` seconds, telling now and then."""
    name = argument(action, "name", str)
    began = told = time.monotonic()
    while True:
        state = _show(name)
        now = time.monotonic()
        if over(state) or now - began >= limit_s:
            return state
        if now - told >= TELL_S:
            told = now
            context.progress(action, f"{_words(state)} for {now - began:.0f} s", None)
        time.sleep(POLL_S)


def _log(name: str) -> str:
    """The unit's last three journal lines, for a message; the engine masks secrets in it."""
    words = ["journalctl", "--quiet", "--no-pager", "--output=cat", "--lines=3", "--unit", name]
    try:
        lines = [line.strip()[:300] for line in command(words, 15).out.splitlines()]
    except ActionError:
        return ""
    return f"; its log ends: {' | '.join(lines)}" if any(lines) else ""


HANDLERS = {
    "unit.reload": Handler(one=reload),
    "unit.unmask": Handler(one=unmask),
    "unit.enable": Handler(one=enable),
    "unit.disable": Handler(one=disable),
    "unit.start": Handler(one=start),
    "unit.restart": Handler(one=restart),
    "unit.stop": Handler(one=stop),
}
