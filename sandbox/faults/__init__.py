"""What can be broken on a host by hand, as a registry: ``python -m sandbox break HOST WHAT``.

A fault is a function with the ``fault`` decorator in one of this package's modules; the command
line and its help come from the registry. Faults act from outside the host (cgroup, bridge) or
inside it as root without the network, never through the ssh connection that they may be about.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from sandbox import machine
from sandbox.errors import SandboxError
from sandbox.settings import Settings
from sandbox.state import Host

Action = Callable[[Settings, Host, list[str]], None]


@dataclass(frozen=True)
class Fault:
    """One thing that can be broken (or mended).

    arguments: their names; one in square brackets may be left out. undo: the fault that mends it.
    """

    name: str
    arguments: tuple[str, ...]
    help: str
    undo: str
    action: Action

    @property
    def usage(self) -> str:
        """Name with its arguments, as typed."""
        return " ".join((self.name, *self.arguments))


_registry: dict[str, Fault] = {}


def fault(name: str, *arguments: str, help: str, undo: str = "") -> Callable[[Action], Action]:
    """Register a function as a fault."""

    def register(action: Action) -> Action:
        _registry[name] = Fault(name, arguments, help, undo, action)
        return action

    return register


def known() -> dict[str, Fault]:
    """All faults by name, in the order of their modules."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _registry


def apply(settings: Settings, host: Host, name: str, arguments: list[str]) -> None:
    """Break one thing.

    Raises SandboxError for an unknown fault, wrong arguments, or when it cannot be done.
    """
    faults = known()
    if name not in faults:
        raise SandboxError(
            f"There is no fault {name}: `python -m sandbox break --list` shows what there is."
        )
    chosen = faults[name]
    least = sum(not argument.startswith("[") for argument in chosen.arguments)
    if not least <= len(arguments) <= len(chosen.arguments):
        raise SandboxError(f"The fault is used as `break {host.name} {chosen.usage}`.")
    chosen.action(settings, host, arguments)


def script(settings: Settings, host: Host, text: str, *arguments: str, what: str) -> str:
    """Run a shell script as root in the host ($1, $2 ... are the arguments); its output."""
    command = ["/bin/sh", "-euc", text, "sh", *arguments]
    return machine.call(settings, host.name, *command, what=what)


def number(text: str, name: str) -> int:
    """An argument that is a whole number."""
    if not text.isdigit():
        raise SandboxError(f"{name} is {text!r}: give a whole number.")
    return int(text)
