"""Power, cable and disk: things that happen to a host from outside."""

from __future__ import annotations

from sandbox import cgroups, machine, network
from sandbox.faults import fault, number, script
from sandbox.settings import MODEL_FOLDER, Settings
from sandbox.state import Host


@fault("kill", help="end the whole host at once, like a power loss", undo="`start HOST`")
def kill(settings: Settings, host: Host, args: list[str]) -> None:
    """SIGKILL to every process at the same moment.

    Unlike a power loss, what was written but not yet on disk survives.
    """
    cgroups.kill(cgroups.host(settings, host.name))


@fault(
    "pause", help="freeze all processes: connections stay open and nobody answers", undo="resume"
)
def pause(settings: Settings, host: Host, args: list[str]) -> None:
    """The kernel still accepts connections, so ssh hangs instead of failing."""
    machine.leader(settings, host.name)
    cgroups.freeze(cgroups.host(settings, host.name), True)


@fault("resume", help="undo pause")
def resume(settings: Settings, host: Host, args: list[str]) -> None:
    """Thaw."""
    machine.leader(settings, host.name)
    cgroups.freeze(cgroups.host(settings, host.name), False)


@fault("unplug", help="pull the network cable: no route to host", undo="plug")
def unplug(settings: Settings, host: Host, args: list[str]) -> None:
    """Switch the bridge's end of the cable off."""
    network.set_link(_port(settings, host), up=False)


@fault("plug", help="undo unplug")
def plug(settings: Settings, host: Host, args: list[str]) -> None:
    """Switch it on again."""
    network.set_link(_port(settings, host), up=True)


def _port(settings: Settings, host: Host) -> str:
    # /sys is another namespace's inside; the host's own view has the peer's index
    status = machine.call(settings, host.name, "cat", "/sys/class/net/host0/iflink", what="look")
    return network.port_of(settings, int(status))


@fault(
    "fill-disk",
    "[KB]",
    help=f"fill the file system of {MODEL_FOLDER} but for KB kilobytes (default 0)",
    undo="free-disk",
)
def fill_disk(settings: Settings, host: Host, args: list[str]) -> None:
    """Real blocks are taken, so that every writer meets ENOSPC."""
    left = number(args[0], "KB") if args else 0
    # fallocate is quick but refuses the last blocks, which it needs itself to note the others
    text = """
    file="$1/.filled-by-hand"; rm -f "$file"; sync "$1"
    size=$(($(df --output=avail -k "$1" | tail -1) - $2))
    if [ "$size" -gt 4096 ]; then fallocate -l "$((size - 4096))K" "$file"; size=4096; fi
    if [ "$size" -gt 0 ]; then
        dd if=/dev/zero bs=1k count="$size" oflag=append conv=notrunc of="$file" status=none || true
    fi
    """
    script(settings, host, text, MODEL_FOLDER, str(left), what=f"fill {MODEL_FOLDER}")


@fault("free-disk", help="undo fill-disk")
def free_disk(settings: Settings, host: Host, args: list[str]) -> None:
    """Delete the filler."""
    script(settings, host, 'rm -f "$1/.filled-by-hand"', MODEL_FOLDER, what=f"free {MODEL_FOLDER}")
