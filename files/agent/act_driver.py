"""The driver: installed or moved in one transaction, held, loaded; the boot image; the reboot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import apt, apt_errors, apt_install, platform, platform_apt
from .act_packages import APT_GET
from .apt_answers import objections, parse_simulation
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
from .nvidia_stack import branch_of, in_stack, tied_to_driver
from .probe_tools import packages_state

# The holds that were lifted for a move, kept until they are back: a host may lose power meanwhile.
LIFTED = Path("/var/lib/voltfleet/lifted-holds.json")
BUILD_LIMIT_S = 3600
LIMIT_S = 120
REBOOT_IN_S = 3


def install(context: Context, action: Action) -> Outcome:
    """Install the driver, or move to another branch, in one transaction.

    apt is asked first what it would do; another branch, another flavour or a removal outside the
    stack ends it before anything is touched. Holds of the stack are lifted for the transaction
    and are back after it, whatever happens; then the whole stack is held where asked.
    """
    names, branch = texts(action, "packages"), argument(action, "branch", int)
    flavour = argument(action, "flavour", str)
    before = (_stack(), sorted(_held()))
    _foresee(context, action, names, branch, flavour)
    with lifted_holds():
        note = apt_install.install(context, action, names, ["--allow-downgrades"])
    wrong = [
        f"{name} {version}"
        for name, version in _stack(whole=False).items()
        if tied_to_driver(name) and branch_of(version) not in (branch, None)
    ]
    if wrong:
        raise ActionError(
            f"after the installation {wrong[0]} is there, expected branch {branch}: remove it"
        )
    if argument(action, "hold", bool):
        hold_all()
    if before == (_stack(), sorted(_held())):
        return Outcome(False, note)
    return Outcome(True, "; ".join(part for part in (note, _loaded_after()) if part))


def _foresee(context: Context, action: Action, names: list[str], branch: int, flavour: str) -> None:
    asked = {"branch": branch, "packages": names, "pins": action.get("pins", "")}
    answer = platform_apt.simulation({"limit_s": LIMIT_S, "driver": asked})
    if answer is not None and answer["rc"] != 0:
        wait = argument(action, "lock_wait_s", int)
        apt.run([*APT_GET, "update"], wait, apt_install.progress(context, action))
        answer = platform_apt.simulation({"limit_s": LIMIT_S, "driver": asked})
    if answer is None:
        return
    if answer["rc"] != 0:
        problem = apt_errors.classify(f"{answer['out']}\n{answer['err']}")
        raise ActionError(f"nothing was installed: {apt_install.told(problem)}")
    against = objections(parse_simulation(answer["out"]), branch, flavour, answer["held"])
    if against:
        raise ActionError(f"nothing was installed: {'; '.join(against)}")


def _stack(*, whole: bool = True) -> dict[str, str]:
    """Version by name of the stack: packages installed `whole`, or half installed ones too."""
    found = platform_apt.packages({"limit_s": LIMIT_S})
    return {
        name: package["version"]
        for name, package in found.items()
        if in_stack(name)
        and (package["status"] == "installed" if whole else package["status"] != "config-files")
    }


def _held() -> list[str]:
    return [name for name in must(["apt-mark", "showhold"], LIMIT_S).out.split() if in_stack(name)]


@contextmanager
def lifted_holds() -> Iterator[None]:
    """The stack without holds inside, with those of before afterwards, also after a failure.

    Packages that are gone by then need none. What is lifted is written down first.
    """
    before = sorted({*_held(), *_written_down()})
    if before:
        LIFTED.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        beside = LIFTED.with_suffix(".new")
        beside.write_text(json.dumps(before) + "\n")
        beside.replace(LIFTED)
        _mark("unhold", [name for name in before if name in _held()])
    try:
        yield
    finally:
        still = _stack()
        _mark("hold", [name for name in before if name.partition(":")[0] in still])
        LIFTED.unlink(missing_ok=True)


def _written_down() -> list[str]:
    try:
        return [str(name) for name in json.loads(LIFTED.read_text())]
    except (FileNotFoundError, ValueError):
        return []


def _mark(verb: str, names: Sequence[str]) -> None:
    if names:
        must(["apt-mark", verb, *names], LIMIT_S)


def hold_all() -> int:
    """Hold every installed package of the stack and read back; how many there are."""
    names = sorted(_stack())
    _mark("hold", names)
    lacking = sorted(set(names) - {name.partition(":")[0] for name in _held()})
    if lacking:
        raise ActionError(f"apt-mark held the driver's packages but not {', '.join(lacking)}")
    return len(names)


def hold(context: Context, action: Action) -> Outcome:
    """Hold the whole stack."""
    count = hold_all()
    LIFTED.unlink(missing_ok=True)
    return Outcome(True, f"{count} packages held")


def _loaded_after() -> str:
    """Load what was installed where nothing is in its way; else what the next boot brings."""
    loaded = platform.driver({"limit_s": LIMIT_S})["loaded"]
    if loaded is not None:
        return f"driver {loaded} stays loaded until the next boot"
    try:
        present = platform.gpus({})["devices"]
        if not present or "nouveau" in platform.modules({})["loaded"]:
            return "it is loaded at the next boot"
        load_modules()
    except (ActionError, OSError) as error:
        return f"it is not loaded yet: {error}"
    return "loaded"


def load(context: Context, action: Action) -> Outcome:
    """Load the modules and make their device nodes."""
    load_modules()
    return Outcome(True)


def load_modules() -> None:
    """Load nvidia and nvidia-uvm, and make the nodes, which a confined service can't.

    Raises `ActionError` with what the kernel said.
    """
    for module in ("nvidia", "nvidia-uvm"):
        ended = command(["modprobe", module], LIMIT_S)
        if ended.rc != 0:
            raise ActionError(why_not_loaded(module, ended.last_words))
    must(["nvidia-modprobe", "-c", "0", "-u"], LIMIT_S)


def why_not_loaded(module: str, said: str) -> str:
    """modprobe's last words as a sentence that says what to do (C07)."""
    if "Key was rejected by service" in said:
        return (
            f"Secure Boot keeps the kernel from loading {module} (Key was rejected by service): "
            "enrol the key it is signed with (mokutil --import, confirmed at the console on the "
            "next boot) or turn Secure Boot off"
        )
    if "No such device" in said:
        return f"{module} drives no card of this host: see the lines with NVRM in dmesg"
    return f"modprobe {module} failed: {said}"


