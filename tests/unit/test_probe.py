"""The real probe on this machine, through the real command."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from facts import bundle
from files.agent import probe, probe_serving, probe_tools
from tests.unit.agent_host import altered, ask, fake_tool, start
from tests.unit.agent_host import probe as asked

SHOWN = """Id={0}
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
NeedDaemonReload=no
MainPID={1}
"""


def test_what_is_not_there_is_null(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    (tmp_path / "file").touch()
    below_a_file = str(tmp_path / "file" / "x")
    state = asked(
        {
            "files": {gone: {"sha256": "0" * 64, "secret": False}, below_a_file: {}},
            "directories": [gone],
            "links": [gone],
            "groups": ["no-such-group"],
            "users": ["no-such-user"],
            "sysctls": ["no.such.key"],
            "modules": ["no-such-module"],
            "releases": {gone: ["f1"]},
            "models": {"m": {"root": gone, "revision": "r", "files": {}}},
        }
    )
    assert state["files"] == {gone: None, below_a_file: None}
    assert state["directories"] == state["links"] == {gone: None}
    assert state["groups"] == {"no-such-group": None}
    assert state["users"] == {"no-such-user": None}
    assert state["sysctls"] == {"no.such.key": None}
    assert state["modules"] == {"no-such-module": {"loaded": False, "options": {}}}
    assert state["releases"][gone]["current"] is None
    assert state["models"]["m"]["current"] is None


def test_what_is_there_is_described(tmp_path: Path) -> None:
    file, link, folder = tmp_path / "f", tmp_path / "l", tmp_path / "d"
    file.write_bytes(b"text\n")
    file.chmod(0o640)
    link.symlink_to("f")
    folder.mkdir(mode=0o750)
    state = asked(
        {
            "files": {str(file): {"sha256": "0" * 64, "secret": False}},
            "directories": [str(folder), str(file)],
            "links": [str(link)],
            "users": ["root"],
            "groups": ["root"],
            "sysctls": ["kernel.ostype"],
            "free_space": [str(tmp_path / "not" / "yet")],
        }
    )
    owner = {"owner": file.owner(), "group": file.group()}
    for part, path in (("files", file), ("directories", folder), ("links", link)):
        assert state[part][str(path)].pop("changed_at") == path.lstat().st_ctime
    assert state["files"][str(file)] == {
        "kind": "file",
        "mode": "0640",
        "sha256": hashlib.sha256(b"text\n").hexdigest(),
        "size": 5,
        "text": "text\n",
        **owner,
    }
    assert state["directories"][str(folder)] == {"kind": "directory", "mode": "0750", **owner}
    assert state["directories"][str(file)]["kind"] == "file"
    assert state["links"][str(link)]["target"] == "f"
    assert state["users"]["root"]["uid"] == 0
    assert state["groups"]["root"] == {"gid": 0}
    assert state["sysctls"]["kernel.ostype"] == {"value": "Linux"}
    assert state["free_space"][str(tmp_path / "not" / "yet")]["bytes"] > 0
    assert state["system"]["uid"] == os.getuid()
    assert state["system"]["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert state["system"]["memory_bytes"] > state["system"]["memory_available_bytes"] > 0
    assert set(state["parts"]) == set(state) - {"parts"}


def test_everything_asked_is_answered_and_nothing_else() -> None:
    state = asked({"files": {}, "releases": {}, "models": {}, "packages": []})
    for part in ("files", "directories", "packages", "units", "releases", "models", "instances"):
        assert state[part] == {}, part


@pytest.mark.parametrize(
    "script",
    [
        "sleep 300",
        "trap '' TERM INT HUP; while :; do sleep 300; done",
    ],
)
def test_a_hanging_tool_costs_only_its_part(tmp_path: Path, script: str) -> None:
    pids = tmp_path / "pids"
    fake_tool(tmp_path / "bin", "systemctl", f"echo $$ >{pids}\n{script}")
    state = asked(
        {"deadline_s": 2, "units": ["a.service"], "users": ["root"]}, path=str(tmp_path / "bin")
    )
    assert state["units"] == {"unknown": "systemctl timed out after 1.7 s"}
    assert state["users"]["root"]["uid"] == 0
    # the tool and what it started are gone with it
    assert group_of(int(pids.read_text())) == []


def group_of(number: int) -> list[str]:
    """The processes of a group, as the kernel describes them, but for those already dead."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (name) state parent group …, see proc_pid_stat(5)
            state, _, group, *_ = path.read_text().rpartition(")")[2].split()
            if int(group) == number and state not in "ZX":
                found.append(path.read_text())
    return found


