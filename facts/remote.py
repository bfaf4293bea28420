"""One command on a host, answered in JSON lines: how the controller talks to the agent.

pyinfra's own ``run_shell_command`` returns only when the command has ended, and asks for a sudo
password on the terminal of whoever started the run. Builds and downloads take minutes and must
show progress, a lease stays open for the whole run, and a run without a terminal must not wait
for a password; so this module opens the channel itself, over the connection pyinfra made. What
it uses of pyinfra and paramiko is held by ``tests/unit/test_pyinfra_contract.py``.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, cast

import gevent
from paramiko import SSHException
from pyinfra.api.arguments import (
    CONNECTOR_ARGUMENT_KEYS,
    ConnectorArguments,
    pop_global_arguments,
)
from pyinfra.api.command import StringCommand
from pyinfra.api.host import Host
from pyinfra.connectors.local import LocalConnector
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.connectors.util import extract_control_arguments, make_unix_command_for_host

from facts import bundle

Line = Mapping[str, Any]

# Seconds a host may take to start a command, and beyond its own bound to end it.
GRACE_S = 30
# Seconds without a line: the agent sends one every 10 s whatever it does. A host whose kernel
# answers while its programs stand still (a frozen machine, a dead disk) is found only so.
SILENCE_S = 90
# Exit statuses of `timeout` and of a process that was killed.
TIMED_OUT, KILLED = 124, 137
CHUNK = 256 * 1024  # bytes of a file sent at a time
SUDO_SECRET_KEY = "voltfleet_sudo_password"  # noqa: S105  key in connector data

SUDO_NEEDS_PASSWORD = ("a password is required", "a terminal is required")
SUDO_WRONG_PASSWORD = ("incorrect password", "Sorry, try again", "no password was provided")


class RemoteError(Exception):
    """The agent gave no usable answer. The message is one sentence without the host's name."""


