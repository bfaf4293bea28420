"""The lab as pyinfra groups and host data, for inventory/sandbox.py and the tests."""

from __future__ import annotations

from typing import Any

from sandbox import gpus, profiles, settings, state
from sandbox.errors import SandboxError
from sandbox.settings import HUB_PORT, Settings
from sandbox.state import Host

PyinfraHost = tuple[str, dict[str, Any]]


def groups() -> dict[str, list[PyinfraHost]]:
    """All hosts of the lab by group name.

    Ends the program with one sentence when nothing is up: pyinfra would go on with an empty
    inventory and exit 0.
    """
    try:
        config = settings.load()
        lab = state.load(config)
    except SandboxError as error:
        raise SystemExit(f"inventory/sandbox.py: {error}") from error
    if lab is None or not lab.hosts:
        raise SystemExit("inventory/sandbox.py: no sandbox is up. Run: python -m sandbox up")
    hosts = {host: (host.name, data(config, host)) for host in _ordered(lab.hosts)}
    found: dict[str, list[PyinfraHost]] = {
        "sandbox": list(hosts.values()),
        "llama_cpp": list(hosts.values()),
    }
    found["gpus"] = [entry for host, entry in hosts.items() if host.gpus]
    for profile in profiles.names():
        found[profile] = [entry for host, entry in hosts.items() if host.profile == profile]
    return found


def _ordered(hosts: dict[str, Host]) -> list[Host]:
    return [hosts[name] for name in sorted(hosts)]


def data(config: Settings, host: Host) -> dict[str, Any]:
    """Host data of one host: how to reach it and what the lab serves it."""
    found: dict[str, Any] = {
        "ssh_hostname": host.address,
        "ssh_user": host.user,
        "ssh_key": str(config.login_key),
        "ssh_known_hosts_file": str(config.known_hosts),
        "ssh_strict_host_key_checking": "yes",
        # the lab's own login alone: no agent, no keys of the person who runs it
        "ssh_look_for_keys": False,
        "ssh_allow_agent": False,
        "secrets_folder": str(config.keys),
        "model_hub_url": f"http://{config.gateway}:{HUB_PORT}",
    }
    if host.user != "root":
        found["_sudo"] = True
    if host.gpus:
        found |= gpus.data(config, host)
    return found