def test_a_tool_that_leaves_its_group_is_not_waited_for(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    escaped = f"setsid sh -c 'echo $$ >{pids}; exec sleep 300' & sleep 300"
    fake_tool(tmp_path / "bin", "systemctl", escaped)
    state = asked({"deadline_s": 2, "units": ["a.service"]}, path=str(tmp_path / "bin"))
    os.kill(int(pids.read_text()), 9)
    assert state["units"] == {"unknown": "systemctl timed out after 1.7 s"}


def hanging(names: str) -> dict[str, bytes]:
    """An agent that hangs, as on a dead network mount, on paths with one of these names."""
    return altered(
        "probe_paths.py",
        "    try:\n        return os.lstat(path)",
        f"    if os.path.basename(path) in {names!r}.split():\n"
        "        import time; time.sleep(300)\n"
        "    try:\n        return os.lstat(path)",
    )


def test_a_hanging_path_costs_only_itself() -> None:
    state = asked(
        {
            "deadline_s": 2,
            "files": {"/x/dead1": {}, "/x/dead2": {}, "/x/gone": {}, "/etc/passwd": {}},
            "directories": ["/"],
        },
        files=hanging("dead1 dead2"),
    )
    late = {"unknown": "timed out after 1.9 s"}
    assert state["files"]["/x/dead1"] == state["files"]["/x/dead2"] == late
    assert state["files"]["/x/gone"] is None
    assert state["files"]["/etc/passwd"]["kind"] == "file"
    assert state["directories"]["/"]["kind"] == "directory"
    assert state["parts"]["files"] == {"seconds": 1.9}


def test_more_hanging_paths_than_threads_still_end_in_time() -> None:
    paths: dict[str, Any] = {f"/{number}/dead": {} for number in range(20)}
    state = asked({"deadline_s": 1, "files": paths}, files=hanging("dead"))
    assert state["files"] == {path: {"unknown": "timed out after 0.95 s"} for path in paths}


def test_a_pipe_in_place_of_a_file_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = str(tmp_path / "pipe")
    assert asked({"files": {path: {}}})["files"][path]["kind"] == "fifo"


def test_units_are_told_apart(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    environment = {"VOLTFLEET_STAMP": "abc", "OTHER": "x\nVOLTFLEET_STAMP=wrong"}
    began = time.time()
    process = subprocess.Popen([program, "300"], env=environment)
    shown = SHOWN.format("a.service", process.pid) + "\n"
    shown += SHOWN.format("ended.service", 2**22 + 1) + "\n"
    shown += SHOWN.format("other.service", os.getpid()) + "\n"
    shown += (
        SHOWN.format("masked.service", 0).replace("loaded", "masked").replace("=enabled", "=masked")
    )
    shown += "\nId=gone.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\n"
    shown += "UnitFileState=\nNeedDaemonReload=no\nMainPID=0\n"
    shown += "\n" + SHOWN.format("left.service", 0).replace("loaded", "not-found")
    (tmp_path / "shown").write_text(shown)
    fake_tool(
        tmp_path / "bin",
        "systemctl",
        f"printf '%s\\n' \"$@\" >{tmp_path}/args; cat {tmp_path}/shown",
    )
    names = ["a", "ended", "other", "masked", "gone", "left", "of@"]
    question = {"units": [f"{name}.service" for name in names]}
    units = asked(question, path=str(tmp_path / "bin"))["units"]
    # of a process that was started by this test; the clock of processes ticks every 10 ms
    assert began - 0.1 <= units["a.service"].pop("started_at") <= time.time() + 0.1
    assert units["a.service"] == {
        "load": "loaded",
        "active": "active",
        "sub": "running",
        "enabled": "enabled",
        "need_reload": False,
        "pid": process.pid,
        "stamp": "abc",
        "exe_deleted": False,
    }
    assert (units["ended.service"]["stamp"], units["ended.service"]["exe_deleted"]) == (None, False)
    assert units["other.service"]["stamp"] is None
    assert (units["masked.service"]["load"], units["masked.service"]["enabled"]) == (
        "masked",
        "masked",
    )
    assert units["gone.service"] is None
    assert units["left.service"]["load"] == "not-found"  # its file is gone, its process is not
    assert "template" in units["of@.service"]["unknown"]
    assert "of@.service" not in (tmp_path / "args").read_text()
    program.unlink()
    again = asked(question, path=str(tmp_path / "bin"))["units"]["a.service"]
    assert again["exe_deleted"] is True
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'Failed to connect to bus: Host is down' >&2; exit 1",
            "systemctl failed with 1: Failed to connect to bus: Host is down",
        ),
        ("echo Id=a.service", "systemctl failed with 0: no message"),
    ],
)
def test_a_failing_tool_is_not_an_absent_unit(tmp_path: Path, script: str, reason: str) -> None:
    fake_tool(tmp_path / "bin", "systemctl", script)
    state = asked({"units": ["a.service", "b.service"]}, path=str(tmp_path / "bin"))
    assert state["units"] == {"unknown": reason}


