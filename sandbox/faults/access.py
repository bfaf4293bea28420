"""Logging in: keys, host keys, sudo, connections that end."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from sandbox import cgroups, lab, state
from sandbox.faults import fault, script
from sandbox.settings import Settings
from sandbox.state import Host

PASSWORD = "sandbox"  # of a throw-away user that cannot log in with one


@fault(
    "hostkey",
    help="make a new ssh host key, as a reinstalled machine or an impostor has",
    undo="trust-hostkey",
)
def hostkey(settings: Settings, host: Host, args: list[str]) -> None:
    """The sandbox's known_hosts keeps the old one."""
    text = """
    rm -f /etc/ssh/ssh_host_*
    ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
    systemctl restart ssh
    """
    script(settings, host, text, what="change the host key")


@fault("trust-hostkey", help="undo hostkey: put the present key into the sandbox's known_hosts")
def trust_hostkey(settings: Settings, host: Host, args: list[str]) -> None:
    """Write known_hosts anew."""
    found = state.load(settings)
    if found:
        lab.write_known_hosts(settings, found)


@fault("lock-out", help="take the login key away: permission denied", undo="let-in")
def lock_out(settings: Settings, host: Host, args: list[str]) -> None:
    """For both users."""
    text = """
    for file in /root/.ssh/authorized_keys /home/ops/.ssh/authorized_keys; do
        if [ -e "$file" ]; then mv "$file" "$file.locked"; fi
    done
    """
    script(settings, host, text, what="take the login key away")


@fault("let-in", help="undo lock-out")
def let_in(settings: Settings, host: Host, args: list[str]) -> None:
    """For both users."""
    text = """
    for file in /root/.ssh/authorized_keys /home/ops/.ssh/authorized_keys; do
        if [ -e "$file.locked" ]; then mv "$file.locked" "$file"; fi
    done
    """
    script(settings, host, text, what="give the login key back")


@fault(
    "sudo-password",
    help=f"make sudo ask ops for a password (it is {PASSWORD!r})",
    undo="sudo-free",
)
def sudo_password(settings: Settings, host: Host, args: list[str]) -> None:
    """As a default installation has it."""
    text = """
    echo "ops:$1" | chpasswd
    echo 'ops ALL=(ALL:ALL) ALL' > /etc/sudoers.d/ops
    """
    script(settings, host, text, PASSWORD, what="make sudo ask for a password")


@fault("sudo-free", help="undo sudo-password")
def sudo_free(settings: Settings, host: Host, args: list[str]) -> None:
    """Without a password again."""
    text = "echo 'ops ALL=(ALL:ALL) NOPASSWD: ALL' > /etc/sudoers.d/ops"
    script(settings, host, text, what="let sudo be free")


@fault("kill-connections", help="end every ssh connection that is open now")
def kill_connections(settings: Settings, host: Host, args: list[str]) -> None:
    """SIGKILL to the processes of the sessions; the listener stays."""
    for pid in cgroups.processes(cgroups.host(settings, host.name)):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            # OpenSSH renames its processes: "sshd: ops@notty", from 9.8 on "sshd-session: ..."
            session = words.startswith(("sshd-session", "sshd: "))
            if session and "[listener]" not in words:
                os.kill(pid, signal.SIGKILL)
