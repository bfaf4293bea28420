"""The lab as a whole: bring it up, add to it, say how it is, take it down."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandbox import (
    aptproxy,
    cgroups,
    gpus,
    image,
    loops,
    machine,
    network,
    profiles,
    services,
    state,
)
from sandbox.errors import SandboxError
from sandbox.hub import cli as hub
from sandbox.settings import APT_PORT, FIRST_HOST, HUB_PORT, Settings
from sandbox.shell import check_tools, run, say
from sandbox.state import Host, State

INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_PER_HOST = 8  # systemd, journald, logind, networkd, dbus and some for the product
MAX_HOSTS = 200


def up(
    settings: Settings,
    count: int,
    profile: str,
    release: str,
    bare: int = 0,
    with_gpus: bool = False,
) -> list[Host]:
    """Have at least ``count`` hosts up, ``bare`` of them without python3.

    Hosts that are added have simulated GPUs if ``with_gpus``.

    Adds what is missing and boots what is dead; never removes a host. Returns the hosts that
    were booted by this call.
    """
    check_tools()
    if not 1 <= count <= MAX_HOSTS or not 0 <= bare <= count:
        raise SandboxError(f"Give 1 to {MAX_HOSTS} hosts, and not more bare ones than hosts.")
    with state.lock(settings):
        lab = state.load(settings)
        if lab is None:
            _sweep(settings)  # what a killed command may have left
            lab = state.fresh(settings)
            lab.loops = loops.present()
        # a rebooted machine has a state file and nothing else: the steps below make it true again
        state.save(settings, lab)
        network.up(settings)
        _start_services(settings, lab)
        _make_login_key(settings)
        _make_api_key(settings)
        have = [host.profile for host in lab.hosts.values()]
        missing_bare = bare - sum(host.bare for host in lab.hosts.values())
        wanted = profiles.sequence(profile, max(0, count - len(have), missing_bare), have)
        new = []
        if wanted:
            base = image.ensure(settings, release)
            new = _name_hosts(settings, lab, wanted, base, missing_bare)
            new = [replace(host, gpus=with_gpus) for host in new]
        if any(host.gpus for host in new):
            gpus.vendor(settings)  # once, before hosts ask for it in parallel
        _in_parallel(new, lambda host: _prepare(settings, host), "prepared")
        for host in new:
            lab.hosts[host.name] = host
        _raise_inotify(lab)
        state.save(settings, lab)
        write_known_hosts(settings, lab)
        dead = [h for h in lab.hosts.values() if machine.condition(settings, h.name) == "dead"]
        start(settings, dead)
        _in_parallel(
            [host for host in new if host.gpus],
            lambda host: gpus.furnish(settings, host),
            "furnished",
        )
        return dead


def _prepare(settings: Settings, host: Host) -> None:
    profile = profiles.load(host.profile)
    machine.prepare(settings, host, profile)
    if host.gpus:
        gpus.prepare(settings, host, profile)


def start(settings: Settings, hosts: list[Host]) -> None:
    """Boot hosts at the same time and wait for all; the caller holds the lock."""
    if not hosts:
        return
    say(f"booting {', '.join(host.name for host in hosts)}")
    for host in hosts:
        mounts = gpus.mounts(settings, host) if host.gpus else []
        machine.boot(settings, host, image.at(settings, host.image), mounts)

    def ready(host: Host) -> None:
        verdict = machine.wait(settings, host)
        note = "" if verdict == "running" else f" ({verdict}: look at `systemctl --failed`)"
        say(f"{host.name} is up at {host.address}{note}")

    _in_parallel(hosts, ready, "booted")


def restart(settings: Settings, name: str, fresh: bool = False) -> None:
    """Boot a dead host again, with its disk as it was, or as new (``fresh``)."""
    check_tools()
    with state.lock(settings):
        lab, host = state.require_host(settings, name)
        if fresh:
            cgroups.kill(cgroups.host(settings, name))
            host = replace(host, image=image.ensure(settings, host.release).name)
            lab.hosts[name] = host
            state.save(settings, lab)
            _prepare(settings, host)
            write_known_hosts(settings, lab)
        elif machine.condition(settings, name) != "dead":
            say(f"{name} is {machine.condition(settings, name)} already")
            return
        start(settings, [host])
        if fresh and host.gpus:
            gpus.furnish(settings, host)


def _in_parallel(hosts: list[Host], work: Callable[[Host], None], done: str) -> None:
    """Do the work for all hosts; one error names every host that failed."""
    if not hosts:
        return
    with ThreadPoolExecutor(max_workers=min(16, len(hosts))) as pool:
        futures = {host.name: pool.submit(work, host) for host in hosts}
    errors = [str(future.exception()) for future in futures.values() if future.exception()]
    if errors:
        raise SandboxError(f"{len(errors)} of {len(hosts)} hosts not {done}: {' '.join(errors)}")


def _start_services(settings: Settings, lab: State) -> None:
    if aptproxy.start(settings):
        say(f"apt proxy at {aptproxy.url(settings)}")
    lab.services["apt"] = {"address": settings.gateway, "port": APT_PORT}
    if hub.start(settings):
        say(f"model hub at {hub.url(settings)}")
    lab.services["hub"] = {"address": settings.gateway, "port": HUB_PORT}


def _make_api_key(settings: Settings) -> None:
    """The key that the lab's servers want; group_data/sandbox.py names it."""
    path = settings.keys / "api_key"
    if not path.exists():
        beside = path.with_suffix(".new")
        beside.touch(mode=0o600)
        beside.write_text(secrets.token_hex(32) + "\n")
        beside.rename(path)


