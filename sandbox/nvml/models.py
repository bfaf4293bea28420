"""What NVML reports of a GPU model, as lines of the state file.

Sources: NVIDIA's V100 data sheet (memory, power, links) and dumps of `nvidia-smi -q` published
for these cards (limits, clocks, memory sizes as drivers from 450 on report them). DGX Spark:
cases C19 and requirement T11 of the documented state.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Model:
    """One product: sizes in MiB, power in W, clocks in MHz, temperatures in degrees C."""

    name: str
    subsystem: str
    memory: int | None
    power: tuple[int, int, int] | None  # lowest, default, highest
    clocks: tuple[int, int, int] | None  # graphics highest, graphics default, memory
    links: int
    ecc: bool = True
    fans: int = 0
    compute: tuple[int, int] = (7, 0)
    architecture: int = 5  # NVML_DEVICE_ARCH_VOLTA
    cores: int = 5120
    pages: bool = True  # page retirement, replaced by row remapping from Ampere on
    pcie: int = 3
    part: str = "unsupported"
    reset: bool = True


SXM2 = (150, 300, 300)
PCIE = (100, 250, 250)
MODELS = {
    "10de:1db1": Model("Tesla V100-SXM2-16GB", "10de:1212", 16384, SXM2, (1530, 1290, 877), 6),
    "10de:1db4": Model("Tesla V100-PCIE-16GB", "10de:1214", 16384, PCIE, (1380, 1230, 877), 0),
    "10de:1db5": Model("Tesla V100-SXM2-32GB", "10de:1249", 32768, SXM2, (1530, 1290, 877), 6),
    "10de:1db6": Model("Tesla V100-PCIE-32GB", "10de:124a", 32768, PCIE, (1380, 1230, 877), 0),
    "10de:1db8": Model(
        "Tesla V100-SXM3-32GB", "10de:131d", 32768, (150, 350, 350), (1597, 1290, 958), 6
    ),
    "10de:1df6": Model("Tesla V100S-PCIE-32GB", "10de:13d6", 32768, PCIE, (1597, 1245, 1107), 0),
    "10de:1eb8": Model(
        "Tesla T4",
        "10de:12a2",
        15360,
        (60, 70, 70),
        (1590, 585, 5001),
        0,
        compute=(7, 5),
        architecture=6,
        cores=2560,
    ),
    # unified memory: NVML has no size, no power limit and no ECC for it
    "10de:2e12": Model(
        "NVIDIA GB10",
        "10de:0000",
        None,
        None,
        (3003, 3003, 8533),
        0,
        ecc=False,
        compute=(12, 1),
        architecture=10,
        cores=6144,
        pages=False,
        pcie=5,
        reset=False,
    ),
}

SENSORS = {
    "gpu": 36,
    "shutdown": 90,
    "slowdown": 87,
    "gpu_max": 83,
    "memory_max": 85,
}


def lines(model: Model, bus: str, device: str, uuid: str, serial: str) -> dict[str, str]:
    """Keys of one idle, healthy GPU, without the ``gpuN.`` before them.

    bus is ``0000:3b:00.0``, device ``10de:1db6``.
    """
    out: dict[str, object] = {
        "name": model.name,
        "uuid": uuid,
        "serial": serial,
        "pci.bus": bus,
        "pci.device": device,
        "pci.subsystem": model.subsystem,
        "brand": 2 if model.name.startswith("Tesla") else 0,
        "architecture": model.architecture,
        "cc.major": model.compute[0],
        "cc.minor": model.compute[1],
        "cores": model.cores,
        "vbios": "88.00.98.00.01",
        "part": model.part,
        "inforom.image": "G503.0203.00.04" if model.links else "G500.0212.00.02",
        "inforom.oem": "1.1",
        "inforom.ecc": "5.0",
        "persistence": 0,
        "compute_mode": 0,
        "accounting": 0,
        "accounting.buffer": 4000,
        "pstate": 0,
        "virtualization": 0,
        "display.mode": 0,
        "display.active": 0,
        "fans": model.fans,
        "utilization.gpu": 0,
        "utilization.memory": 0,
        "utilization.encoder": 0,
        "utilization.decoder": 0,
        "utilization.period": 167000,
        "pcie.gen.current": 1,  # idle; rises under load
        "pcie.gen.max": model.pcie,
        "pcie.gen.device": model.pcie,
        "pcie.width.current": 16,
        "pcie.width.max": 16,
        "pcie.replays": 0,
        "pcie.rx": 0,
        "pcie.tx": 0,
        "clocks.reasons": 1,  # GPU idle
        "clocks.reasons.supported": 0x1FF,
    }
    out.update({f"temperature.{key}": value for key, value in SENSORS.items()})
    for fan in range(model.fans):
        out.update({f"fan{fan}.speed": 30, f"fan{fan}.policy": 0})
    if model.memory is not None:
        out["memory.total"] = model.memory * MIB
        out["memory.reserved"] = 266 * MIB
        out["memory.used"] = 0
        out["memory.bus_width"] = 4096
        out["bar1.total"] = model.memory * MIB
        out["bar1.used"] = 2 * MIB
    if model.power is not None:
        low, default, high = (watts * 1000 for watts in model.power)
        out.update({"power.min": low, "power.default": default, "power.max": high})
        out.update({"power.limit": default, "power.usage": 42000, "power.energy": 0})
        out.update({"power.management": 1, "power.source": 0})
    if model.clocks is not None:
        graphics, default_clock, memory = model.clocks
        for kind, top, normal, now in (
            ("graphics", graphics, default_clock, 135),
            ("sm", graphics, default_clock, 135),
            ("memory", memory, memory, memory),
            ("video", graphics - 158, graphics - 158, 555),
        ):
            out[f"clocks.{kind}.max"] = top
            out[f"clocks.{kind}.default"] = out[f"clocks.{kind}.application"] = normal
            out[f"clocks.{kind}.current"] = now
    if model.ecc:
        out.update({"ecc.current": 1, "ecc.pending": 1, "ecc.default": 1})
        for span in ("volatile", "aggregate"):
            out.update({f"ecc.errors.{span}.{kind}": 0 for kind in ("corrected", "uncorrected")})
    if model.pages:
        out.update({"retired.sbe": "", "retired.dbe": "", "retired.pending": 0})
    if model.reset:
        out["reset"] = "yes"
    for link in range(model.links):
        out[f"link{link}.state"] = 0
        out[f"link{link}.version"] = 2  # NVLink 2.0
        for kind in ("replay", "recovery", "crc_flit", "crc_data"):
            out[f"link{link}.errors.{kind}"] = 0
        for cap in ("p2p", "sysmem", "p2p_atomics", "sysmem_atomics"):
            out[f"link{link}.cap.{cap}"] = 1
        out.update({f"link{link}.cap.sli": 0, f"link{link}.cap.valid": 1})
    return {key: str(value) for key, value in out.items()}
