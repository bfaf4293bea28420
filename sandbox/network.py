"""The lab's bridge: reachable from this machine, with no way out.

Each host gets a veth from nspawn, which goes away with the host. Nothing that comes in on the
bridge is forwarded (the interface's own forwarding switch is off, whatever the machine's global
setting), and hosts have no default route.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
from pathlib import Path
from typing import Any

from sandbox.errors import SandboxError
from sandbox.settings import Settings
from sandbox.shell import run

IPV4 = Path("/proc/sys/net/ipv4/conf")
IPV6 = Path("/proc/sys/net/ipv6/conf")


def _ip(*words: str, what: str) -> list[dict[str, Any]]:
    out = run(["ip", "-j", *words], what=what).stdout.strip()
    return [item for item in json.loads(out or "[]") if item]


def bridge(settings: Settings) -> dict[str, Any] | None:
    """The bridge's link as `ip -j` tells it, None when there is none.

    Raises SandboxError when an interface of that name is not this lab's.
    """
    links = _ip("link", what="list the network interfaces")
    found = next((link for link in links if link["ifname"] == settings.bridge), None)
    if found and found.get("ifalias") != settings.owner:
        raise SandboxError(
            f"The network interface {settings.bridge} belongs to something else "
            f"({found.get('ifalias') or 'no alias'}): give this lab another name with "
            "VOLTFLEET_SANDBOX_NAME."
        )
    return found


def up(settings: Settings) -> None:
    """Make the bridge with our address on it; nothing happens when it is there."""
    if bridge(settings) is None:
        _check_free(settings)
        link = settings.bridge
        run(["ip", "link", "add", link, "type", "bridge"], what=f"create the bridge {link}")
        run(
            ["ip", "link", "set", link, "alias", settings.owner],
            what=f"mark the bridge {link} as ours",
        )
    # sysfs and /proc are written directly: sysctl(8) is not on every minimal system
    for switch in (IPV4 / settings.bridge / "forwarding", IPV6 / settings.bridge / "forwarding"):
        with contextlib.suppress(FileNotFoundError):
            switch.write_text("0")
    with contextlib.suppress(FileNotFoundError):
        (IPV6 / settings.bridge / "disable_ipv6").write_text("1")
    address = f"{settings.gateway}/{settings.subnet.prefixlen}"
    run(
        ["ip", "addr", "replace", address, "dev", settings.bridge],
        what=f"give {settings.bridge} the address {address}",
    )
    run(["ip", "link", "set", settings.bridge, "up"], what=f"switch {settings.bridge} on")


def _check_free(settings: Settings) -> None:
    for link in _ip("addr", what="list the addresses"):
        for info in link.get("addr_info", []):
            if info.get("family") != "inet":
                continue
            network = ipaddress.IPv4Interface(f"{info['local']}/{info['prefixlen']}").network
            if network.overlaps(settings.subnet):
                _taken(settings, f"{link['ifname']} has {info['local']}/{info['prefixlen']}")
    for route in _ip("-4", "route", what="list the routes"):
        if route["dst"] != "default" and ipaddress.IPv4Network(route["dst"]).overlaps(
            settings.subnet
        ):
            _taken(settings, f"a route to {route['dst']} goes through {route.get('dev')}")


def _taken(settings: Settings, why: str) -> None:
    raise SandboxError(
        f"The sandbox's network {settings.subnet} is in use ({why}): set "
        "VOLTFLEET_SANDBOX_SUBNET to a free one."
    )


def down(settings: Settings) -> None:
    """Remove the bridge and whatever still hangs on it."""
    if bridge(settings) is None:
        return
    ports = _ip("link", "show", "master", settings.bridge, what="list the bridge's ports")
    for port in ports:
        # its host is dead, so this only hurries what the kernel is about to do
        run(["ip", "link", "del", port["ifname"]], what="remove a port", check=False)
    run(["ip", "link", "del", settings.bridge], what=f"remove the bridge {settings.bridge}")


def port_of(settings: Settings, peer_index: int) -> str:
    """Name of the bridge port with this interface index."""
    for port in _ip("link", "show", "master", settings.bridge, what="list the bridge's ports"):
        if port["ifindex"] == peer_index:
            return str(port["ifname"])
    raise SandboxError(f"No port of {settings.bridge} has the index {peer_index}.")


def set_link(name: str, up: bool) -> None:
    """Switch a bridge port on or off, like pulling the cable."""
    run(["ip", "link", "set", name, "up" if up else "down"], what=f"switch {name}")
