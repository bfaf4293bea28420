"""The simulated NVML, read through nvidia-ml-py in a process of its own.

Each reader starts from a state file with values that no default gives, so an answer that does
not come from the file fails.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sandbox.nvml
from sandbox.nvml import state as sim

pytestmark = pytest.mark.skipif(
    not shutil.which("gcc") or sys.platform != "linux", reason="the library is built with gcc"
)

BUSES = ("0000:1a:00.0", "0000:1c:00.0", "0000:88:00.0", "0000:8a:00.0")
MESH = tuple(sim.Pair(pair, 2) for pair in itertools.combinations(BUSES, 2))
SXM2 = "10de:1db5"

# Runs in its own process: nvidia-ml-py keeps the library it loaded first.
READER = """
import ctypes, json, sys
import pynvml as n
n.nvmlLib = ctypes.CDLL(sys.argv[1])
def safe(call, *args):
    try:
        value = call(*args)
    except n.NVMLError as error:
        return "ERR " + type(error).__name__
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "_fields_"):
        return {name: str(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, (list, tuple)):
        return [int(v) if isinstance(v, int) else str(v) for v in value]
    return value
out = []
for call in json.load(sys.stdin):
    name, *args = call
    args = [handle if a == "H" else a for a in args]
    if name == "handle":
        got = safe(n.nvmlDeviceGetHandleByIndex, *args)
        handle = n.nvmlDeviceGetHandleByIndex(*args) if not str(got).startswith("ERR") else None
        out.append(got if handle is None else "ok")
    elif name == "pair":
        function, a, b, *rest = args
        a, b = n.nvmlDeviceGetHandleByIndex(a), n.nvmlDeviceGetHandleByIndex(b)
        out.append(safe(getattr(n, function), a, b, *rest))
    elif name == "fields":
        values = n.nvmlDeviceGetFieldValues(handle, [tuple(a) for a in args[1]])
        good = [v.nvmlReturn == 0 for v in values]
        out.append([int(v.value.ullVal) if g else "ERR" for v, g in zip(values, good)])
    elif name == "processes":
        found = safe(n.nvmlDeviceGetComputeRunningProcesses, *args)
        if not isinstance(found, str):
            found = n.nvmlDeviceGetComputeRunningProcesses(*args)
            found = [[p.pid, p.usedGpuMemory] for p in found]
        out.append(found)
    else:
        out.append(safe(getattr(n, name), *args))
print(json.dumps(out))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sandbox.nvml.build(
        tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1", "580.95.05", 13000
    )


class Host:
    """A state file and nvidia-ml-py over it."""

    def __init__(self, library: Path, file: Path, state: dict[str, str]) -> None:
        self.library = library
        self.file = file
        sim.write(file, {"driver.version": "580.95.05", **state})

    def ask(self, *calls: tuple[Any, ...], timeout: float = 20) -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-c", READER, str(self.library)],
            input=json.dumps(calls),
            env={**os.environ, "VOLTFLEET_SIM_STATE": str(self.file)},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    def gpu(self, index: int, *calls: tuple[Any, ...], timeout: float = 20) -> list[Any]:
        return self.ask(("nvmlInit",), ("handle", index), *calls, timeout=timeout)[2:]

    def set(self, **values: str) -> None:
        with sim.change(self.file) as state:
            state.update({key.replace("__", "."): value for key, value in values.items()})

    def get(self, key: str) -> str:
        return sim.read(self.file)[key]


@pytest.fixture
def mesh(library: Path, tmp_path: Path) -> Host:
    cards = [sim.Card(bus, SXM2) for bus in BUSES]
    return Host(library, tmp_path / "gpus.state", sim.compose("mesh", cards, MESH))


@pytest.fixture
def pcie(library: Path, tmp_path: Path) -> Host:
    cards = [sim.Card(bus, "10de:1db6") for bus in ("0000:3b:00.0", "0000:d8:00.0")]
    return Host(library, tmp_path / "gpus.state", sim.compose("pcie", cards))


def test_system(mesh: Host) -> None:
    assert mesh.ask(
        ("nvmlInit",),
        ("nvmlSystemGetDriverVersion",),
        ("nvmlSystemGetNVMLVersion",),
        ("nvmlSystemGetCudaDriverVersion",),
        ("nvmlDeviceGetCount",),
        ("handle", 4),
    )[1:] == ["580.95.05", "13.580.95.05", 13000, 4, "ERR NVMLError_InvalidArgument"]


READINGS: list[tuple[tuple[Any, ...], dict[str, str], Any]] = [
    (("nvmlDeviceGetName", "H"), {"name": "Tesla X"}, "Tesla X"),
    (("nvmlDeviceGetUUID", "H"), {"uuid": "GPU-1"}, "GPU-1"),
    (("nvmlDeviceGetSerial", "H"), {"serial": "77"}, "77"),
    (("nvmlDeviceGetVbiosVersion", "H"), {"vbios": "88.1"}, "88.1"),
    (("nvmlDeviceGetArchitecture", "H"), {"architecture": "6"}, 6),
    (("nvmlDeviceGetBrand", "H"), {"brand": "9"}, 9),
    (
        ("nvmlDeviceGetCudaComputeCapability", "H"),
        {"cc.major": "7", "cc.minor": "5"},
        [7, 5],
    ),
    (("nvmlDeviceGetEccMode", "H"), {"ecc.pending": "0", "ecc.current": "1"}, [1, 0]),
    (("nvmlDeviceGetDefaultEccMode", "H"), {"ecc.default": "0"}, [0]),
    (("nvmlDeviceGetPersistenceMode", "H"), {"persistence": "1"}, 1),
    (("nvmlDeviceGetComputeMode", "H"), {"compute_mode": "3"}, 3),
    (("nvmlDeviceGetNumFans", "H"), {"fans": "2"}, 2),
    (("nvmlDeviceGetFanSpeed_v2", "H", 0), {"fans": "2", "fan0.speed": "44"}, 44),
    (("nvmlDeviceGetFanControlPolicy_v2", "H", 0), {"fans": "2", "fan0.policy": "1"}, 1),
    (("nvmlDeviceGetTemperature", "H", 0), {"temperature.gpu": "81"}, 81),
    (("nvmlDeviceGetTemperatureV", "H", 0), {"temperature.gpu": "81"}, 81),
    (("nvmlDeviceGetTemperatureThreshold", "H", 0), {"temperature.shutdown": "91"}, 91),
    (("nvmlDeviceGetTemperatureThreshold", "H", 1), {"temperature.slowdown": "88"}, 88),
    (("nvmlDeviceGetTemperatureThreshold", "H", 3), {"temperature.gpu_max": "82"}, 82),
    (("nvmlDeviceGetClockInfo", "H", 1), {"clocks.sm.current": "1200"}, 1200),
    (("nvmlDeviceGetMaxClockInfo", "H", 0), {"clocks.graphics.max": "1531"}, 1531),
    (("nvmlDeviceGetApplicationsClock", "H", 2), {"clocks.memory.application": "878"}, 878),
    (("nvmlDeviceGetCurrentClocksEventReasons", "H"), {"clocks.reasons": "0x60"}, 0x60),
    (("nvmlDeviceGetCurrentClocksThrottleReasons", "H"), {"clocks.reasons": "0x60"}, 0x60),
    (("nvmlDeviceGetPerformanceState", "H"), {"pstate": "2"}, 2),
    (("nvmlDeviceGetPowerUsage", "H"), {"power.usage": "123000"}, 123000),
    (("nvmlDeviceGetPowerManagementLimit", "H"), {"power.limit": "200000"}, 200000),
    (("nvmlDeviceGetEnforcedPowerLimit", "H"), {"power.limit": "200000"}, 200000),
    (("nvmlDeviceGetPowerManagementDefaultLimit", "H"), {"power.default": "1"}, 1),
    (
        ("nvmlDeviceGetPowerManagementLimitConstraints", "H"),
        {"power.min": "5", "power.max": "6"},
        [5, 6],
    ),
    (("nvmlDeviceGetTotalEnergyConsumption", "H"), {"power.energy": "99"}, 99),
    (("nvmlDeviceGetCurrPcieLinkGeneration", "H"), {"pcie.gen.current": "2"}, 2),
    (("nvmlDeviceGetMaxPcieLinkGeneration", "H"), {"pcie.gen.max": "4"}, 4),
    (("nvmlDeviceGetCurrPcieLinkWidth", "H"), {"pcie.width.current": "8"}, 8),
    (("nvmlDeviceGetMaxPcieLinkWidth", "H"), {"pcie.width.max": "32"}, 32),
    (("nvmlDeviceGetPcieReplayCounter", "H"), {"pcie.replays": "17"}, 17),
    (("nvmlDeviceGetRetiredPagesPendingStatus", "H"), {"retired.pending": "1"}, 1),
    (
        ("nvmlDeviceGetUtilizationRates", "H"),
        {"utilization.gpu": "51", "utilization.memory": "52"},
        {"gpu": "51", "memory": "52"},
    ),
    (
        ("nvmlDeviceGetTotalEccErrors", "H", 1, 1),
        {"ecc.errors.aggregate.uncorrected": "3"},
        3,
    ),
    (
        ("nvmlDeviceGetMemoryErrorCounter", "H", 0, 0, 2),
        {"ecc.errors.volatile.corrected": "4"},
        4,
    ),
    (("nvmlDeviceGetNvLinkState", "H", 3), {"link3.state": "0"}, 0),
    (("nvmlDeviceGetNvLinkVersion", "H", 5), {"link5.version": "3"}, 3),
    (("nvmlDeviceGetNvLinkCapability", "H", 0, 0), {"link0.cap.p2p": "0"}, 0),
    (("nvmlDeviceGetNvLinkErrorCounter", "H", 1, 0), {"link1.errors.replay": "8"}, 8),
    (("nvmlDeviceGetNvLinkErrorCounter", "H", 1, 1), {"link1.errors.recovery": "9"}, 9),
    (("nvmlDeviceGetNvLinkErrorCounter", "H", 1, 2), {"link1.errors.crc_flit": "10"}, 10),
    (("nvmlDeviceGetNvLinkErrorCounter", "H", 1, 3), {"link1.errors.crc_data": "11"}, 11),
]


@pytest.fixture(scope="module")
def readings(
    library: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Any], list[Any]]:
    """Answers with each key set as above, and with each "unsupported"."""
    cards = [sim.Card(bus, SXM2) for bus in BUSES]
    state = sim.compose("mesh", cards, MESH)
    for _, keys, _ in READINGS:
        state.update({f"gpu2.{key}": value for key, value in keys.items()})
    folder = tmp_path_factory.mktemp("readings")
    calls = [call for call, _, _ in READINGS]
    first = Host(library, folder / "set.state", state).gpu(2, *calls)
    missing = {f"gpu2.{key}": "unsupported" for _, keys, _ in READINGS for key in keys}
    return first, Host(library, folder / "missing.state", {**state, **missing}).gpu(2, *calls)