class Channel:
    """A command that runs on a host: write to its standard input, read its lines.

    `verb` is what it does, for messages; `sent` is what its standard input begins with.
    """

    def __init__(self, host: Host, verb: str, command: str, sent: bytes = b"") -> None:
        self._host = host
        self._verb = verb
        self._errors: list[str] = []
        command, password = _for_host(host, command)
        self._close: Callable[[], None] = lambda: None
        self._exit_status: Callable[[], int] = lambda: -1  # -1: not known
        self._stdin: IO[bytes]
        self._stdout: IO[bytes]
        slow = RemoteError(f"did not start {verb} within {GRACE_S} s; the host or its disk hangs")
        try:
            with gevent.Timeout(GRACE_S, exception=slow):
                if isinstance(host.connector, SSHConnector):
                    self._open_ssh(host.connector, command)
                elif isinstance(host.connector, LocalConnector):
                    self._open_local(command)
                else:
                    raise RemoteError(
                        "is reached by a connector that is not supported; reach it over ssh, or "
                        "use @local"
                    )
                self._write_all([*password, sent])
        except (OSError, EOFError, SSHException) as error:
            self.close()
            raise RemoteError(f"the connection failed while starting {verb}: {error}") from error
        except RemoteError:
            self.close()
            raise

    def _open_ssh(self, connector: SSHConnector, command: str) -> None:
        client = connector.client
        transport = client.get_transport() if client is not None else None
        if transport is None or not transport.is_active():
            raise RemoteError("the connection was lost; run again to go on where it stopped")
        channel = transport.open_session(timeout=GRACE_S)
        self._close = channel.close
        channel.exec_command(command)
        self._stdin = cast(IO[bytes], channel.makefile_stdin("wb", 0))
        self._stdout = cast(IO[bytes], channel.makefile("rb", -1))
        stderr = channel.makefile_stderr("rb", -1)
        self._reader = gevent.spawn(self._read_errors, stderr)
        self._shutdown = channel.shutdown_write
        self._exit_status = lambda: channel.exit_status if channel.exit_status_ready() else -1

    def _open_local(self, command: str) -> None:
        process = subprocess.Popen(  # the same string that ssh would be given
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RemoteError("no pipe to the local agent")  # cannot happen: asked for above
        self._stdin, self._stdout = process.stdin, process.stdout
        self._reader = gevent.spawn(self._read_errors, process.stderr)
        self._shutdown = process.stdin.close
        self._exit_status = lambda: -1 if process.poll() is None else process.returncode

        def close() -> None:
            if process.poll() is None:
                process.kill()
            process.wait()

        self._close = close

    def _read_errors(self, stream: IO[bytes]) -> None:
        for raw in stream:
            self._errors.append(raw.decode("utf-8", "replace").strip())
            del self._errors[:-50]

    def _write_all(self, chunks: Iterable[bytes]) -> None:
        for chunk in chunks:
            self._stdin.write(chunk)
        self._stdin.flush()

    def write(self, chunks: Iterable[bytes]) -> None:
        """Send bytes to the agent's standard input."""
        try:
            self._write_all(chunks)
        except (OSError, EOFError) as error:
            raise RemoteError(self.why_it_ended()) from error

    def end_input(self) -> None:
        """Close the agent's standard input."""
        try:
            self._shutdown()
        except (OSError, EOFError):
            return  # the reader finds out and says why

    def read_text(self) -> str | None:
        """The next line as it is, without its newline; None at the end."""
        silent = RemoteError(
            f"said nothing for {SILENCE_S} s during {self._verb}; the host or its disk hangs"
        )
        try:
            with gevent.Timeout(SILENCE_S, exception=silent):
                raw = self._stdout.readline()
        except (OSError, EOFError) as error:
            raise RemoteError(self.why_it_ended()) from error
        return raw.decode("utf-8", "replace").rstrip("\r\n") if raw else None

    def read(self) -> Line | None:
        """The next line of the agent's answer; None at its end."""
        text = self.read_text()
        if text is None:
            return None
        try:
            line = json.loads(text)
        except ValueError as error:
            raise RemoteError(
                f"the agent answered {self._verb} with {text.strip()[:200]!r}, expected JSON; "
                "something on the host prints into non-interactive shells: silence it (~/.bashrc, "
                "sshrc)"
            ) from error
        if not isinstance(line, dict):
            raise RemoteError(f"the agent answered {self._verb} with {line!r}, expected an object")
        return line

    def close(self) -> None:
        """Give the channel back; a lease ends with it. Nothing is read or written afterwards."""
        self._close()
        # paramiko's files flush themselves when they are collected. Left to the collector of cycles
        # (this object is in the traceback of an exception) that fails, and prints a traceback.
        for name in ("_stdin", "_stdout"):
            vars(self).pop(name, None)

    def why_it_ended(self) -> str:
        """One sentence on why the agent stopped talking, from what it left on standard error."""
        self._reader.join(timeout=1)
        text = " ".join(line for line in self._errors if line)
        if any(sign in text for sign in SUDO_NEEDS_PASSWORD):
            return (
                "sudo asked for a password and none was given: allow this user to use sudo "
                "without one, or run with --same-sudo-password, which asks for it once"
            )
        if any(sign in text for sign in SUDO_WRONG_PASSWORD):
            return "sudo refused the password that was given: give the right one"
        if "is not in the sudoers file" in text or "may not run sudo" in text:
            return f"this user may not use sudo ({text[-200:]}): log in as root or allow sudo"
        status = self._exit_status()
        if status == TIMED_OUT:
            return f"the agent's {self._verb} was stopped at its time limit"
        if status == KILLED:
            return (
                f"the agent's {self._verb} was killed: by its time limit, by hand, or by the "
                "kernel for want of memory (see the kernel's log)"
            )
        if text:
            return f"the agent's {self._verb} ended without an answer: {text[-300:]}"
        return (
            f"the connection was lost during {self._verb}; nothing is half done that the next "
            "run does not finish: run again"
        )


def agent(host: Host, verb: str, request: Mapping[str, Any], timeout_s: int) -> Channel:
    """A verb of the agent, started on a host and given its request. Raises `RemoteError`."""
    sent = bundle.payload(request, verb).encode()
    return Channel(host, verb, bundle.command(verb, timeout_s), sent)


def call(
    host: Host,
    verb: str,
    request: Mapping[str, Any],
    *,
    timeout_s: int,
    on_line: Callable[[Line], None] | None = None,
    tail: Iterable[bytes] = (),
    keep: bool = True,
) -> list[Line]:
    """Run one verb of the agent on a host and return the lines of its answer, end line left out.

    `on_line` sees each line as it comes; `tail` is sent after the request (a file's bytes).
    `timeout_s` bounds the agent on the host. Raises `RemoteError`, also when the answer lacks its
    end line: an incomplete answer never counts. With `keep` false lines are only shown to
    `on_line`, not collected: an answer that carries a file would fill the memory.
    """
    channel = agent(host, verb, request, timeout_s)
    lines: list[Line] = []
    limit_s = timeout_s + GRACE_S
    # The agent bounds itself; this bound is for a host that stopped answering altogether.
    slow = RemoteError(f"no answer to {verb} within {limit_s} s; the host or its network hangs")
    try:
        with gevent.Timeout(limit_s, exception=slow):
            cut: RemoteError | None = None
            try:
                channel.write(tail)
            except RemoteError as error:
                cut = error  # the agent may have refused what it was sent, and said why
            channel.end_input()
            while (line := channel.read()) is not None:
                if "alive" in line:
                    continue
                if "end" in line:
                    if not line.get("ok", False):
                        raise RemoteError(str(line.get("message") or f"{verb} failed"))
                    return lines
                if on_line is not None:
                    on_line(line)
                if keep:
                    lines.append(line)
            raise cut or RemoteError(channel.why_it_ended())
    finally:
        channel.close()


def connected(host: Host) -> bool:
    """Whether the ssh connection of a host is still there, as far as this side knows."""
    client = host.connector.client if isinstance(host.connector, SSHConnector) else None
    transport = client.get_transport() if client is not None else None
    return transport is not None and transport.is_active()


def reconnect(host: Host) -> None:
    """Connect to a host anew; raises pyinfra's ConnectError. What was open before is closed."""
    if isinstance(host.connector, SSHConnector) and host.connector.client is not None:
        host.connector.client.close()
    host.connected = False
    host.connect(reason="again", show_errors=False, raise_exceptions=True)


def _for_host(host: Host, command: str) -> tuple[str, list[bytes]]:
    """The command wrapped in sudo or su as this host's data (or the running operation) asks.

    With a sudo password the second value is what sudo reads first from standard input: pyinfra
    itself would put the password into the command, where every user of the host can read it.
    """
    given = dict(host.current_op_global_arguments or {})
    arguments, _ = pop_global_arguments(host.state, host, given)
    connector_arguments: dict[str, Any] = {
        key: value for key, value in arguments.items() if key in CONNECTOR_ARGUMENT_KEYS
    }
    extract_control_arguments(cast(ConnectorArguments, connector_arguments))
    password = connector_arguments.pop("_sudo_password", None)
    # Hidden from make_unix_command_for_host, which would take it from there.
    prompted = host.connector_data.pop("prompted_sudo_password", None)
    password = password or prompted or host.connector_data.get(SUDO_SECRET_KEY)
    wrapped = make_unix_command_for_host(
        host.state, host, StringCommand(command), **connector_arguments
    ).get_raw_value()
    if not (connector_arguments.get("_sudo") and password):
        return str(wrapped), []
    host.connector_data[SUDO_SECRET_KEY] = password
    asking = wrapped.replace("sudo -H -n", "sudo -H -S -k -p ''", 1)
    if asking == wrapped:
        raise RemoteError("pyinfra builds its sudo command differently now: see the contract test")
    return asking, [f"{password}\n".encode()]
