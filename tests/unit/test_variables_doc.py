"""docs/variables.md is what its generator writes, and its example is sound."""

from __future__ import annotations

import re
from pathlib import Path

from docs.make_variables import document, sections
from rules.schema import HostConfig
from rules.validate import problems

ROOT = Path(__file__).resolve().parents[2]


def test_is_up_to_date() -> None:
    written = (ROOT / "docs" / "variables.md").read_text()
    assert written == document(), "run: python -m docs.make_variables > docs/variables.md"


def test_every_variable_is_in_one_section() -> None:
    names = [name for section in sections().values() for name in section]
    assert names == list(HostConfig.model_fields)
    assert "" not in sections()


def test_tables_have_five_cells() -> None:
    rows = [line for line in document().splitlines() if line.startswith("|")]
    assert len(rows) > 40
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == 6, row


def test_example_is_valid_with_its_role() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", document(), re.S)
    data: dict[str, object] = {}
    for text in (
        (ROOT / "group_data" / "all.py").read_text(),
        (ROOT / "group_data" / "llama_cpp.py").read_text(),
        code,
    ):
        exec(text, data)
    assert problems({k: v for k, v in data.items() if not k.startswith("__")}) == []