def test_packages_of_a_host(tmp_path: Path) -> None:
    said = "held\tamd64\t1:2-3\thold ok installed\nhalf\tall\t1\tinstall ok half-configured\n"
    (tmp_path / "said").write_text(said)
    fake_tool(
        tmp_path / "bin",
        "dpkg-query",
        f"echo call >>{tmp_path}/calls; cat {tmp_path}/said\n"
        "echo 'dpkg-query: no packages found matching nope' >&2; exit 1",
    )
    state = asked({"packages": ["held", "half", "nope"]}, path=str(tmp_path / "bin"))
    assert state["packages"] == {
        "held": {"version": "1:2-3", "status": "installed", "held": True},
        "half": {"version": "1", "status": "half-configured", "held": False},
        "nope": None,
    }
    assert (tmp_path / "calls").read_text() == "call\n"


def test_a_failing_dpkg_is_not_an_absent_package(tmp_path: Path) -> None:
    fake_tool(tmp_path / "bin", "dpkg-query", "echo 'dpkg-query: error: no database' >&2; exit 2")
    state = asked({"packages": ["bash"]}, path=str(tmp_path / "bin"))
    assert state["packages"] == {
        "unknown": "dpkg-query failed with 2: dpkg-query: error: no database"
    }


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs the system's python3")
def test_what_may_not_be_read_is_unknown_not_absent(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "file").touch()
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    state = asked(
        {"files": {str(closed / "file"): {}, str(secret): {}}, "directories": [f"{closed}/x"]},
        env={"PATH": "/usr/bin:/bin"},
        user="nobody",
        group="nogroup",
        extra_groups=[],
        cwd="/",
    )
    for path in (str(closed / "file"), str(secret)):
        assert state["files"][path] == {"unknown": f"{path}: Permission denied"}
    assert "Permission denied" in state["directories"][f"{closed}/x"]["unknown"]


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_port
        running.shutdown()


def test_servers(server: int) -> None:
    mute, closed = socket.socket(), socket.socket()
    for one in (mute, closed):
        one.bind(("127.0.0.1", 0))
    mute.listen()

    def instance(port: int, host: str = "127.0.0.1") -> dict[str, Any]:
        return {"unit": "x.service", "host": host, "port": port}

    state = asked(
        {
            "instances": {
                "here": instance(server),
                "everywhere": instance(server, "0.0.0.0"),
                "mute": instance(mute.getsockname()[1]),
                "down": instance(closed.getsockname()[1]),
                "odd": {"host": "127.0.0.1"},
            }
        }
    )
    mute.close()
    closed.close()
    assert state["instances"] == {
        "here": {"listening": True, "health": 503},
        "everywhere": {"listening": True, "health": 503},
        "mute": {"listening": True, "health": None},
        "down": {"listening": False, "health": None},
        "odd": {"unknown": "KeyError: 'port'"},
    }


