"""Units and packages, changed by hand."""

from __future__ import annotations

from sandbox.faults import fault, number, script
from sandbox.settings import Settings
from sandbox.state import Host

# apt and dpkg take POSIX locks (fcntl), which flock(1) does not; perl is in every Debian. It
# runs as a transient unit so that it outlives this command and is easy to end.
HOLD = """
use Fcntl qw(F_SETLKW F_WRLCK SEEK_SET);
$0 = "unattended-upgr";
for my $name ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock") {
    open(my $file, ">>", $name) or die "$name: $!";
    my $whole = pack("s s x4 l! l! i x4", F_WRLCK, SEEK_SET, 0, 0, 0);  # struct flock
    fcntl($file, F_SETLKW, $whole) or die "$name: $!";
    push @open, $file;
}
print "held\\n"; close STDOUT;
sleep $ARGV[0];
"""
LOCK_UNIT = "sandbox-apt-lock.service"


@fault("stop", "UNIT", help="stop a unit")
def stop(settings: Settings, host: Host, args: list[str]) -> None:
    """Systemctl stop."""
    script(settings, host, 'systemctl stop "$1"', *args, what=f"stop {args[0]}")


@fault("disable", "UNIT", help="disable a unit, leaving it running")
def disable(settings: Settings, host: Host, args: list[str]) -> None:
    """Systemctl disable."""
    script(settings, host, 'systemctl disable "$1"', *args, what=f"disable {args[0]}")


@fault("mask", "UNIT", help="stop and mask a unit", undo="unmask")
def mask(settings: Settings, host: Host, args: list[str]) -> None:
    """Mask a unit as an admin does who wants it never to start again.

    `systemctl mask` refuses a unit whose file lies in /etc; moving that aside is the same as what
    people do by hand.
    """
    text = """
    file="/etc/systemd/system/$1"
    if [ -f "$file" ] && [ ! -L "$file" ]; then mv "$file" "$file.masked-by-hand"; fi
    systemctl mask --now "$1"
    """
    script(settings, host, text, *args, what=f"mask {args[0]}")


@fault("unmask", "UNIT", help="undo mask")
def unmask(settings: Settings, host: Host, args: list[str]) -> None:
    """Systemctl unmask."""
    text = """
    systemctl unmask "$1"
    file="/etc/systemd/system/$1"
    if [ -f "$file.masked-by-hand" ]; then mv "$file.masked-by-hand" "$file"; fi
    systemctl daemon-reload
    """
    script(settings, host, text, *args, what=f"unmask {args[0]}")


@fault("remove-package", "PACKAGE", help="remove one package and nothing that needs it")
def remove_package(settings: Settings, host: Host, args: list[str]) -> None:
    """With dpkg, because apt would take the packages along that depend on it."""
    text = 'dpkg-query -W "$1" > /dev/null; dpkg --remove --force-depends "$1"'
    script(settings, host, text, *args, what=f"remove {args[0]}")


@fault("remove-python", help="remove every python3 package, as on a bare host")
def remove_python(settings: Settings, host: Host, args: list[str]) -> None:
    """Remove by name whatever is installed of it."""
    text = """
    names=$(dpkg-query -W -f '${Package} ' 'python3*' 'libpython3*' | tr ' ' '\\n' | sort -u)
    dpkg --purge --force-depends $names
    ! command -v python3
    """
    script(settings, host, text, what="remove python3")


@fault(
    "hold-apt-lock",
    "[SECONDS]",
    help="hold dpkg's locks as a background upgrade does (default 600 s)",
    undo="release-apt-lock",
)
def hold_apt_lock(settings: Settings, host: Host, args: list[str]) -> None:
    """Take both locks and keep them; returns when they are held."""
    seconds = number(args[0], "SECONDS") if args else 600
    text = """
    pipe=$(mktemp -u); mkfifo "$pipe"
    systemd-run --quiet --collect --unit="$1" -p StandardOutput="file:$pipe" perl -e "$2" "$3"
    timeout 20 grep -q held "$pipe"; rm "$pipe"
    """
    what = "hold the apt lock"
    script(settings, host, text, LOCK_UNIT, HOLD, str(seconds), what=what)


@fault("release-apt-lock", help="undo hold-apt-lock")
def release_apt_lock(settings: Settings, host: Host, args: list[str]) -> None:
    """End the holder."""
    script(settings, host, 'systemctl stop "$1"', LOCK_UNIT, what="release the apt lock")