@pytest.mark.parametrize(
    "number", range(len(READINGS)), ids=[f"{n}-{r[0][0]}" for n, r in enumerate(READINGS)]
)
def test_reading_comes_from_its_key(readings: tuple[list[Any], list[Any]], number: int) -> None:
    assert readings[0][number] == READINGS[number][2]
    assert str(readings[1][number]).startswith("ERR NVMLError_")


def test_pci_and_memory(mesh: Host) -> None:
    mesh.set(gpu2__memory__used=str(5 << 20))
    pci, memory, bar1 = mesh.gpu(
        2,
        ("nvmlDeviceGetPciInfo", "H"),
        ("nvmlDeviceGetMemoryInfo", "H"),
        ("nvmlDeviceGetBAR1MemoryInfo", "H"),
    )
    assert pci["busId"] == "00000000:88:00.0" and pci["busIdLegacy"] == "0000:88:00.0"
    assert (pci["bus"], pci["pciDeviceId"]) == (str(0x88), str(0x1DB510DE))
    assert memory["total"] == str(32768 << 20) and memory["used"] == str((266 + 5) << 20)
    assert bar1["bar1Total"] == str(32768 << 20)


def test_links_have_both_ends(mesh: Host) -> None:
    for index, bus in enumerate(BUSES):
        calls = [("nvmlDeviceGetNvLinkRemotePciInfo", "H", link) for link in range(6)]
        ends = [end["busIdLegacy"].lower() for end in mesh.gpu(index, *calls)]
        assert sorted(ends) == sorted(2 * [b for b in BUSES if b != bus])
    with sim.change(mesh.file) as state:
        sim.drop_link(state, 0, 3)
    states = [("nvmlDeviceGetNvLinkState", "H", link) for link in range(6)]
    assert mesh.gpu(0, *states) == [1, 1, 1, 0, 1, 1]
    assert [sum(mesh.gpu(g, *states)) for g in range(4)] == [5, 6, 5, 6]
    assert mesh.gpu(0, states[3], ("nvmlDeviceGetNvLinkState", "H", 6)) == [
        0,
        "ERR NVMLError_NotSupported",
    ]


