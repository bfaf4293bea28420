"""What the probe reads of the platform, from literal outputs of the real tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from files.agent import platform, platform_apt, platform_cuda
from files.agent.probe_tools import Unlearned


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC "
            "2025\nGCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n",
            ("580.95.05", "proprietary"),
        ),
        (  # of an H200
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  "
            "(nixbld@)  \nGCC version:  gcc version 15.3.0 (GCC) \n",
            ("580.159.04", "open"),
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC\n",
            ("550.54.15", "proprietary"),
        ),
        ("", (None, None)),
        ("something else 580.95.05", (None, None)),
    ],
)
def test_loaded_driver(text: str, expected: tuple[str | None, str | None]) -> None:
    assert platform.parse_version(text) == expected


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("SecureBoot enabled\n", "enabled"),
        ("SecureBoot disabled\n", "disabled"),
        ("SecureBoot disabled\nPlatform is in Setup Mode\n", "setup"),
        ("EFI variables are not supported on this system\n", "not applicable"),
        ("This system doesn't support Secure Boot\n", None),
        ("", None),
    ],
)
def test_c07_secure_boot(said: str, state: str | None) -> None:
    assert platform.parse_secure_boot(said) == state


def tools(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], module: Any) -> list[list[str]]:
    """Let `run_tool` of a module answer from a table by the program's name."""
    called: list[list[str]] = []

    def run_tool(argv: list[str], limit_s: float) -> tuple[int, str, str]:
        called.append(list(argv))
        answer = answers.get(argv[0])
        if answer is None:
            raise Unlearned(f"{argv[0]} is not installed")
        if isinstance(answer, Exception):
            raise answer
        status, out, err = answer
        return status, out, err

    monkeypatch.setattr(module, "run_tool", run_tool)
    return called


def test_secure_boot_that_hangs_or_says_nonsense_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools(monkeypatch, {"mokutil": Unlearned("mokutil timed out after 8 s")}, platform)
    assert platform.learned("secure_boot", {}) == {"unknown": "mokutil timed out after 8 s"}
    tools(monkeypatch, {"mokutil": (1, "", "oops")}, platform)
    assert platform.learned("secure_boot", {}) == {"unknown": "mokutil --sb-state says: oops"}


def test_secure_boot_enrolment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "MOK.der"
    key.write_bytes(b"key")
    monkeypatch.setattr(platform, "MODULE_KEYS", (str(key), str(tmp_path / "absent")))
    tools(monkeypatch, {"mokutil": (0, "SecureBoot enabled\n", "")}, platform)
    assert platform.secure_boot({}) == {"state": "enabled", "enrolled": False}
    said = f"SecureBoot enabled\n{key} is already enrolled\n"
    tools(monkeypatch, {"mokutil": (1, said, "")}, platform)
    assert platform.secure_boot({}) == {"state": "enabled", "enrolled": True}


def device(root: Path, address: str, vendor: str, code: str, kind: str, driver: str | None) -> None:
    folder = root / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "device").write_text(f"0x{code}\n")
    (folder / "class").write_text(f"{kind}\n")
    if driver:
        target = root.parent / "drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(target)


def test_cards_on_the_bus(tmp_path: Path) -> None:
    root = tmp_path / "devices"
    device(root, "0000:1a:00.0", "0x10de", "1db5", "0x030200", "nvidia")
    device(root, "0000:1c:00.0", "0x10de", "1DB5", "0x030200", "nouveau")
    device(root, "0000:1d:00.0", "0x10de", "2684", "0x030000", None)
    device(root, "0000:1d:00.1", "0x10de", "22ba", "0x040300", "snd_hda_intel")  # its audio
    device(root, "0000:3b:00.0", "0x10de", "1af1", "0x068000", None)  # an NVSwitch
    device(root, "0000:00:02.0", "0x1a03", "2000", "0x030000", "ast")  # the BMC's
    assert platform.gpus({}, str(root)) == {
        "devices": [
            {"address": "0000:1a:00.0", "device": "1db5", "driver": "nvidia"},
            {"address": "0000:1c:00.0", "device": "1db5", "driver": "nouveau"},
            {"address": "0000:1d:00.0", "device": "2684", "driver": None},
        ]
    }
    assert platform.gpus({}, str(tmp_path / "absent")) == {"devices": []}


