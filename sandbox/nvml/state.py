"""The state file of the simulated NVML: `key = value` lines, written beside and renamed.

Library-wide keys::

    gpu.count                 number of GPUs (index = order)
    driver.version            loaded kernel driver; without it /proc/driver/nvidia/version is read
    library.version           what the library claims to be, instead of what it was built as
    cuda.version              12040 for 12.4
    boot                      stamp of the boot the file was last used in; "none": next use is it
    fault.<nvmlCall>          "hang", "hang SECONDS" or an error (NO_PERMISSION, UNKNOWN...)
    topology.A.B              pix, pxb, phb, node or sys, A < B
    p2p.A.B.<cap>             nvmlGpuP2PStatus_t for read, write, nvlink, atomics, prop

Per GPU (``gpuN.``), besides the readings of `sandbox.nvml.models`::

    lost, lost.heals          1: fallen off the bus; heals "reset": comes back with a reset
    busy                      1: a reset is refused although no client is to be found
    client.PID                a client without compute, while the process lives
    process.PID|COMM          MiB that a process has on the GPU, while it lives
    reset                     "yes"; "keeps-ecc": a reset does not apply the pending ECC mode;
                              no such key: the card cannot be reset
    resets                    counts the resets that were carried out
    linkL.state, .remote      1 up, 0 down; PCI bus id of the other end
    linkL.heals               what brings a link that is down back: reset, reboot, bmc, never or
                              at:UNIXTIME
    fault.<nvmlCall>          as above, for this GPU

A value "unsupported", or no line, makes the call answer "not supported". A reboot of the host
(a new start of pid 1) applies pending modes, clears persistence and limits, and heals links.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.nvml.models import MODELS, lines

DEFAULT = Path("/run/voltfleet-sim/gpus.state")


@dataclass(frozen=True)
class Card:
    """A GPU in a slot: PCI bus id (``0000:3b:00.0``) and PCI vendor:device (``10de:1db6``)."""

    pci: str
    device: str


@dataclass(frozen=True)
class Pair:
    """NVLinks between two cards, by PCI bus id."""

    between: tuple[str, str]
    links: int


def compose(
    seed: str,
    cards: Sequence[Card],
    pairs: Sequence[Pair] = (),
    topology: Mapping[tuple[int, int], str] | None = None,
) -> dict[str, str]:
    """State of a healthy host.

    seed makes serials and UUIDs (the host's name); topology gives pairs by index, the others are
    ``pix`` where NVLinked and ``node`` or ``sys`` by the half of the bus numbers they are in.
    Raises ValueError for an unknown device, a card that is not there, or too many links.
    """
    out = {"boot": "none", "gpu.count": str(len(cards))}
    index = {card.pci: number for number, card in enumerate(cards)}
    for number, card in enumerate(cards):
        if card.device not in MODELS:
            raise ValueError(f"{card.pci}: no data for {card.device}, known: {', '.join(MODELS)}")
        digest = hashlib.sha256(f"{seed} {card.pci}".encode()).hexdigest()
        uuid = f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
        serial = f"0{int(digest[32:44], 16) % 10**12:012d}"
        keys = lines(MODELS[card.device], card.pci, card.device, uuid, serial)
        upper = int(card.pci.split(":")[1], 16) >= 0x80
        keys["affinity.cpus"] = "16-31" if upper else "0-15"
        keys["affinity.nodes"] = "1" if upper else "0"
        out.update({f"gpu{number}.{key}": value for key, value in keys.items()})
    used = dict.fromkeys(index, 0)
    for pair in pairs:
        for bus in pair.between:
            if bus not in index:
                raise ValueError(f"NVLink {pair.between}: there is no card {bus}")
        _connect(out, pair, index, used)
    for a in range(len(cards)):
        for b in range(a + 1, len(cards)):
            level = (topology or {}).get((a, b)) or _level(cards[a], cards[b], pairs)
            out[f"topology.{a}.{b}"] = level
    return out


def _connect(
    out: dict[str, str], pair: Pair, index: Mapping[str, int], used: dict[str, int]
) -> None:
    for bus, peer in (pair.between, pair.between[::-1]):
        for link in range(used[bus], used[bus] + pair.links):
            key = f"gpu{index[bus]}.link{link}"
            if f"{key}.state" not in out:
                raise ValueError(f"{bus} has no NVLink {link}")
            out.update({f"{key}.state": "1", f"{key}.remote": peer, f"{key}.heals": "reset"})
        used[bus] += pair.links


def _level(a: Card, b: Card, pairs: Sequence[Pair]) -> str:
    if any({a.pci, b.pci} == set(pair.between) for pair in pairs):
        return "pix"
    halves = {int(card.pci.split(":")[1], 16) >= 0x80 for card in (a, b)}
    return "sys" if len(halves) == 2 else "node"


def read(path: Path) -> dict[str, str]:
    """The file's keys and values."""
    out = {}
    for line in path.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith("#"):
            out[key.strip()] = value.strip()
    return out


def write(path: Path, state: Mapping[str, str]) -> None:
    """Write the whole state; readers see the old or the new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text("".join(f"{key} = {value}\n" for key, value in state.items()))
    part.chmod(0o644)
    part.replace(path)


@contextmanager
def change(path: Path) -> Iterator[dict[str, str]]:
    """Hold the library's lock, give the state to change, write it at the end."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        state = read(path)
        yield state
        write(path, state)
    finally:
        os.close(descriptor)


def drop_link(state: dict[str, str], gpu: int, link: int, heals: str = "reset") -> None:
    """Take a link down at both ends; heals says what brings it back (see above)."""
    ends = [f"gpu{gpu}.link{link}", _other_end(state, gpu, link)]
    for end in ends:
        state[f"{end}.state"] = "0"
        state[f"{end}.heals"] = heals


def heal_links(state: dict[str, str], by: str) -> int:
    """Bring back every link that waits for this (``bmc``); how many ends came up."""
    down = [key for key in state if key.endswith(".heals") and state[key] == by]
    ends = [key.removesuffix(".heals") for key in down]
    ends = [end for end in ends if state.get(f"{end}.state") == "0"]
    state.update({f"{end}.state": "1" for end in ends})
    return len(ends)


def _other_end(state: Mapping[str, str], gpu: int, link: int) -> str:
    """The n-th link of a GPU to its peer ends at the n-th link of the peer to the GPU."""
    remote = state[f"gpu{gpu}.link{link}.remote"]
    here = state[f"gpu{gpu}.pci.bus"]
    peer = next(n for n in range(len(state)) if state.get(f"gpu{n}.pci.bus") == remote)
    nth = [n for n in range(6) if state.get(f"gpu{gpu}.link{n}.remote") == remote].index(link)
    back = [n for n in range(6) if state.get(f"gpu{peer}.link{n}.remote") == here]
    return f"gpu{peer}.link{back[nth]}"
