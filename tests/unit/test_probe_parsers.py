"""What the probe makes of what tools and the kernel print."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from files.agent import probe_paths, probe_serving, probe_system, probe_tools
from files.agent.probe_tools import Unlearned

NAMES = st.sampled_from(["a", "b", "c:i386"])


def package(lines: str, name: str = "libc6", native: str = "amd64") -> object:
    return probe_tools.parse_packages([name], lines, native)[name]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("", None),
        ("libc6\tamd64\t\tunknown ok not-installed\n", None),
        ("libc6\tamd64\t2.36\tinstall ok installed\n", ("2.36", "installed", False)),
        ("libc6\tamd64\t2.36\tdeinstall ok config-files\n", ("2.36", "config-files", False)),
        (
            "libc6\tamd64\t2.36\tinstall reinstreq half-installed\n",
            ("2.36", "half-installed", False),
        ),
        ("libc6\tamd64\t\thold ok not-installed\n", ("", "not-installed", True)),
        (
            "libc6\ti386\t1\tinstall ok installed\nlibc6\tamd64\t2\tinstall ok installed\n",
            ("2", "installed", False),
        ),
        (
            "libc6\tamd64\t2\thold ok installed\nlibc6\ti386\t1\tinstall ok installed\n",
            ("2", "installed", True),
        ),
        (
            "libc6\tamd64\t2\tdeinstall ok config-files\nlibc6\ti386\t1\tinstall ok installed\n",
            ("1", "installed", False),
        ),
    ],
)
def test_packages(lines: str, found: tuple[str, str, bool] | None) -> None:
    expected = found and dict(zip(("version", "status", "held"), found, strict=True))
    assert package(lines) == expected


def test_a_package_of_a_named_architecture() -> None:
    lines = "libc6\ti386\t1\tinstall ok installed\nlibc6\tamd64\t2\tinstall ok installed\n"
    assert package(lines, "libc6:i386") == {"version": "1", "status": "installed", "held": False}


@given(st.lists(NAMES, unique=True), st.lists(st.tuples(NAMES, st.sampled_from("12")), max_size=4))
def test_every_package_asked_is_answered(names: list[str], lines: list[tuple[str, str]]) -> None:
    out = "".join(f"{name}\tall\t{version}\tinstall ok installed\n" for name, version in lines)
    found = probe_tools.parse_packages(names, out, "amd64")
    assert list(found) == names
    assert all((found[name] is None) == (name not in dict(lines)) for name in names)


@pytest.mark.parametrize(
    ("journal", "status", "interrupted"),
    [
        ([], "install ok installed", False),
        (["0001"], "install ok installed", True),
        (["tmp.i"], "install ok installed", False),
        ([], "install ok half-configured", True),
        ([], "install ok unpacked", True),
        ([], "hold ok unpacked", True),
        ([], "install ok triggers-pending", False),
        ([], "deinstall ok config-files", False),
    ],
)
def test_an_interrupted_dpkg(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    journal: list[str],
    status: str,
    interrupted: bool,
) -> None:
    (tmp_path / "updates").mkdir()
    for name in journal:
        (tmp_path / "updates" / name).touch()
    (tmp_path / "status").write_text(f"Package: a\nStatus: {status}\nVersion: 1\n")
    (tmp_path / "apt-get").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = probe_tools.packages_state(str(tmp_path))
    assert found == {"interrupted": interrupted, "manager": "apt"}


def test_a_host_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_tools, "SBIN", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unlearned, match="apt-get is not installed"):
        probe_tools.packages_state()
    with pytest.raises(Unlearned, match="dpkg-query is not installed"):
        probe_tools.packages(["bash"], 1)
    with pytest.raises(Unlearned, match="systemctl is not installed"):
        probe_tools.units(["a.service"], 1)


def test_tools_speak_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    _, out, _ = probe_tools.run_tool(["sh", "-c", "echo $LC_ALL; cat"], 10)
    assert out == "C\n"


def test_os_release() -> None:
    text = """# c
