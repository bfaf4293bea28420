"""Verb ``apply``: carries out the actions of a request, in order, one event line per step.

The actions and their arguments (every one has ``id``, ``do`` and ``needs`` besides):

- ``package.install`` name, version (or null), lock_wait_s; ``package.repair`` lock_wait_s
- ``group.make`` name; ``user.make`` and ``user.set`` name, home, shell, groups
- ``directory.make`` path, mode, owner, group
- ``file.write`` path, content (base64), mode, owner, group, secret, over_mask
- ``file.attributes`` path, mode, owner, group; ``link.set`` path, target
- ``sysctl.set`` key, value; ``module.reload`` module, options (name to value)
- ``unit.reload``; ``unit.unmask``, ``unit.enable``, ``unit.disable`` name;
  ``unit.start``, ``unit.stop``, ``unit.restart`` name, limit_s; restart: put_back (paths)
- those of releases, models, serving and the platform: see ``act_releases.py``,
  ``act_models.py``, ``act_serving.py`` and ``act_platform.py``

Modes are four octal digits, limits and waits are seconds.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from . import lease
from .handler import Action, ActionError, Context, Handler, Outcome
from .wire import Wire, WireError

# Every module that brings handlers, by its name in this package.
MODULES = (
    "act_packages",
    "act_accounts",
    "act_files",
    "act_kernel",
    "act_units",
    "act_releases",
    "act_models",
    "act_serving",
    "act_platform",
)


def _registry() -> dict[str, Handler]:
    handlers: dict[str, Handler] = {}
    for module in MODULES:
        handlers.update(importlib.import_module(f".{module}", __package__).HANDLERS)
    return handlers


HANDLERS: dict[str, Handler] = _registry()


def main(request: Mapping[str, Any], wire: Wire) -> bool:
    """The verb: carry out the request's actions under the host's lock; True when none failed.

    Beyond the protocol a request may say, for whoever asks meanwhile, what it is ``doing``.
    When nobody reads the events any more, the atomic step under way is finished and nothing
    further is begun. Raises `WireError` for a request that is not as the protocol says and
    `lease.Busy` when another run is at work, both before anything is done.
    """
    run, actions = _checked(request)
    _outlive_the_connection()
    os.umask(0o022)
    doing = str(request.get("doing") or "changes")
    with lease.applying(run, doing) as tell:
        context = Context(run=run, sink=wire)
        return perform(context, actions, lambda step: tell(f"{doing}: {step}"))


def perform(context: Context, actions: Sequence[Action], tell: Callable[[str], None]) -> bool:
    """Carry out actions in order, each after what it needs; True when all were done.

    `tell` gets, for whoever asks meanwhile, what is being done.
    """
    done: dict[str, bool] = {}
    rest = list(actions)
    while rest:
        group = _next_group(rest)
        rest = rest[len(group) :]
        ready = [action for action in group if _ready(context, action, done)]
        if not ready:
            continue
        others = f" and {len(ready) - 1} more" if len(ready) > 1 else ""
        tell(f"{ready[0]['id']}{others}")
        for action in ready:
            context.tell(action["id"], "start")
        if context.gone:
            return False
        for change_id, result in _results(context, ready).items():
            done[change_id] = isinstance(result, Outcome)
            if isinstance(result, Outcome):
                context.tell(change_id, "done", changed=result.changed, message=result.message)
            else:
                context.tell(change_id, "failed", message=str(result))
    return all(done.values())


def _checked(request: Mapping[str, Any]) -> tuple[str, list[Action]]:
    run, actions = request.get("run"), request.get("actions")
    if not isinstance(run, str) or not isinstance(actions, list):
        raise WireError('apply needs {"run": id, "actions": [...]}')
    seen: set[str] = set()
    for action in actions:
        if not isinstance(action, Mapping) or not isinstance(action.get("id"), str):
            raise WireError("apply needs actions that are objects with an id")
        if action["id"] in seen:
            raise WireError(f"apply got two actions with the id {action['id']}")
        if not isinstance(action.get("needs", []), list):
            raise WireError(f"apply needs a list as needs of {action['id']}")
        seen.add(action["id"])
    return run, list(actions)


def _outlive_the_connection() -> None:
    """A lost terminal must not end a step half way; it is noticed at the next event."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _next_group(rest: Sequence[Action]) -> list[Action]:
    """The next action, and those after it that its handler takes in the same go."""
    first = rest[0]
    handler = HANDLERS.get(str(first.get("do")))
    if handler is None or handler.together is None:
        return [first]
    group: list[Action] = []
    ids: set[str] = set()
    for action in rest:
        if action.get("do") != first["do"] or ids & set(action.get("needs", [])):
            break
        group.append(action)
        ids.add(action["id"])
    return group


def _ready(context: Context, action: Action, done: dict[str, bool]) -> bool:
    """Whether everything that `action` needs was done; a skipped action is told and counted.

    A need that is not in this request was planned for an earlier area: that it is still in the
    plan means that it is still not so.
    """
    lacking = [need for need in action.get("needs", []) if not done.get(need, False)]
    if not lacking:
        return True
    done[action["id"]] = False
    message = f"needs {', '.join(lacking)}, which was not done"
    context.tell(action["id"], "skipped", message=message)
    return False


def _results(context: Context, actions: Sequence[Action]) -> dict[str, Outcome | ActionError]:
    """What became of actions of one name; whatever a handler raises becomes a sentence."""
    name = str(actions[0].get("do"))
    handler = HANDLERS.get(name)
    results: dict[str, Outcome | ActionError] = {}
    try:
        if handler is None:
            raise ActionError(f"this agent knows no action {name}: controller and agent differ")
        if handler.together is not None:
            results.update(handler.together(context, actions))
        elif handler.one is not None:
            results[actions[0]["id"]] = handler.one(context, actions[0])
        failure = ActionError(f"the handler of {name} told nothing about it: a bug")
    except ActionError as error:
        failure = error
    except Exception as error:  # one broken handler must not end the other actions
        failure = ActionError(f"{name} failed unexpectedly: {_described(error)}")
    return {action["id"]: results.get(action["id"], failure) for action in actions}


def _described(error: Exception) -> str:
    words = ""
    with suppress(Exception):
        words = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