def test_loaded_modules(tmp_path: Path) -> None:
    path = tmp_path / "modules"
    path.write_text(
        "nvidia_uvm 1540096 0 - Live 0x0\nnvidia 56717312 1 nvidia_uvm, Live 0x0\n"
        "ext4 737280 1 - Live 0x0\nnouveau 2306048 0 - Live 0x0\n"
    )
    assert platform.modules({}, str(path)) == {"loaded": ["nouveau", "nvidia", "nvidia_uvm"]}


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("blacklist nouveau\n", True),
        ("  blacklist   nouveau  # why\n", True),
        ("install nouveau /bin/false\n", True),
        ("alias nouveau off\n", True),
        ("# blacklist nouveau\n", False),
        ("blacklist nouveau-other\n", False),
        ("options nouveau modeset=0\n", False),
        ("blacklist nvidiafb\n", False),
    ],
)
def test_c06_what_keeps_nouveau_away(tmp_path: Path, text: str, counts: bool) -> None:
    path = tmp_path / "a.conf"
    path.write_text(text)
    assert platform.blacklists((str(tmp_path),)) == ([str(path)] if counts else [])


LISTING = """\
.
bin
etc/modprobe.d/blacklist-framebuffer.conf
{extra}
usr/lib/modules/6.8.0-60-generic/kernel/drivers/gpu/drm/nouveau/nouveau.ko{suffix}
usr/lib/modules/6.8.0-60-generic/modules.dep
"""


@pytest.mark.parametrize("suffix", ["", ".zst", ".xz"])
@pytest.mark.parametrize("there", [True, False])
def test_c06_initramfs(suffix: str, there: bool) -> None:
    extra = "etc/modprobe.d/voltfleet-nouveau.conf" if there else "etc/other"
    found = platform.parse_initramfs(
        LISTING.format(extra=extra, suffix=suffix), ["/etc/modprobe.d/voltfleet-nouveau.conf"]
    )
    assert found == {"nouveau": True, "blacklist": there}


def test_initramfs_without_nouveau() -> None:
    names = "usr/lib/modules/k/kernel/net/nouveau-like.ko\nusr/share/nouveau.kobold\n"
    assert platform.parse_initramfs(names, []) == {"nouveau": False, "blacklist": False}


def test_kernels_are_sorted_by_number() -> None:
    names = ["6.8.0-9-generic", "6.8.0-60-generic", "6.11.0-1-generic", "5.15.0-200-generic"]
    assert max(names, key=platform.version_key) == "6.11.0-1-generic"


def test_a_reboot_that_packages_ask_for(tmp_path: Path) -> None:
    path = tmp_path / "reboot-required.pkgs"
    assert platform.boot({}, str(path))["required_by"] == []
    path.write_text("linux-image-6.8.0-90-generic\nlinux-base\nlinux-base\n")
    found = platform.boot({}, str(path))
    assert found["required_by"] == ["linux-base", "linux-image-6.8.0-90-generic"]
    assert len(found["boot_id"]) == 36


def test_modules_of_a_kernel_without_that_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = "Module                  Size  Used by\nnvidia_uvm           1540096  0\nnvidia 5 1\n"
    tools(monkeypatch, {"lsmod": (0, out, "")}, platform)
    absent = str(tmp_path / "modules")
    assert platform.modules({}, absent) == {"loaded": ["nvidia", "nvidia_uvm"]}


def test_modinfo_that_is_missing_leaves_the_rest_known(monkeypatch: pytest.MonkeyPatch) -> None:
    tools(monkeypatch, {}, platform)
    found = platform.driver({})
    assert found["on_disk"] == {"unknown": "modinfo is not installed"}
    tools(
        monkeypatch,
        {"modinfo": (1, "", "modinfo: ERROR: Module nvidia not found.\n")},
        platform,
    )
    assert platform.driver({})["on_disk"] is None
    tools(monkeypatch, {"modinfo": (0, "580.126.09\n", "")}, platform)
    assert platform.driver({})["on_disk"] == "580.126.09"


def test_kernel_log_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    out = "usb 1-1: new\nNVRM: No NVIDIA GPU found.\nnvidia: module verification failed\n"
    tools(monkeypatch, {"dmesg": (0, out, "")}, platform)
    assert platform.driver({})["log"] == [
        "NVRM: No NVIDIA GPU found.",
        "nvidia: module verification failed",
    ]
    tools(monkeypatch, {"dmesg": (1, "", "Operation not permitted")}, platform)
    assert platform.driver({})["log"] == []


# --- packages and apt --------------------------------------------------------------------

