"""A shell script on a host, for what must be done before the agent can run there.

It goes the agent's way (`facts.remote`): the password of sudo on sudo's standard input, lines as
they come, and an end line without which the answer is incomplete and counts for nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

import gevent
from pyinfra.api.host import Host

from facts import remote

END = "voltfleet: ended with "
KILL_AFTER_S = 30  # between asking a script to end and ending it


def shell(
    host: Host,
    name: str,
    script: str,
    *,
    timeout_s: int,
    on_line: Callable[[str], None] | None = None,
) -> tuple[int, list[str]]:
    """Run a POSIX sh script with a host's privileges: its exit status and its lines.

    `name` is what it does, for messages. The lines are those of output and errors together, empty
    ones left out; `on_line` sees each as it comes. Where the host has ``timeout`` the script is
    ended there after `timeout_s` seconds, with status 124. Raises `RemoteError`.
    """
    limit_s = timeout_s + KILL_AFTER_S + remote.GRACE_S
    slow = remote.RemoteError(f"no end of {name} within {limit_s} s; the host or its disk hangs")
    channel = remote.Channel(host, name, command(script, timeout_s))
    lines: list[str] = []
    try:
        with gevent.Timeout(limit_s, exception=slow):
            channel.end_input()
            while (line := channel.read_text()) is not None:
                if line.startswith(END):
                    return int(line.removeprefix(END)), lines
                if line.strip():
                    lines.append(line)
                    if on_line is not None:
                        on_line(line)
            raise remote.RemoteError(channel.why_it_ended())
    finally:
        channel.close()


def command(script: str, timeout_s: int) -> str:
    """The shell command for a script: bounded, with an empty line as sign of life, and an end."""
    return "\n".join(
        (
            "{ while sleep 10 >/dev/null 2>&1; do echo; done; } &",
            "beat=$!",
            f"set -- sh -c {shlex.quote(script)}",
            f"bound='timeout -k {KILL_AFTER_S} {timeout_s}'",
            '$bound true 2>/dev/null && set -- $bound "$@"',
            '"$@" </dev/null 2>&1',
            "status=$?",
            "kill $beat",
            # on a line of its own, whatever the script's last output was
            f"printf '\\n{END}%d\\n' $status",
        )
    )