def test_a_busy_server_is_asked_twice(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, tries = socket.create_connection, [1]

    def busy(*given: Any, **more: Any) -> socket.socket:
        if tries:
            tries.pop()
            raise TimeoutError
        return connect(*given, **more)

    monkeypatch.setattr(socket, "create_connection", busy)
    question = {"host": "127.0.0.1", "port": server}
    assert probe_serving.instance("x", question) == {"listening": True, "health": 503}
    tries.extend([1, 2])
    with pytest.raises(probe_tools.Unlearned, match="neither accepted nor refused 2 times"):
        probe_serving.instance("x", question)


# A line of wire.py, which every verb imports.
ANCHOR = "class WireError(Exception):"
# Put into the agent before it: whatever would change a file is told instead of done quietly.
WATCH = """
import os as _os, sys as _sys
def _watch(event, given):
    changes = ("os.mkdir", "os.remove", "os.rename", "os.chmod", "os.chown", "os.link",
               "os.symlink", "os.truncate", "os.utime", "os.rmdir", "shutil.", "tempfile.")
    writing = _os.O_WRONLY | _os.O_RDWR | _os.O_CREAT
    if event == "open" and given[2] & writing and given[0] != "/dev/null":
        _os.write(2, f"wrote {given[0]}\\n".encode())
    if event.startswith(changes):
        _os.write(2, f"{event} {given}\\n".encode())
_sys.addaudithook(_watch)
"""


def test_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    files = altered("wire.py", ANCHOR, WATCH + ANCHOR)
    request = {
        "deadline_s": 20,
        "files": {str(tmp_path / "file"): {"sha256": "", "secret": False}},
        "packages": ["bash"],
        "units": ["a.service"],
        "users": ["root"],
        "free_space": [str(tmp_path / "x")],
        "models": {"m": {"root": str(tmp_path / "m"), "revision": "r", "files": {}}},
        "releases": {str(tmp_path / "r"): ["f"]},
    }
    before = listing(tmp_path)
    process = start(
        "probe",
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPYCACHEPREFIX": str(tmp_path)},
    )
    out, err = process.communicate(f"{bundle.program_line(files)}\n{json.dumps(request)}\n")
    assert json.loads(out.splitlines()[-1])["ok"]
    assert err == ""
    assert listing(tmp_path) == before


def test_the_watch_on_writes_can_fail(tmp_path: Path) -> None:
    files = altered("wire.py", ANCHOR, WATCH + f"open('{tmp_path}/new', 'w')\n{ANCHOR}")
    process = start("probe")
    _, err = process.communicate(f"{bundle.program_line(files)}\n{{}}\n")
    assert f"wrote {tmp_path}/new" in err


def listing(folder: Path) -> list[tuple[str, int, int]]:
    return sorted(
        (str(path), path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*")
    )


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({}, "deadline_s is None, expected seconds above 0"),
        ({"deadline_s": 0}, "deadline_s is 0"),
        ({"deadline_s": "20"}, "deadline_s is '20'"),
        ({"deadline_s": True}, "deadline_s is True"),
        ({"deadline_s": 2, "files": []}, "the request's files is a list, expected a dict"),
        ({"deadline_s": 2, "units": "a"}, "the request's units is a str, expected a list"),
    ],
)
def test_a_wrong_request_is_one_sentence(request_: dict[str, Any], words: str) -> None:
    (end,) = ask("probe", request_)
    assert end["ok"] is False
    assert words in end["message"]


def test_a_fault_in_one_look_is_told_and_costs_nothing_else() -> None:
    def look(key: str) -> int:
        return 1 // int(key)

    document = probe.learn([probe.Part("a", look, ["0", "1"]), probe.Part("b", lambda _: {})], 5)
    assert document["a"] == {
        "0": {"unknown": "ZeroDivisionError: integer division or modulo by zero"},
        "1": 1,
    }
    assert document["b"] == {}