DPKG = """\
nvidia-driver-580-server\tamd64\t580.126.09-0ubuntu1\thold ok installed
libnvidia-compute-580-server\tamd64\t580.126.09-0ubuntu1\tinstall ok installed
libnvidia-compute-580-server\ti386\t580.95.05-0ubuntu1\tinstall ok installed
nvidia-utils-550\tamd64\t550.163.01-0ubuntu1\tdeinstall ok config-files
libnvidia-cfg1-any\t\t\tunknown ok not-installed
libcurl4\tamd64\t7.88.1\tinstall ok installed
"""


def test_c01_packages_with_holds() -> None:
    text = DPKG.replace("libnvidia-cfg1-any\t\t\t", "libnvidia-cfg1-any\tamd64\t\t")
    assert platform_apt.parse_packages(text, "amd64") == {
        "nvidia-driver-580-server": {
            "version": "580.126.09-0ubuntu1",
            "status": "installed",
            "held": True,
        },
        "libnvidia-compute-580-server": {
            "version": "580.126.09-0ubuntu1",
            "status": "installed",
            "held": False,
        },
        "nvidia-utils-550": {
            "version": "550.163.01-0ubuntu1",
            "status": "config-files",
            "held": False,
        },
    }


def test_dpkg_that_fails_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    tools(
        monkeypatch,
        {"dpkg-query": (2, "", "dpkg-query: error: reading files list\n")},
        platform_apt,
    )
    assert "failed with 2" in platform.learned("packages", {})["unknown"]
    none = (1, "", "dpkg-query: no packages found matching *nvidia*\n")
    tools(monkeypatch, {"dpkg-query": none}, platform_apt)
    assert platform.learned("packages", {}) == {}


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (
            "nvidia/580.95.05, 6.8.0-60-generic, x86_64: installed",
            ("nvidia", "580.95.05", "6.8.0-60-generic", "installed"),
        ),
        (  # before DKMS 3
            "nvidia, 510.47.03, 5.4.0-109-generic, x86_64: installed",
            ("nvidia", "510.47.03", "5.4.0-109-generic", "installed"),
        ),
        ("nvidia/580.95.05: added", ("nvidia", "580.95.05", None, "added")),
        (
            "nvidia-current/550.163.01, 6.12.41+deb13-amd64, x86_64: built (WARNING! Diff)",
            ("nvidia-current", "550.163.01", "6.12.41+deb13-amd64", "built"),
        ),
        ("zfs/2.2.2, 6.8.0-60-generic, x86_64: installed", None),
        ("", None),
    ],
)
def test_dkms(line: str, row: tuple[str, str, str | None, str] | None) -> None:
    found = [
        (r["module"], r["version"], r["kernel"], r["state"]) for r in platform_apt.parse_dkms(line)
    ]
    assert found == ([row] if row else [])


def test_a_host_without_dkms(monkeypatch: pytest.MonkeyPatch) -> None:
    tools(monkeypatch, {}, platform_apt)
    assert platform.learned("dkms", {}) == {"modules": []}


@pytest.mark.parametrize(
    ("name", "text", "entries"),
    [
        (
            "cuda.list",
            "# comment\ndeb [signed-by=/usr/share/keyrings/cuda-0A1B2C3D-keyring.gpg] "
            "file:///var/cuda-repo-ubuntu2204-12-4-local /\n",
            [
                (
                    2,
                    "file:///var/cuda-repo-ubuntu2204-12-4-local",
                    "/",
                    "/usr/share/keyrings/cuda-0A1B2C3D-keyring.gpg",
                    False,
                )
            ],
        ),
        (
            "a.list",
            "deb [arch=amd64 trusted=yes] http://x/cuda ./\n",
            [(1, "http://x/cuda", "./", None, True)],
        ),
        (
            "b.list",
            "deb http://x/cuda/ stable main\n",
            [(1, "http://x/cuda", "stable", None, False)],
        ),
        ("c.list", "#deb http://x/cuda /\ndeb-src http://x/cuda /\n", []),
        (
            "d.sources",
            "Types: deb\nURIs: http://x/cuda http://y/cuda\nSuites: /\nSigned-By: /k.gpg\n\n"
            "Types: deb\nEnabled: no\nURIs: http://z\nSuites: /\n",
            [
                (1, "http://x/cuda", "/", "/k.gpg", False),
                (1, "http://y/cuda", "/", "/k.gpg", False),
            ],
        ),
        ("e.sources", "Types: deb-src\nURIs: http://x/cuda\nSuites: /\n", []),
        ("f.sources", "", []),
    ],
)
def test_source_entries(name: str, text: str, entries: list[tuple[Any, ...]]) -> None:
    found = platform_apt.parse_sources(f"/etc/apt/sources.list.d/{name}", text)
    assert [
        (e["line"], e["uri"], e["suite"], e["signed_by"], e["trusted"]) for e in found
    ] == entries


