"""One installation of named packages with what can be repaired on the way: used for CUDA and
driver, whose packages go in one transaction or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from . import act_packages, apt, apt_errors
from .act_packages import APT_GET
from .handler import Action, ActionError, Context, argument
from .nvidia_stack import in_stack


def install(context: Context, action: Action, names: Sequence[str], options: Sequence[str]) -> str:
    """Install packages together; a note on what was repaired first, or empty.

    An interrupted dpkg is finished once, old lists are renewed once; anything else raises
    `ActionError`, nothing having been installed.
    """
    wait = argument(action, "lock_wait_s", int)
    words = [*APT_GET, "--no-install-recommends", *options, "install", "--", *names]
    note, updated = "", False
    while True:
        ended = apt.run(words, wait, progress(context, action))
        if ended.rc == 0:
            return note
        problem = apt_errors.classify(ended.out)
        if problem.kind == "interrupted" and not note:
            act_packages.repair(context, action)
            note = "an interrupted dpkg was finished first: dpkg --configure -a"
        elif problem.kind in ("stale", "unknown") and not updated:
            updated = True
            apt.run([*APT_GET, "update"], wait, progress(context, action))
        else:
            raise ActionError(told(problem))


def told(problem: apt_errors.Problem) -> str:
    """A problem as a sentence that says whose hold is in the way (C02)."""
    if problem.kind == "dependencies" and any(in_stack(name) for name in problem.names):
        return f"{problem.sentence}; the hold is ours (driver_hold)"
    return problem.sentence


def progress(context: Context, action: Action) -> apt.Progress:
    """What apt tells, as the progress of an action."""
    return lambda package, message, percent: context.progress(action, message, percent)