def test_topology_and_peer_to_peer(mesh: Host) -> None:
    pair = ("nvmlInit",), ("pair", "nvmlDeviceGetTopologyCommonAncestor", 0, 2)
    mesh.set(**{"topology.0.2": "sys", "p2p.0.2.read": "3"})
    p2p = [("pair", "nvmlDeviceGetP2PStatus", 0, 2, cap) for cap in (0, 1, 2)]
    assert mesh.ask(*pair, *p2p)[1:] == [50, 3, 0, 0]
    mesh.set(**{"topology.0.2": "phb"})
    assert mesh.ask(*pair)[1:] == [30]


def test_pcie_card_has_no_links_and_no_fan(pcie: Host) -> None:
    assert pcie.gpu(
        1,
        ("nvmlDeviceGetNvLinkState", "H", 0),
        ("nvmlDeviceGetNumFans", "H"),
        ("nvmlDeviceGetFanSpeed_v2", "H", 0),
        ("nvmlDeviceSetFanSpeed_v2", "H", 0, 70),
    ) == [
        "ERR NVMLError_NotSupported",
        0,
        "ERR NVMLError_InvalidArgument",
        "ERR NVMLError_InvalidArgument",
    ]
    p2p = ("pair", "nvmlDeviceGetP2PStatus", 0, 1, 2)
    assert pcie.ask(("nvmlInit",), p2p)[1] == 5