@given(st.text(), st.sampled_from([".list", ".sources"]))
def test_source_entries_of_any_text(text: str, ending: str) -> None:
    for entry in platform_apt.parse_sources(f"/x{ending}", text):
        assert entry["uri"] == entry["uri"].rstrip("/")


def test_entries_that_concern_nvidia(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (tmp_path / "sources.list").write_text("deb http://deb/debian trixie main\n")
    (folder / "cuda.list").write_text("deb http://mirror/a /\n")
    (folder / "ours.list").write_text("deb http://mirror/lab /\n")
    monkeypatch.setattr(platform_apt, "SOURCES", str(tmp_path))
    named = platform_apt.apt_sources({})["entries"]
    assert [entry["uri"] for entry in named] == ["http://mirror/a"]
    asked = platform_apt.apt_sources({"urls": ["http://mirror/lab"]})["entries"]
    assert [entry["uri"] for entry in asked] == ["http://mirror/a", "http://mirror/lab"]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (None, ""),
        ("folder", "is gone"),
        ("source", "is gone"),
        ("keyring", "is gone"),
        ("second", "has 2 keyrings, expected one"),
        ("none", "has 0 keyrings, expected one"),
    ],
)
def test_c03_whether_a_registered_repository_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: str | None, reason: str
) -> None:
    folder, source, keyring = tmp_path / "repo", tmp_path / "x.list", tmp_path / "k.gpg"
    if broken != "folder":
        folder.mkdir()
        (folder / "cuda-0A1B2C3D-keyring.gpg").write_bytes(b"k")
    if broken == "second":
        (folder / "cuda-FFFFFFFF-keyring.gpg").write_bytes(b"k")
    if broken == "none":
        (folder / "cuda-0A1B2C3D-keyring.gpg").unlink()
    for name, path in (("source", source), ("keyring", keyring)):
        if broken != name:
            path.write_text("x")
    stamps = tmp_path / "stamps"
    stamps.mkdir()
    stamp = {"key": "abc", "folder": str(folder), "source": str(source), "keyring": str(keyring)}
    (stamps / "1.json").write_text(json.dumps(stamp))
    monkeypatch.setattr(platform_apt, "STAMPS", str(stamps))
    found = platform_apt.repositories({})["abc"]
    assert found["sound"] is (broken is None)
    assert reason in found["reason"]


def test_apt_is_asked_only_where_something_would_change(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "dpkg-query": (0, "cuda-drivers-580\tamd64\t580.95.05-1\thold ok installed\n", ""),
        "apt-get": (0, "Inst x (1 y)\n", ""),
        "apt-cache": (0, "Package: cuda-drivers-595\n", ""),
        "apt-mark": (0, "cuda-drivers-580\ndkms\n", ""),
    }
    called = tools(monkeypatch, answers, platform_apt)
    right = {"driver": {"branch": 580, "packages": ["cuda-drivers-580"]}}
    assert platform_apt.simulation(right) is None
    assert platform_apt.simulation({"driver": None}) is None
    assert {argv[0] for argv in called} == {"dpkg-query"}
    other = {"driver": {"branch": 595, "packages": ["cuda-drivers-595"], "pins": "Package: x\n"}}
    found = platform_apt.simulation(other)
    assert found is not None
    assert (found["asked"], found["rc"], found["held"]) == (
        ["cuda-drivers-595"],
        0,
        ["cuda-drivers-580", "dkms"],
    )
    (simulated,) = [argv for argv in called if argv[0] == "apt-get"]
    assert "--simulate" in simulated


# --- toolkits ----------------------------------------------------------------------------

ALTERNATIVE = """\
Name: cuda
Link: /usr/local/cuda
Status: auto
Best: /usr/local/cuda-13.0
Value: /usr/local/cuda-13.0

Alternative: /usr/local/cuda-12.4
Priority: 124

Alternative: /usr/local/cuda-13.0
Priority: 130
"""


def test_alternative() -> None:
    assert platform_cuda.parse_alternative(ALTERNATIVE) == {
        "value": "/usr/local/cuda-13.0",
        "status": "auto",
        "choices": ["/usr/local/cuda-12.4", "/usr/local/cuda-13.0"],
    }
    assert platform_cuda.parse_alternative("") == {"value": None, "status": None, "choices": []}


