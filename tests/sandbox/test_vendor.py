"""The simulated vendor's packages, and real programs on them: nvidia-smi 550.163.01, nvcc 12.4.

No host is needed: packages are unpacked, not installed. That they install on a host, with dkms
and through apt, is seen by every deploy to the lab.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest

from sandbox import profiles, settings
from sandbox.nvml import state as sim
from sandbox.vendor import build, kernel
from sandbox.vendor.deb import Link

BUSES = ("0000:1a:00.0", "0000:1c:00.0", "0000:88:00.0", "0000:8a:00.0")
CARDS = [sim.Card(bus, "10de:1db5") for bus in BUSES]
PAIRS = [sim.Pair(pair, 2) for pair in itertools.combinations(BUSES, 2)]

KERNEL = """\
__global__ void add(const float *a, const float *b, float *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""


@pytest.fixture(scope="session")
def vendor() -> build.Vendor:
    return build.ensure(settings.load().cache)


@pytest.fixture(scope="session")
def local(vendor: build.Vendor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The local-repository .deb, unpacked."""
    folder = tmp_path_factory.mktemp("local")
    subprocess.run(["dpkg-deb", "-x", vendor.local("debian13"), folder], check=True)
    return folder


def unpack(repository: Path, pattern: str, folder: Path) -> Path:
    for package in sorted(repository.glob(pattern)):
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return folder


def control(repository: Path) -> dict[tuple[str, str], dict[str, str]]:
    """Packages of an index by (name, version)."""
    out = {}
    for paragraph in (repository / "Packages").read_text().strip().split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", paragraph, re.M))
        out[fields["Package"], fields["Version"]] = fields
    return out


@pytest.fixture(scope="session")
def driver(vendor: build.Vendor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the 580.95.05 userland."""
    folder = tmp_path_factory.mktemp("driver")
    for name in ("libnvidia-compute", "nvidia-utils"):
        unpack(vendor.network, f"{name}-580_580.95.05-*.deb", folder)
    return folder


class Smi:
    """The real nvidia-smi over the simulated library and a state file."""

    def __init__(self, driver: Path, file: Path) -> None:
        self.driver = driver
        self.file = file
        state = sim.compose("smi", CARDS, PAIRS)
        sim.write(file, {**state, "driver.version": "580.95.05"})

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        library = self.driver / "usr/lib/x86_64-linux-gnu"
        env = {"VOLTFLEET_SIM_STATE": str(self.file), "LD_LIBRARY_PATH": str(library)}
        return subprocess.run(
            [self.driver / "usr/bin/nvidia-smi", *words],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ecc(self) -> list[str]:
        asked = self.run("--query-gpu=ecc.mode.current,ecc.mode.pending", "--format=csv,noheader")
        return asked.stdout.splitlines()


@pytest.fixture
def smi(driver: Path, tmp_path: Path) -> Smi:
    return Smi(driver, tmp_path / "gpus.state")


def test_local_repository_has_the_vendor_shape(local: Path) -> None:
    home = local / "var/cuda-repo-debian13-12-4-local"
    keyrings = list(home.glob("cuda-*-keyring.gpg"))
    assert len(keyrings) == 1
    assert re.fullmatch(r"cuda-[0-9A-F]{8}-keyring\.gpg", keyrings[0].name)
    source = local / "etc/apt/sources.list.d/cuda-debian13-12-4-local.list"
    assert source.read_text() == (
        f"deb [signed-by=/usr/share/keyrings/{keyrings[0].name}] "
        "file:///var/cuda-repo-debian13-12-4-local /\n"
    )
    checked = subprocess.run(
        ["gpgv", "--keyring", keyrings[0], home / "InRelease"], capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_each_repository_has_a_key_of_its_own(vendor: build.Vendor) -> None:
    names = [
        path.name
        for folder in (vendor.network, vendor.distribution, vendor.others)
        for path in folder.glob("*.gpg")
        if path.name != "Release.gpg"
    ]
    assert len(names) == len(set(names)) == 3


def test_driver_branches_and_what_they_lead_to(local: Path, vendor: build.Vendor) -> None:
    packages = control(local / "var/cuda-repo-debian13-12-4-local")
    versions = {name: version for name, version in packages if name == "cuda-drivers"}
    assert versions == {"cuda-drivers": "595.71.05-1"}
    assert packages["cuda-drivers", "595.71.05-1"]["Depends"] == "cuda-drivers-595 (= 595.71.05-1)"
    for branch, version in (("550", "550.54.15"), ("580", "580.95.05"), ("580", "580.126.09")):
        assert (f"nvidia-driver-{branch}", f"{version}-0ubuntu1") in packages
        assert (f"nvidia-driver-{branch}-open", f"{version}-0ubuntu1") in packages
    network = control(vendor.network)
    assert {name.split("-")[2] for name, _ in network if name.startswith("nvidia-driver")} == {
        "580"
    }


def test_transitional_packages_lead_to_another_branch(vendor: build.Vendor) -> None:
    packages = control(vendor.distribution)
    first = packages["nvidia-driver-550-server", "570.172.08-0ubuntu1"]
    assert first["Depends"] == "nvidia-driver-570-server"
    assert first["Description"] == "Transitional package for nvidia-driver-570-server"
    second = packages["nvidia-driver-570-server", "580.95.05-0ubuntu1"]
    assert second["Depends"] == "nvidia-driver-580-server"
    names = {name for name, _ in packages}
    assert f"linux-modules-nvidia-580-server-{kernel.running().lower()}" in names


def test_nvidia_smi_lists_the_cards(smi: Smi) -> None:
    done = smi.run("-L")
    assert done.returncode == 0
    assert [line.split(" (")[0] for line in done.stdout.splitlines()] == [
        f"GPU {number}: Tesla V100-SXM2-32GB" for number in range(4)
    ]
    table = smi.run().stdout
    assert "Driver Version: 580.95.05" in table and "CUDA Version: 13.0" in table


def test_nvidia_smi_shows_links_and_topology(smi: Smi) -> None:
    matrix = smi.run("topo", "-m").stdout
    assert re.search(r"^GPU2\tNV2\tNV2\t X \tNV2\t16-31\t1", matrix, re.M)
    with sim.change(smi.file) as state:
        sim.drop_link(state, 0, 2, heals="never")
    links = smi.run("nvlink", "-s", "-i", "0").stdout
    assert re.findall(r"Link \d: (\S+)", links) == ["25.781"] * 2 + ["<inactive>"] + ["25.781"] * 3


def test_topology_levels_and_cards_without_links(driver: Path, tmp_path: Path) -> None:
    smi = Smi(driver, tmp_path / "gpus.state")
    cards = [sim.Card(bus, "10de:1db6") for bus in BUSES]
    levels = {(0, 1): "pix", (0, 2): "phb", (0, 3): "sys", (1, 2): "pxb", (1, 3): "node"}
    state = sim.compose("pcie", cards, (), levels)
    sim.write(smi.file, {**state, "driver.version": "580.95.05"})
    rows = [line.split("\t")[1:5] for line in smi.run("topo", "-m").stdout.splitlines()[1:3]]
    assert rows == [[" X ", "PIX", "PHB", "SYS"], ["PIX", " X ", "PXB", "NODE"]]
    inactive = "Unable to retrieve NVLink information as all links are inActive"
    assert smi.run("nvlink", "-s").stdout.count(inactive) == 4


def test_lost_card(smi: Smi) -> None:
    with sim.change(smi.file) as state:
        state["gpu1.lost"] = "1"
    done = smi.run("-L")
    assert done.returncode == 15 and "GPU is lost" in done.stdout
    assert done.stdout.count("Tesla V100") == 3


def test_everything_nvidia_smi_asks_for_is_answered(smi: Smi) -> None:
    full = smi.run("-q")
    assert full.returncode == 0
    for wanted in (
        "Retired Pages",
        "GPU Shutdown Temp                 : 90 C",
        "Device Id                         : 0x1DB510DE",
        "Max Operating Temp",
        "Persistence Mode                      : Disabled",
    ):
        assert wanted in full.stdout, wanted
    assert "Unknown Error" not in full.stdout and "ERR!" not in full.stdout


def test_ecc_needs_a_reset_of_all_peers_without_clients(smi: Smi) -> None:
    assert smi.ecc() == ["Enabled, Enabled"] * 4
    assert smi.run("-e", "0").returncode == 0
    assert smi.ecc() == ["Enabled, Disabled"] * 4
    alone = smi.run("-r", "-i", "0")
    assert alone.returncode == 2 and "NVLink connected GPUs must be reset together" in alone.stdout
    client = subprocess.Popen(["sleep", "60"])
    try:
        with sim.change(smi.file) as state:
            state[f"gpu1.client.{client.pid}"] = "persistenced"
        refused = smi.run("-r")
        assert refused.returncode == 255
        assert "  GPU 00000000:1C:00.0: In use by another client" in refused.stdout
        assert smi.ecc() == ["Enabled, Disabled"] * 4
    finally:
        client.kill()
        client.wait()
    done = smi.run("-r")
    assert done.returncode == 0 and done.stdout.count("was successfully reset") == 4
    assert smi.ecc() == ["Disabled, Disabled"] * 4


def test_persistence_and_power_limit_through_nvidia_smi(smi: Smi) -> None:
    assert smi.run("-pm", "1").returncode == 0
    assert smi.run("-pl", "200").returncode == 0
    state = sim.read(smi.file)
    assert {state[f"gpu{n}.persistence"] for n in range(4)} == {"1"}
    assert {state[f"gpu{n}.power.limit"] for n in range(4)} == {"200000"}


def test_library_of_another_version_than_the_loaded_driver(smi: Smi) -> None:
    with sim.change(smi.file) as state:
        state["driver.version"] = "580.126.09"
    done = smi.run()
    assert done.returncode == 18
    assert "Failed to initialize NVML: Driver/library version mismatch" in done.stdout


def test_nvcc_compiles_for_volta_and_nothing_else(local: Path, tmp_path: Path) -> None:
    home = local / "var/cuda-repo-debian13-12-4-local"
    for name in ("nvcc", "crt", "cudart-dev", "cuobjdump"):
        unpack(home, f"cuda-{name}-12-4_*.deb", tmp_path)
    cuda = tmp_path / "usr/local/cuda-12.4"
    (tmp_path / "add.cu").write_text(KERNEL)
    env = {**os.environ, "PATH": f"{cuda}/libexec:{os.environ['PATH']}"}

    def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )

    assert "release 12.4, V12.4.131" in call(cuda / "libexec/nvcc", "--version").stdout
    code = "arch=compute_70,code=sm_70"
    made = call(cuda / "libexec/nvcc", "-gencode", code, "-c", "add.cu", "-o", "add.o")
    assert made.returncode == 0, made.stderr
    assert re.findall(r"sm_\d+", call(cuda / "bin/cuobjdump", "--list-elf", "add.o").stdout) == [
        "sm_70"
    ]
    assert "sm_" not in call(cuda / "bin/cuobjdump", "--list-ptx", "add.o").stdout


def test_module_files_tell_their_version(vendor: build.Vendor, tmp_path: Path) -> None:
    unpack(vendor.network, "nvidia-dkms-580_580.126.09-*.deb", tmp_path)
    unpack(vendor.network, "nvidia-dkms-580-open_580.95.05-*.deb", tmp_path)
    closed = tmp_path / "usr/src/nvidia-580.126.09/objects/nvidia.ko"
    assert b"version=580.126.09\0" in closed.read_bytes()
    assert b"license=NVIDIA\0" in closed.read_bytes()
    opened = tmp_path / "usr/src/nvidia-580.95.05/objects/nvidia.ko"
    assert b"license=Dual MIT/GPL\0" in opened.read_bytes()


def test_host_files_hold_the_cards_below_a_switch(tmp_path: Path) -> None:
    kernel.write(tmp_path, kernel.host_files("h", CARDS, PAIRS))
    devices = tmp_path / "pci/devices"
    for card in CARDS:
        folder = devices / card.pci
        assert (folder / "vendor").read_text() == "0x10de\n"
        assert (folder / "device").read_text() == "0x1db5\n"
        assert (folder / "current_link_width").read_text() == "16\n"
        above = folder.resolve().parent
        assert (above / "device").read_text() == "0x8749\n"  # PEX8749
    assert len({(devices / card.pci).resolve().parent.parent for card in CARDS}) == 1
    assert sim.read(tmp_path / "gpus.state")["gpu.count"] == "4"


@pytest.mark.parametrize("name", profiles.names())
def test_every_profile_has_its_cards(name: str) -> None:
    profile = profiles.load(name)
    files = kernel.for_profile("host", profile)
    for gpu in profile.gpus:
        assert isinstance(files[f"pci/devices/{gpu.pci}"], Link)
    text = files["gpus.state"]
    assert isinstance(text, bytes)
    for number, gpu in enumerate(profile.gpus):
        assert f"gpu{number}.name = {gpu.model}\n".encode() in text
    links = text.count(b".remote = ")
    assert links == 2 * sum(pair.links for pair in profile.nvlinks)


def test_layer_files_are_complete() -> None:
    for path, item in kernel.layer_files().items():
        if not isinstance(item, Link):
            assert isinstance(item.content, Path) and item.content.is_file(), path