ID=ubuntu
VERSION_ID="22.04"
NAME='A B'
PRETTY_NAME="a \\"b\\" \\$c"
BAD
"""
    assert probe_system.parse_os_release(text) == {
        "ID": "ubuntu",
        "VERSION_ID": "22.04",
        "NAME": "A B",
        "PRETTY_NAME": 'a "b" $c',
    }


@given(st.text())
def test_any_os_release_is_read(text: str) -> None:
    assert all(isinstance(value, str) for value in probe_system.parse_os_release(text).values())


def test_meminfo() -> None:
    text = "MemTotal:       24684092 kB\nHugePages_Total:       3\nOdd\n"
    assert probe_system.parse_meminfo(text) == {
        "MemTotal": 24684092 * 1024,
        "HugePages_Total": 3,
    }


def test_dmi(tmp_path: Path) -> None:
    assert probe_system.dmi(str(tmp_path)) == {"sys_vendor": None, "product_name": None}
    (tmp_path / "sys_vendor").write_text("Dell Inc.\n")
    (tmp_path / "product_name").write_text("PowerEdge R740\n")
    assert probe_system.dmi(str(tmp_path)) == {
        "sys_vendor": "Dell Inc.",
        "product_name": "PowerEdge R740",
    }


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("vm.swappiness", "/proc/sys/vm/swappiness"),
        ("vm/swappiness", "/proc/sys/vm/swappiness"),
        ("net.ipv4.conf.eth0/1.forwarding", "/proc/sys/net/ipv4/conf/eth0.1/forwarding"),
        ("net/ipv4/conf/eth0.1/forwarding", "/proc/sys/net/ipv4/conf/eth0.1/forwarding"),
    ],
)
def test_sysctl_paths(key: str, path: str) -> None:
    assert probe_system.sysctl_path(key) == path


def test_a_sysctl_stays_below_its_folder() -> None:
    with pytest.raises(Unlearned):
        probe_system.sysctl_path("x/../../../etc/shadow")


def test_module_options(tmp_path: Path) -> None:
    parameters = tmp_path / "nvidia_uvm" / "parameters"
    parameters.mkdir(parents=True)
    (parameters / "uvm_perf").write_text("1\n")
    assert probe_system.module("nvidia-uvm", str(tmp_path)) == {
        "loaded": True,
        "options": {"uvm_perf": "1"},
    }


def test_the_nvidia_driver_keeps_its_options_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "nvidia").mkdir()
    params = tmp_path / "params"
    params.write_text('NvLinkDisable: 0\nRegistryDwords: "a=1"\nTemporaryFilePath: ""\n')
    found = probe_system.module("nvidia", str(tmp_path), str(params))
    assert found["options"] == {
        "NVreg_NvLinkDisable": "0",
        "NVreg_RegistryDwords": "a=1",
        "NVreg_TemporaryFilePath": "",
    }


def test_text_is_given_only_where_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "f"

    def told(content: bytes, **asked: object) -> object:
        path.write_bytes(content)
        found = probe_paths.file(str(path), asked)
        assert found is not None
        return found.get("text")

    assert told(b"abc", sha256="", secret=False) == "abc"
    assert told(b"abc", sha256="", secret=True) is None
    assert told(b"abc") is None  # not said: treated as secret
    same = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert told(b"abc", sha256=same, secret=False) is None
    assert told(b"\xff\xfe", sha256="", secret=False) is None
    assert told(b"a" * probe_paths.TEXT_LIMIT, sha256="", secret=False) is not None
    assert told(b"a" * (probe_paths.TEXT_LIMIT + 1), sha256="", secret=False) is None
    assert told(b"a" * (probe_paths.CHUNK + 1), sha256="", secret=False) is None


def test_a_huge_file_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_paths, "HASH_LIMIT", 1 << 20)
    path = tmp_path / "f"
    path.write_bytes(b"a" * ((1 << 20) + 1))
    with pytest.raises(Unlearned, match="larger than 1 MiB"):
        probe_paths.file(str(path), {})


def test_names_that_are_no_text_are_still_answered(tmp_path: Path) -> None:
    (tmp_path / "l").symlink_to(os.fsdecode(b"\xff"))
    found = probe_paths.entry(str(tmp_path / "l"))
    assert found is not None and found["target"] == "\ufffd"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 200 OK\r\nX: y\r\n", 200),
        (b"HTTP/1.0 503\r\n", 503),
        (b"HTTP/1.1 2000 OK\r\n", None),
        (b"SSH-2.0-OpenSSH_9.2\r\n", None),
        (b"HTTP/1.1\r\n", None),
        (b"", None),
    ],
)
def test_health(answer: bytes, status: int | None) -> None:
    assert probe_serving.parse_status(answer) == status


@given(st.binary())
def test_any_answer_of_a_server_is_read(answer: bytes) -> None:
    status = probe_serving.parse_status(answer)
    assert status is None or 0 <= status <= 999