@pytest.mark.parametrize(
    ("out", "found"),
    [
        (
            "nvcc: NVIDIA (R) Cuda compiler driver\n"
            "Cuda compilation tools, release 12.4, V12.4.131\n"
            "Build cuda_12.4.r12.4/compiler.34097967_0\n",
            {"release": "12.4", "build": "12.4.131"},
        ),
        (
            "Cuda compilation tools, release 13.0, V13.0.88\n",
            {"release": "13.0", "build": "13.0.88"},
        ),
        (
            "Cuda compilation tools, release 10.1, V10.1.243\n",
            {"release": "10.1", "build": "10.1.243"},
        ),
        ("", None),
    ],
)
def test_nvcc_version(out: str, found: dict[str, str] | None) -> None:
    assert platform_cuda.parse_nvcc(out) == found


def test_owners() -> None:
    out = (
        "cuda-nvcc-12-4, libcublas-12-4: /usr/local/cuda-12.4\n"
        "libx:amd64: /usr/local/x\n"
        "diversion by glx-diversions from: /usr/local/cuda-11.8\n"
    )
    paths = ["/usr/local/cuda-12.4", "/usr/local/x", "/usr/local/cuda-11.8"]
    assert platform_cuda.parse_owners(paths, out) == {
        "/usr/local/cuda-12.4": ["cuda-nvcc-12-4", "libcublas-12-4"],
        "/usr/local/x": ["libx"],
        "/usr/local/cuda-11.8": [],
    }


@pytest.mark.parametrize(
    ("name", "file", "text", "version"),
    [
        ("cuda-12.4", "version.json", '{"cuda": {"version": "12.4.1"}}', "12.4"),
        ("cuda", "version.json", '{"cuda": {"version": "11.8.89"}}', "11.8"),
        ("cuda-9", "version.txt", "CUDA Version 9.0.176\n", "9.0"),
        ("cuda-11.8", "bin", "", "11.8"),
        ("cuda-12.2", "version.json", "{broken", "12.2"),
        ("cuda-x", "bin", "", None),
    ],
)
def test_version_of_a_toolkit(
    tmp_path: Path, name: str, file: str, text: str, version: str | None
) -> None:
    root = tmp_path / name
    root.mkdir()
    (root / file).write_text(text)
    assert platform_cuda.version_of(str(root)) == version


def test_a_users_folder_is_no_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, mark in (("cuda-11.8", "bin/nvcc"), ("cuda-samples", "README")):
        path = tmp_path / name / mark
        path.parent.mkdir(parents=True)
        path.write_text("x")
    (tmp_path / "cuda").symlink_to(tmp_path / "cuda-11.8")
    (tmp_path / "cuda-readme").write_text("a file")
    monkeypatch.setattr(platform_cuda, "owners_of", lambda paths, _: {path: [] for path in paths})
    found = platform_cuda.toolkits({}, f"{tmp_path}/cuda*")
    assert {Path(path).name: folder["is_toolkit"] for path, folder in found.items()} == {
        "cuda": True,
        "cuda-11.8": True,
        "cuda-samples": False,
    }
    assert found[f"{tmp_path}/cuda"]["link"] == f"{tmp_path}/cuda-11.8"


@pytest.mark.parametrize(
    ("text", "roots"),
    [
        ("export PATH=/usr/local/cuda-11.8/bin:$PATH\n", ["/usr/local/cuda-11.8"]),
        ("export PATH=/usr/local/cuda/bin:$PATH\n", ["/usr/local/cuda"]),
        ("/usr/local/cuda-13.0/lib64\n", ["/usr/local/cuda-13.0"]),
        ('PATH="/usr/bin:/usr/local/cuda-12.4"\n', ["/usr/local/cuda-12.4"]),
        ("# /usr/local/cuda-11.8/bin\n", []),
        ("export SAMPLES=/usr/local/cuda-samples\n", []),
        ("export X=/opt/usr/local/cuda\n", []),
    ],
)
def test_path_lines(text: str, roots: list[str]) -> None:
    assert [line["root"] for line in platform_cuda.parse_path_lines("/f", text)] == roots


def test_a_compiler_that_does_not_answer_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "nvcc"
    request = {"toolkit": {"nvcc": str(path)}, "limit_s": 5}
    assert platform.learned("nvcc", request) is None
    path.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    path.chmod(0o755)
    assert "failed with 3: broken" in platform.learned("nvcc", request)["unknown"]


def test_the_whole_answer_never_raises() -> None:
    found = platform.observe({"limit_s": 5, "toolkit": None, "driver": None})
    assert set(found) == set(platform.LOOKS)
    json.dumps(found)
