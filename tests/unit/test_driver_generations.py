"""Which generation a card is of, and what its drivers may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules import gpu_generations
from rules.gpu_generations import GENERATIONS, generation_of

OPEN_IDS = Path(__file__).parent / "data" / "open_modules_ids.txt"


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("1db1", "volta"),  # V100 SXM2 16 GB
        ("1db4", "volta"),  # V100 PCIe 16 GB
        ("1db5", "volta"),  # V100 SXM2 32 GB
        ("1db6", "volta"),  # V100 PCIe 32 GB
        ("1db8", "volta"),  # V100 SXM3 32 GB
        ("1df6", "volta"),  # V100S PCIe 32 GB
        ("10de:1DB5", "volta"),
        ("15f8", "pascal"),  # P100
        ("102d", "kepler"),  # K80
        ("1eb8", "turing"),  # T4
        ("20b2", "ampere"),  # A100 SXM4 80 GB
        ("2684", "ada"),  # RTX 4090
        ("2335", "hopper"),  # H200
        ("2901", "blackwell"),  # B200
        ("2e12", "blackwell"),  # GB10 of the DGX Spark
    ],
)
def test_known_cards(device: str, name: str) -> None:
    found = generation_of(device)
    assert found is not None and found.name == name


def test_unknown_card_is_not_guessed() -> None:
    assert generation_of("ffff") is None


def test_no_device_has_two_generations() -> None:
    ids = [device for text in gpu_generations._DEVICES.values() for device in text.split()]
    assert len(ids) == len(set(ids))
    assert set(gpu_generations._DEVICES) == set(GENERATIONS)


def test_the_open_modules_list_agrees() -> None:
    """Every card that NVIDIA's open kernel modules 595.45.04 list is Turing or newer here."""
    ids = OPEN_IDS.read_text().split()
    assert len(ids) == 289
    wrong = [
        device for device in ids if (generation_of(device) or GENERATIONS["volta"]).last_branch
    ]
    assert wrong == []


def test_limits() -> None:
    assert {g.name: g.last_branch for g in GENERATIONS.values() if g.last_branch} == {
        "kepler": 470,
        "maxwell": 580,
        "pascal": 580,
        "volta": 580,
    }
    assert [g.name for g in GENERATIONS.values() if g.open_modules == "only"] == [
        "blackwell",
        "rubin",
    ]