def _make_login_key(settings: Settings) -> None:
    settings.keys.mkdir(parents=True, exist_ok=True)
    if not settings.login_key.exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "sandbox login"]
        run([*command, "-f", settings.login_key], what="make the login key")


def _name_hosts(
    settings: Settings, lab: State, wanted: list[str], base: image.Image, bare: int
) -> list[Host]:
    """Names and addresses of new hosts with these profiles; the last ``bare`` have no python3."""
    names = set(lab.hosts)
    addresses = {host.address for host in lab.hosts.values()}
    new = []
    for index, name in enumerate(wanted):
        profile = profiles.load(name)
        numbered = (f"{profile.prefix}-{number:02d}" for number in range(1, MAX_HOSTS + 1))
        free = (str(a) for a in list(settings.subnet.hosts())[FIRST_HOST - 1 :])
        host = Host(
            name=next(text for text in numbered if text not in names),
            profile=name,
            release=base.name.partition("-")[0],
            image=base.name,
            address=next(text for text in free if text not in addresses),
            user=profile.login,
            bare=index >= len(wanted) - bare,
        )
        names.add(host.name)
        addresses.add(host.address)
        new.append(host)
    return new


def write_known_hosts(settings: Settings, lab: State) -> None:
    """Write the sandbox's own known_hosts from the keys that the hosts really have."""
    lines = [f"{host.address} {machine.host_key(settings, host)}\n" for host in lab.hosts.values()]
    part = settings.known_hosts.with_suffix(".part")
    part.write_text("".join(lines))
    part.replace(settings.known_hosts)


def _raise_inotify(lab: State) -> None:
    """Allow more inotify instances when the hosts need them; ``down`` puts the value back."""
    old = int(INOTIFY.read_text())
    needed = 64 + INOTIFY_PER_HOST * len(lab.hosts)
    if needed > old:
        INOTIFY.write_text(str(needed))
        before = lab.sysctl.get(str(INOTIFY), [old])[0]
        lab.sysctl[str(INOTIFY)] = [before, needed]


def _restore_sysctl(lab: State | None) -> None:
    for name, (old, ours) in (lab.sysctl if lab else {}).items():
        file = Path(name)
        # somebody who changed it after us meant it
        if int(file.read_text()) == ours:
            file.write_text(str(old))


def down(settings: Settings) -> list[str]:
    """Stop everything and delete the hosts; base, apt cache, hub and keys stay.

    Needs no state file: everything of ours is found by name. Returns what was stopped.
    """
    check_tools()
    with state.lock(settings):
        lab = None
        # an unreadable file is no reason to leave processes behind
        with contextlib.suppress(SandboxError):
            lab = state.load(settings)
        stopped = _sweep(settings)
        _restore_sysctl(lab)
        loops.remove_new(lab.loops if lab else [])
        state.path(settings).unlink(missing_ok=True)
        return stopped


def _sweep(settings: Settings) -> list[str]:
    root = cgroups.root(settings)
    stopped = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    cgroups.kill(root)
    network.down(settings)
    shutil.rmtree(settings.hosts, ignore_errors=True)
    settings.known_hosts.unlink(missing_ok=True)
    hub.reset(settings)
    for part in settings.base.glob("*.part"):
        shutil.rmtree(part, ignore_errors=True)
    return stopped


def clean(settings: Settings) -> None:
    """Take the lab down and delete what it keeps in the cache folder."""
    down(settings)
    for folder in (settings.base, settings.apt, settings.hub, settings.keys, settings.run):
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # other parts of the project may keep things there
        settings.cache.rmdir()


def status(settings: Settings) -> dict[str, Any]:
    """What is up, as plain data (``status --json``)."""
    lab = state.load(settings)
    hosts = []
    for host in lab.hosts.values() if lab else ():
        condition = machine.condition(settings, host.name)
        hosts.append({**vars(host), "condition": condition})
    running = {
        name: {**info, "pids": services.pids(settings, name)}
        for name, info in (lab.services if lab else {}).items()
    }
    return {
        "up": lab is not None,
        "name": settings.name,
        "cache": str(settings.cache),
        "subnet": str(settings.subnet),
        "bridge": settings.bridge,
        "gateway": settings.gateway,
        "cgroup": str(cgroups.root(settings)),
        "login_key": str(settings.login_key),
        "known_hosts": str(settings.known_hosts),
        "hosts": hosts,
        "services": running,
    }