def test_retired_pages(mesh: Host) -> None:
    mesh.set(gpu0__retired__dbe="0x1000 0x2000")
    double = ("nvmlDeviceGetRetiredPages", "H", 1)
    single = ("nvmlDeviceGetRetiredPages", "H", 0)
    assert mesh.gpu(0, double, single) == [[0x1000, 0x2000], []]


def test_processes_live_and_count_as_memory(mesh: Host) -> None:
    me = os.getpid()
    mesh.set(**{f"gpu1.process.{me}": "900", "gpu1.process.999999999": "5"})
    found, memory = mesh.gpu(1, ("processes", "H"), ("nvmlDeviceGetMemoryInfo", "H"))
    assert found == [[me, 900 << 20]]
    assert memory["used"] == str((266 + 900) << 20)
    name = Path(f"/proc/{me}/comm").read_text().strip()
    mesh.set(**{f"gpu2.process.{name}": "7"})
    assert [me, 7 << 20] in mesh.gpu(2, ("processes", "H"))[0]


@pytest.mark.parametrize(
    "call, key, value",
    [
        (("nvmlDeviceSetEccMode", "H", 0), "ecc.pending", "0"),
        (("nvmlDeviceSetPersistenceMode", "H", 1), "persistence", "1"),
        (("nvmlDeviceSetPowerManagementLimit", "H", 200000), "power.limit", "200000"),
        (("nvmlDeviceSetComputeMode", "H", 3), "compute_mode", "3"),
    ],
    ids=lambda v: str(v),
)
def test_writes_go_to_the_file(mesh: Host, call: tuple[Any, ...], key: str, value: str) -> None:
    before = sim.read(mesh.file)
    assert mesh.gpu(3, call) == [None]
    after = sim.read(mesh.file)
    changed = {k: v for k, v in after.items() if before.get(k) != v and k != "boot"}
    assert changed == {f"gpu3.{key}": value}
    assert after["gpu3.ecc.current"] == "1"  # pending alone: no reset has been made


def test_power_limit_outside_the_bounds_is_refused(mesh: Host) -> None:
    call = ("nvmlDeviceSetPowerManagementLimit", "H", 301000)
    assert mesh.gpu(0, call) == ["ERR NVMLError_InvalidArgument"]
    assert mesh.get("gpu0.power.limit") == "300000"


def test_fans_of_a_card_that_has_them(mesh: Host) -> None:
    mesh.set(gpu0__fans="1", gpu0__fan0__speed="30", gpu0__fan0__policy="0")
    assert mesh.gpu(0, ("nvmlDeviceSetFanSpeed_v2", "H", 0, 70))[0] in (0, None)
    assert (mesh.get("gpu0.fan0.speed"), mesh.get("gpu0.fan0.policy")) == ("70", "1")
    assert mesh.gpu(0, ("nvmlDeviceSetFanSpeed_v2", "H", 0, 5)) == ["ERR NVMLError_InvalidArgument"]
    assert mesh.gpu(0, ("nvmlDeviceSetDefaultFanSpeed_v2", "H", 0))[0] in (0, None)
    assert mesh.get("gpu0.fan0.policy") == "0"


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"driver.version": "580.126.09"}, "ERR NVMLError_LibRmVersionMismatch"),
        ({"driver.version": "unsupported"}, "ERR NVMLError_DriverNotLoaded"),
        ({"fault.nvmlInit": "NO_PERMISSION"}, "ERR NVMLError_NoPermission"),
    ],
    ids=["mismatch", "not loaded", "refused"],
)
def test_start_faults(mesh: Host, values: dict[str, str], expected: str) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a loaded NVIDIA driver of its own")
    mesh.set(**values)
    assert mesh.ask(("nvmlInit",)) == [expected]


