"""Loop devices: the hosts' model disks make the kernel add some, and ``down`` takes them back.

Attaching and detaching is mount's and the kernel's; only the empty device nodes would stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
from pathlib import Path

LOOP_CTL_REMOVE = 0x4C81  # linux/loop.h


def present() -> list[int]:
    """Numbers of the loop devices that exist, in use or not."""
    names = (re.fullmatch(r"loop(\d+)", path.name) for path in Path("/sys/block").iterdir())
    return sorted(int(name[1]) for name in names if name)


def remove_new(before: list[int]) -> None:
    """Remove idle loop devices that were not there before; one in use stays."""
    if not before:
        return
    new = [number for number in present() if number not in before]
    with contextlib.suppress(FileNotFoundError), open("/dev/loop-control", "rb") as control:
        for number in reversed(new):
            with contextlib.suppress(OSError):  # in use by somebody
                fcntl.ioctl(control, LOOP_CTL_REMOVE, number)
