"""Files, links and the system's own description, changed by hand."""

from __future__ import annotations

from sandbox.faults import fault, script
from sandbox.settings import Settings
from sandbox.state import Host


@fault("edit-file", "PATH", help="add a line to a file")
def edit_file(settings: Settings, host: Host, args: list[str]) -> None:
    """Append a comment line."""
    text = 'test -f "$1"; echo "# edited by hand" >> "$1"'
    script(settings, host, text, *args, what=f"edit {args[0]}")


@fault("chmod-file", "PATH", "[MODE]", help="change a file's mode (default: toggle g+w)")
def chmod_file(settings: Settings, host: Host, args: list[str]) -> None:
    """Set a mode, or flip the group's write bit."""
    text = """
    if [ $# -gt 1 ]; then chmod "$2" "$1"
    elif [ -n "$(find -L "$1" -maxdepth 0 -perm /020)" ]; then chmod g-w "$1"
    else chmod g+w "$1"; fi
    """
    script(settings, host, text, *args, what=f"change the mode of {args[0]}")


@fault("chown-file", "PATH", "[OWNER]", help="give a file away (default owner: ops)")
def chown_file(settings: Settings, host: Host, args: list[str]) -> None:
    """Change the owner."""
    text = 'chown "${2:-ops}" "$1"'
    script(settings, host, text, *args, what=f"change the owner of {args[0]}")


@fault("delete-file", "PATH", help="delete a file or link")
def delete_file(settings: Settings, host: Host, args: list[str]) -> None:
    """Remove it; it must exist."""
    script(settings, host, 'rm "$1"', *args, what=f"delete {args[0]}")


@fault("truncate", "PATH", help="cut a file to half its size")
def truncate(settings: Settings, host: Host, args: list[str]) -> None:
    """Half a model is what an interrupted copy leaves."""
    text = 'size=$(stat -L -c %s "$1"); truncate -s $((size / 2)) "$1"'
    script(settings, host, text, *args, what=f"truncate {args[0]}")


@fault("flip-byte", "PATH", "[OFFSET]", help="change one byte, keeping size and times")
def flip_byte(settings: Settings, host: Host, args: list[str]) -> None:
    """Flip all bits of one byte (default: the middle one), as a dying disk does."""
    text = """
    size=$(stat -L -c %s "$1"); at=${2:-$((size / 2))}
    test "$at" -lt "$size"
    times=$(mktemp); touch -r "$1" "$times"
    old=$(od -An -tu1 -j "$at" -N1 "$1" | tr -d ' ')
    printf "\\\\$(printf %o $((255 - old)))" | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
    touch -r "$times" "$1"; rm "$times"
    """
    script(settings, host, text, *args, what=f"flip a byte of {args[0]}")


@fault("move-link", "PATH", "[TARGET]", help="point a symbolic link elsewhere")
def move_link(settings: Settings, host: Host, args: list[str]) -> None:
    """Point it at TARGET (default: its old target with .moved added)."""
    text = 'old=$(readlink "$1"); ln -sfn "${2:-$old.moved}" "$1"'
    script(settings, host, text, *args, what=f"move the link {args[0]}")


@fault("unsupported-os", help="claim to be another system in /etc/os-release", undo="supported-os")
def unsupported_os(settings: Settings, host: Host, args: list[str]) -> None:
    """A system on which nothing here was ever tried."""
    text = """
    rm -f /etc/os-release
    printf '%s\\n' 'PRETTY_NAME="Slackware 15.0"' 'NAME=Slackware' 'ID=slackware' \\
        'VERSION="15.0"' 'VERSION_ID=15.0' 'VERSION_CODENAME=stable' > /etc/os-release
    """
    script(settings, host, text, what="change /etc/os-release")


@fault("supported-os", help="undo unsupported-os")
def supported_os(settings: Settings, host: Host, args: list[str]) -> None:
    """Debian's own link again."""
    text = "ln -sf ../usr/lib/os-release /etc/os-release"
    script(settings, host, text, what="restore /etc/os-release")