def test_faults_of_calls(mesh: Host) -> None:
    mesh.set(
        **{
            "gpu0.lost": "1",
            "fault.nvmlDeviceGetSerial": "NO_PERMISSION",
            "gpu1.fault.nvmlDeviceGetEccMode": "NOT_SUPPORTED",
        }
    )
    assert mesh.ask(("nvmlInit",), ("handle", 0), ("nvmlDeviceGetCount",))[1:] == [
        "ERR NVMLError_GpuIsLost",
        4,
    ]
    calls = ("nvmlDeviceGetSerial", "H"), ("nvmlDeviceGetEccMode", "H")
    assert mesh.gpu(1, *calls) == ["ERR NVMLError_NoPermission", "ERR NVMLError_NotSupported"]
    assert mesh.gpu(2, calls[1]) == [[1, 1]]


def test_hang_is_in_the_named_call_only(mesh: Host) -> None:
    mesh.set(**{"gpu1.fault.nvmlDeviceGetTemperature": "hang"})
    assert mesh.gpu(1, ("nvmlDeviceGetName", "H")) == ["Tesla V100-SXM2-32GB"]
    with pytest.raises(subprocess.TimeoutExpired):
        mesh.gpu(1, ("nvmlDeviceGetTemperature", "H", 0), timeout=2)


def test_reboot_applies_pending_modes(mesh: Host) -> None:
    mesh.gpu(0, ("nvmlDeviceSetEccMode", "H", 0), ("nvmlDeviceSetPersistenceMode", "H", 1))
    with sim.change(mesh.file) as state:
        sim.drop_link(state, 0, 0, heals="reboot")
        sim.drop_link(state, 0, 1, heals="never")
        assert state["boot"] != "none"
        state["boot"] = "another-boot"
    ecc, persistence, first, second = mesh.gpu(
        0,
        ("nvmlDeviceGetEccMode", "H"),
        ("nvmlDeviceGetPersistenceMode", "H"),
        ("nvmlDeviceGetNvLinkState", "H", 0),
        ("nvmlDeviceGetNvLinkState", "H", 1),
    )
    assert (ecc, persistence, first, second) == ([0, 0], 0, 1, 0)


def test_link_that_heals_with_time_or_the_bmc(mesh: Host) -> None:
    with sim.change(mesh.file) as state:
        sim.drop_link(state, 0, 0, heals="at:1")
        sim.drop_link(state, 0, 1, heals="at:99999999999")
        sim.drop_link(state, 0, 2, heals="bmc")
    states = [("nvmlDeviceGetNvLinkState", "H", link) for link in range(3)]
    assert mesh.gpu(0, *states) == [1, 0, 0]
    with sim.change(mesh.file) as state:
        assert sim.heal_links(state, "bmc") == 2
    assert mesh.gpu(0, *states) == [1, 0, 1]


def test_field_values(mesh: Host) -> None:
    mesh.set(gpu0__link2__errors__crc_flit="6", gpu0__link0__state="0")
    ids = [(34, 0), (38, 0), (84, 0), (85, 0), (91, 0), (165, 0), (165, 1), (190, 0), (1, 0)]
    got = mesh.gpu(0, ("fields", "H", ids))
    assert got == [[6, 6, 0, 25781, 6, 0, 1, 300000, "ERR"]]


def test_spark_has_unified_memory(library: Path, tmp_path: Path) -> None:
    state = sim.compose("spark", [sim.Card("000f:01:00.0", "10de:2e12")])
    host = Host(library, tmp_path / "gpus.state", state)
    assert host.gpu(
        0,
        ("nvmlDeviceGetName", "H"),
        ("nvmlDeviceGetMemoryInfo", "H"),
        ("nvmlDeviceGetEccMode", "H"),
        ("nvmlDeviceGetArchitecture", "H"),
    ) == ["NVIDIA GB10", "ERR NVMLError_NotSupported", "ERR NVMLError_NotSupported", 10]


def test_compose_refuses_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="10de:ffff"):
        sim.compose("x", [sim.Card("0000:01:00.0", "10de:ffff")])
    cards = [sim.Card(bus, "10de:1db6") for bus in BUSES[:2]]
    with pytest.raises(ValueError, match="has no NVLink 0"):
        sim.compose("x", cards, [sim.Pair((BUSES[0], BUSES[1]), 1)])
    with pytest.raises(ValueError, match="no card 0000:88"):
        sim.compose("x", cards, [sim.Pair((BUSES[0], BUSES[2]), 1)])
