"""Writes docs/variables.md from the schema and group_data/.

    python -m docs.make_variables > docs/variables.md

A test keeps the file equal to this output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from glue import data_files
from rules.describe import hints, models_within, words
from rules.schema import SECTIONS, HostConfig

ROOT = Path(__file__).resolve().parent.parent
HEAD = """\
# Variables

What may be said about a host, in `group_data/*.py`, in its inventory entry, or with
`--data name=value`. Made from `rules/schema.py` and `group_data/` by
`python -m docs.make_variables > docs/variables.md`: do not edit.

The last one in this order counts: `group_data/all.py`, the host's groups in the order of the
inventory, the host's inventory entry, `--data`. A value replaces the whole value; dictionaries are
not merged. Requirement ids are rows of [deviations.md](deviations.md).

Files are checked before anything connects (exit code 2), the merged data of each host before the
first command on it (that host fails, the others go on). `{model_hub_url}/` at the start of a URL
stands for that variable. Data of pyinfra itself (`ssh_user`, `_sudo`, ...) may stand beside these.
"""
EXAMPLE = '''\
## Example: a lab that serves one model

`group_data/lab.py`, for the hosts of `inventory/lab.py`. Size and sha256 of a file are on its page
of the hub; these are made up.

```python
"""What the hosts of inventory/lab.py serve."""

models = {
    "assistant": {
        "repository": "example/assistant-GGUF",
        "revision": "5f0b02c75b57c5855da9ae460ce51323ea669d8a",
        "files": [
            {
                "path": "assistant-Q8_0.gguf",
                "size": 28595725312,  # bytes
                "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            },
        ],
        "architecture": "qwen4exp",
    },
}

instances = {
    "assistant": {
        "model": "assistant",
        "host": "0.0.0.0",
        "port": 8080,
        "api_key_file": "~/.config/voltfleet/assistant.key",  # mode 0600, on the controller
        "ctx_size": 32768,  # tokens, shared by the slots
        "slots": 4,
        "gpu_layers": "all",
    },
}
```
'''


def document(root: Path = ROOT) -> str:
    """The text of docs/variables.md."""
    files = {
        path.stem: data_files.read(path) for path in sorted((root / "group_data").glob("*.py"))
    }
    defaults = files.pop("all")
    parts = [HEAD]
    nested: list[type[BaseModel]] = []
    for title, names in sections().items():
        parts += [f"## {title}\n", _table(HostConfig, names, defaults, files)]
        for name in names:
            nested += [m for m in models_within(hints(HostConfig)[name]) if m not in nested]
    for model in nested:
        nested += [
            inner
            for annotation in hints(model).values()
            for inner in models_within(annotation)
            if inner not in nested
        ]
    for model in nested:
        parts += [
            f"## {model.__name__}\n",
            f"{(model.__doc__ or '').strip()}\n",
            _table(model, list(model.model_fields), {}, {}),
        ]
    return "\n".join([*parts, EXAMPLE])


def sections() -> dict[str, list[str]]:
    """Title of each section -> its variables, in the order of the schema."""
    found: dict[str, list[str]] = {}
    title = ""
    for name in HostConfig.model_fields:
        title = SECTIONS.get(name, title)
        found.setdefault(title, []).append(name)
    return found


def _table(
    model: type[BaseModel],
    names: list[str],
    defaults: Mapping[str, Any],
    roles: Mapping[str, Mapping[str, Any]],
) -> str:
    lines = ["| name | what it may be | unit | default | meaning |", "|---|---|---|---|---|"]
    annotations = hints(model)
    for name in names:
        field = model.model_fields[name]
        extra = field.json_schema_extra
        about = extra if isinstance(extra, dict) else {}
        cells = [
            f"`{name}`",
            words(annotations[name]),
            str(about.get("unit", "")),
            _default(field, defaults.get(name)),
            "; ".join(_meaning(name, field, about, roles)),
        ]
        lines.append(f"| {' | '.join(_escaped(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;")


def _meaning(
    name: str,
    field: FieldInfo,
    about: Mapping[str, Any],
    roles: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    ids = about.get("requirements") or []
    yield f"{field.description} ({', '.join(ids)})" if ids else str(field.description)
    setting = [f"`{role}.py`" for role, values in roles.items() if name in values]
    if setting:
        yield f"set in {', '.join(setting)}"


def _default(field: FieldInfo, in_all: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True) if in_all is None else in_all
    if isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
        return f"`{', '.join(value)}`: see `group_data/all.py`"
    return f"`{value!r}`"


if __name__ == "__main__":
    print(document(), end="")
