"""Kernel parameters and module options, in effect now."""

from __future__ import annotations

from pathlib import Path

from .handler import (
    Action,
    ActionError,
    Context,
    Handler,
    Outcome,
    argument,
    command,
    must,
    os_sentence,
)
from .probe_system import sysctl_path
from .probe_tools import Unlearned

MODULES = Path("/sys/module")
LIMIT_S = 120


def same_value(a: str, b: str) -> bool:
    """Whether the kernel means the same by both: blanks don't count, Y is 1 and N is 0."""
    flags = {"Y": "1", "y": "1", "N": "0", "n": "0"}
    one, other = a.split(), b.split()
    return [flags.get(word, word) for word in one] == [flags.get(word, word) for word in other]


def sysctl_set(context: Context, action: Action) -> Outcome:
    """Write a kernel parameter and read it back."""
    key, value = argument(action, "key", str), argument(action, "value", str)
    try:
        path = Path(sysctl_path(key))
    except Unlearned as error:
        raise ActionError(f"{key} {error}") from error
    try:
        if same_value(path.read_text(), value):
            return Outcome(changed=False)
        path.write_text(value)
        found = path.read_text().strip()
    except FileNotFoundError as error:
        raise ActionError(
            f"this kernel has no parameter {key}: correct the name, or load its module"
        ) from error
    except OSError as error:
        raise ActionError(os_sentence(error, f"setting {key} to {value}")) from error
    if not same_value(found, value):
        raise ActionError(f"the kernel took {value} for {key} but reads {found}")
    return Outcome(changed=True)


def module_reload(context: Context, action: Action) -> Outcome:
    """Unload and load a module so that its options take effect, only if nothing uses it."""
    module, options = argument(action, "module", str), argument(action, "options", dict)
    folder = MODULES / module.replace("-", "_")
    if not folder.is_dir():
        return Outcome(changed=False, message=f"{module} is not loaded: its options wait for that")
    wrong = _wrong_options(folder, options)
    if not wrong:
        return Outcome(changed=False)
    users = _users(folder)
    if users:
        raise ActionError(
            f"module {module} is in use by {users}, so {', '.join(wrong)} can't take effect now: "
            "stop what uses it, or reboot the host"
        )
    must(["modprobe", "--remove", module], LIMIT_S)
    loaded = command(["modprobe", module], LIMIT_S)
    if loaded.rc != 0:
        plain = command(["modprobe", "--config", "/dev/null", module], LIMIT_S)
        now = "loaded without any option" if plain.rc == 0 else "not loaded any more"
        raise ActionError(
            f"module {module} can't be loaded with its options and is {now}: {loaded.last_words}"
        )
    wrong = _wrong_options(folder, options)
    if wrong:
        raise ActionError(
            f"module {module} was loaded again and still has {', '.join(wrong)}: "
            "look for them elsewhere in /etc/modprobe.d and on the kernel command line"
        )
    return Outcome(changed=True)


def _wrong_options(folder: Path, options: dict[str, str]) -> list[str]:
    """The options in effect that differ, each as ``name=value``."""
    wrong = []
    for name, value in options.items():
        try:
            found = (folder / "parameters" / name).read_text().strip()
        except OSError:
            found = "unreadable"
        if not same_value(found, str(value)):
            wrong.append(f"{name}={found}")
    return wrong


def _users(folder: Path) -> str:
    """Who uses a module, in words; empty when nobody does."""
    holders = folder / "holders"
    names = sorted(entry.name for entry in holders.iterdir()) if holders.is_dir() else []
    if names:
        return ", ".join(names)
    try:
        count = int((folder / "refcnt").read_text())
    except (OSError, ValueError):
        return "the kernel itself (it is built in)"
    return f"{count} open handles" if count else ""


HANDLERS = {
    "sysctl.set": Handler(one=sysctl_set),
    "module.reload": Handler(one=module_reload),
}