def dkms(context: Context, action: Action) -> Outcome:
    """Have DKMS build the driver for a kernel."""
    kernel = argument(action, "kernel", str)
    context.progress(action, f"DKMS builds for kernel {kernel}")
    ended = command(["dkms", "autoinstall", "-k", kernel], BUILD_LIMIT_S)
    rows = platform_apt.dkms({"limit_s": LIMIT_S})["modules"]
    if not any(row["kernel"] == kernel and row["state"] == "installed" for row in rows):
        raise ActionError(
            f"DKMS did not build the driver for kernel {kernel}: {ended.last_words}; see "
            "/var/lib/dkms/nvidia/*/build/make.log"
        )
    return Outcome(True)


def initramfs(context: Context, action: Action) -> Outcome:
    """Rebuild boot images, and see that the file that keeps nouveau away is in them."""
    for kernel in texts(action, "kernels"):
        context.progress(action, f"rebuilds the initramfs of kernel {kernel}")
        must(["update-initramfs", "-u", "-k", kernel], BUILD_LIMIT_S)
        listed = must(["lsinitramfs", f"/boot/initrd.img-{kernel}"], LIMIT_S).out
        found = platform.parse_initramfs(listed, platform.blacklists())
        if found["nouveau"] and not found["blacklist"]:
            raise ActionError(
                f"the rebuilt initramfs of kernel {kernel} still loads nouveau: see the hooks in "
                "/etc/initramfs-tools"
            )
    return Outcome(True)


def reboot(context: Context, action: Action) -> Outcome:
    """Reboot in a moment, so that this answer still arrives; only the boot that was looked at."""
    wanted = argument(action, "boot_id", str)
    if platform.boot({})["boot_id"] != wanted:
        return Outcome(False, "it has been rebooted meanwhile")
    if packages_state()["interrupted"]:
        raise ActionError("packages are half configured, so it is not rebooted: run again first")
    timer = [f"--on-active={REBOOT_IN_S}", "--timer-property=AccuracySec=100ms"]
    must(["systemd-run", *timer, "systemctl", "reboot"], LIMIT_S)
    return Outcome(True, f"reboots in {REBOOT_IN_S} s")


HANDLERS = {
    "driver.install": Handler(one=install),
    "driver.hold": Handler(one=hold),
    "driver.load": Handler(one=load),
    "driver.dkms": Handler(one=dkms),
    "initramfs.rebuild": Handler(one=initramfs),
    "host.reboot": Handler(one=reboot),
}
