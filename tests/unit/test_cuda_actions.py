"""The toolkit's actions where no package manager is needed to see them right (G4, G5, C03)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from files.agent import act_cuda, act_repository, platform_apt, platform_cuda
from files.agent.handler import ActionError, Context


class Nobody:
    gone = False

    def line(self, value: Any) -> None:
        pass


CONTEXT = Context(run="r", sink=Nobody())

NVCC = """\
#!/bin/sh
if [ "$1" = --version ]; then
    echo "Cuda compilation tools, release 12.4, V12.4.131"; exit 0
fi
[ "$2" = arch=compute_70,code=sm_70 ] || {
    echo "nvcc fatal   : Unsupported gpu architecture 'compute_90'" >&2; exit 1
}
while [ $# -gt 1 ]; do shift; done
echo kernel > "$1"
"""
CUOBJDUMP = "#!/bin/sh\ntest -s \"$2\" && printf '%s'\n"


@pytest.fixture
def nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(platform_cuda, "PROOF", str(tmp_path / "proofs" / "cuda.json"))
    path = tmp_path / "bin" / "nvcc"
    path.parent.mkdir()
    path.write_text(NVCC)
    path.chmod(0o755)
    lists(path, "ELF file    1: axpy.1.sm_70.cubin\\n")
    return path


def lists(nvcc: Path, out: str) -> None:
    tool = nvcc.with_name("cuobjdump")
    tool.write_text(CUOBJDUMP % out)
    tool.chmod(0o755)


def prove(nvcc: Path, *architectures: str, series: str = "12.4") -> Any:
    action = {"nvcc": str(nvcc), "series": series, "architectures": list(architectures)}
    return act_cuda.prove(CONTEXT, action)


def test_a_proof_is_written_down(nvcc: Path) -> None:
    assert prove(nvcc, "sm_70").message == "nvcc 12.4.131 compiles for sm_70"
    assert json.loads(Path(platform_cuda.PROOF).read_text()) == {
        "nvcc": str(nvcc),
        "build": "12.4.131",
        "architectures": ["sm_70"],
    }


@pytest.mark.parametrize(
    ("architecture", "series", "listed", "said"),
    [
        ("sm_90", "12.4", None, "can't compile for sm_90: nvcc fatal   : Unsupported gpu"),
        ("sm_70", "11.8", None, "is of 12.4, expected 11.8"),
        ("sm_70", "12.4", "ELF file    1: a.1.sm_80.cubin\\n", "holds code for sm_80"),
        (
            "sm_70",
            "12.4",
            "ELF file    1: a.1.sm_70.cubin\\nELF file    2: a.2.sm_80.cubin\\n",
            "holds code for sm_70, sm_80",
        ),
        ("sm_70", "12.4", "", "holds code for no architecture"),
    ],
)
def test_no_proof(
    nvcc: Path, architecture: str, series: str, listed: str | None, said: str
) -> None:
    if listed is not None:
        lists(nvcc, listed)
    with pytest.raises(ActionError, match=said.replace("(", r"\(")):
        prove(nvcc, architecture, series=series)
    assert not Path(platform_cuda.PROOF).exists()


def test_c03_a_local_repository_has_exactly_one_keyring(tmp_path: Path) -> None:
    with pytest.raises(ActionError, match=f"{tmp_path} holds no keyring"):
        act_repository.one_keyring(tmp_path)
    one = tmp_path / "cuda-0A1B2C3D-keyring.gpg"
    one.write_bytes(b"k")
    assert act_repository.one_keyring(tmp_path) == one
    (tmp_path / "cuda-FFFFFFFF-keyring.gpg").write_bytes(b"k")
    with pytest.raises(ActionError, match=r"2 keyrings \(cuda-0A1B2C3D.*cuda-FFFFFFFF"):
        act_repository.one_keyring(tmp_path)


def entries(*keys: str, trusted: bool = False, uri: str = "file:///var/repo") -> dict[str, Any]:
    return {
        "entries": [
            {
                "file": f"/etc/{number}.list",
                "line": 1,
                "uri": uri,
                "suite": "/",
                "signed_by": key or None,
                "trusted": trusted,
            }
            for number, key in enumerate(keys)
        ]
    }


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (entries("/k/a.gpg"), None),
        (entries("/k/a.gpg", uri="file:/var/repo"), None),
        (entries("/k/a.gpg", uri="file:///var/other"), "0 source entries name /var/repo"),
        (entries("/k/a.gpg", "/k/a.gpg"), "2 source entries name /var/repo"),
        (entries("/k/b.gpg"), "is signed by /k/b.gpg, expected /k/a.gpg"),
        (entries(""), "is signed by nothing, expected /k/a.gpg"),
        (entries("/k/a.gpg", trusted=True), "says trusted=yes"),
    ],
)
def test_c03_one_entry_signed_with_its_keyring(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], said: str | None
) -> None:
    monkeypatch.setattr(platform_apt, "apt_sources", lambda request: found)
    if said is None:
        assert act_repository._one_entry(Path("/var/repo"), Path("/k/a.gpg")) == "/etc/0.list"
        return
    with pytest.raises(ActionError, match=said):
        act_repository._one_entry(Path("/var/repo"), Path("/k/a.gpg"))


def test_a_deb_that_is_not_what_was_promised(tmp_path: Path) -> None:
    source, target = tmp_path / "cuda.deb", tmp_path / "cache" / "x.deb"
    source.write_bytes(b"a deb")
    action = {"id": "r", "file": str(target), "url": f"file://{source}", "sha256": "ab" * 32}
    with pytest.raises(ActionError, match="expected abab"):
        act_repository._deb(CONTEXT, action)
    assert not target.exists()
    right = {**action, "sha256": hashlib.sha256(b"a deb").hexdigest()}
    assert act_repository._deb(CONTEXT, right) == target
    source.unlink()
    assert act_repository._deb(CONTEXT, right) == target  # kept: not fetched twice
    with pytest.raises(ActionError, match="was not uploaded"):
        act_repository._deb(CONTEXT, {**right, "file": str(tmp_path / "y.deb"), "url": ""})


OLD = "export PATH=/usr/local/cuda-11.8/bin:$PATH"


@pytest.mark.parametrize(
    ("folder", "text", "left"),
    [
        ("profile.d", f"{OLD}\nexport A=1\n", "export A=1\n"),
        ("profile.d", f"# old\n{OLD}\n", None),  # nothing else in it
        ("etc", f"{OLD}\n", ""),  # a file that the system expects stays
        ("profile.d", "export A=1\n", "export A=1\n"),
    ],
)
def test_stale_lines(tmp_path: Path, folder: str, text: str, left: str | None) -> None:
    path = tmp_path / folder / "x.sh"
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o640)
    outcome = act_cuda.cleanup(CONTEXT, {"file": str(path), "lines": [OLD]})
    assert outcome.changed is (text != left)
    if left is None:
        assert not path.exists()
    else:
        assert (path.read_text(), path.stat().st_mode & 0o777) == (left, 0o640)
    assert not act_cuda.cleanup(CONTEXT, {"file": str(path), "lines": [OLD]}).changed


@pytest.mark.parametrize(
    "path", ["/usr/local/bin", "/usr/local/cuda-1/bin", "/opt/cuda-11.8", "/usr/local/../cuda"]
)
def test_only_toolkits_in_usr_local_are_removed(path: str) -> None:
    with pytest.raises(ActionError, match="left alone"):
        act_cuda.cleanup(CONTEXT, {"folder": path})


def test_other_packages_are_never_taken_along(monkeypatch: pytest.MonkeyPatch) -> None:
    def must(argv: list[str], limit_s: float) -> Any:
        out = "Purg libcudnn9-cuda-11 [9.1]\nPurg cuda-nvcc-11-8 [11.8]\nPurg cuda-toolkit [11.8]\n"
        return type("E", (), {"out": out})

    monkeypatch.setattr(act_cuda, "must", must)
    with pytest.raises(ActionError, match="apt would remove libcudnn9-cuda-11 too"):
        act_cuda.cleanup(CONTEXT, {"packages": ["cuda-nvcc-11-8"], "lock_wait_s": 1})
