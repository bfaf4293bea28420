"""``python -m sandbox hub ...``: files, faults and access log of the hub."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from sandbox import services
from sandbox import sources as source_archive
from sandbox.errors import SandboxError
from sandbox.hub import faults
from sandbox.hub.store import Entry, Store
from sandbox.settings import HUB_PORT, Settings, load

TINY_PATH = "voltfleet/tiny/resolve/main/tiny.gguf"
REPOSITORY = Path(__file__).resolve().parents[2]


def url(settings: Settings) -> str:
    """The hub's address as hosts and this machine reach it."""
    return f"http://{settings.gateway}:{HUB_PORT}"


def start(settings: Settings) -> bool:
    """Start the hub unless it runs. True when it was started."""
    settings.hub.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "sandbox.hub.server", "--folder", str(settings.hub)]
    command += ["--run", str(settings.run), "--address", settings.gateway, "--port", str(HUB_PORT)]
    return services.start(settings, "hub", HUB_PORT, command, cwd=REPOSITORY)


def reset(settings: Settings) -> None:
    """Forget faults and log; the files stay."""
    for name in ("hub-faults.json", "hub-access.jsonl"):
        (settings.run / name).unlink(missing_ok=True)


def switches(settings: Settings) -> faults.Switches:
    """The hub's fault switches."""
    return faults.Switches(settings.run / "hub-faults.json")


def access_log(settings: Settings) -> list[dict[str, Any]]:
    """Finished requests, oldest first: method, path, range, status, bytes sent, whole."""
    file = settings.run / "hub-access.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def add_tiny(
    settings: Settings, as_path: str = TINY_PATH, seed: int = 0, pairs: list[str] | None = None
) -> Entry:
    """Make the tiny model and put it on the hub.

    Raises SandboxError when the gguf package is missing or a pair is not key=value.
    """
    try:
        from sandbox import tiny_model  # numpy and gguf: only who makes a model needs them
    except ImportError as error:
        raise SandboxError(
            f"The tiny model needs the Python package {error.name}: run `make setup`."
        ) from error
    settings.run.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=settings.run) as scratch:
        file = Path(scratch) / "tiny.gguf"
        try:
            tiny_model.write(file, seed=seed, extra=tiny_model.parse(pairs or []))
        except ValueError as error:
            raise SandboxError(f"The tiny model cannot be made: {error}.") from error
        return Store(settings.hub).add(file, as_path)


@click.group()
def hub() -> None:
    """Files, faults and access log of the model hub."""


@hub.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("as_path")
def add(file: Path, as_path: str) -> None:
    """Put FILE on the hub as ORG/MODEL/resolve/REVISION/FILE or files/PATH."""
    settings = load()
    store = Store(settings.hub)
    entry = store.add(file, as_path)
    click.echo(f"{url(settings)}/{entry.url_path} sha256 {store.digest(entry.file)}")


@hub.command()
@click.argument("as_path", default=TINY_PATH)
@click.option("--seed", default=0, show_default=True, help="Another seed gives other weights.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Add a metadata key.")
def tiny(as_path: str, seed: int, pairs: tuple[str, ...]) -> None:
    """Make the tiny model and put it on the hub (default: voltfleet/tiny)."""
    settings = load()
    entry = add_tiny(settings, as_path, seed, list(pairs))
    click.echo(f"{url(settings)}/{entry.url_path} sha256 {Store(settings.hub).digest(entry.file)}")


@hub.command()
def sources() -> None:
    """Fetch llama.cpp's sources (77 MB, first time only) and put them on the hub."""
    settings = load()
    store = Store(settings.hub)
    file = source_archive.ensure(settings)
    click.echo(f"{url(settings)}/{source_archive.URL_PATH} sha256 {store.digest(file)}")


@hub.command("list")
def listing() -> None:
    """List the hub's files with size and sha256."""
    for item in Store(load().hub).listing():
        click.echo(f"{item['sha256']} {item['size']:>12} {item['path']}")


@hub.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--clear", is_flag=True, help="Forget all requests so far.")
def log(as_json: bool, clear: bool) -> None:
    """Show the requests that the hub answered, with their ranges and bytes."""
    settings = load()
    if clear:
        (settings.run / "hub-access.jsonl").unlink(missing_ok=True)
    for item in access_log(settings):
        if as_json:
            click.echo(json.dumps(item))
            continue
        asked = item["range"] or "all"
        end = "" if item["whole"] else " BROKEN OFF"
        spoiled = f" ({', '.join(item['faults'])})" if item["faults"] else ""
        click.echo(
            f"{item['client']} {item['method']} {item['path']} {asked} -> {item['status']}, "
            f"{item['bytes']} bytes{end}{spoiled}"
        )


@hub.command()
def clear() -> None:
    """Switch all faults off."""
    switches(load()).clear()


@hub.command("faults")
def show_faults() -> None:
    """Show the faults that are on."""
    for fault in switches(load()).listing():
        times = "until cleared" if fault.times is None else f"{fault.times} more times"
        click.echo(f"{fault.kind} {fault.value or ''} {fault.match} {times}")


def _switch(kind: str, help_text: str) -> click.Command:
    options: list[click.Parameter] = [
        click.Option(["--times"], type=click.IntRange(min=1), help="Spoil this many answers."),
        click.Option(["--match"], default="", help="Only paths that contain this text."),
    ]
    if "VALUE" in help_text:
        needed = kind in faults.NEEDS_VALUE
        options.insert(0, click.Argument(["value"], type=click.IntRange(min=0), required=needed))

    def switch(times: int | None, match: str, value: int | None = None) -> None:
        switches(load()).on(faults.Fault(kind, value or 0, times, match))

    return click.Command(kind, callback=switch, params=options, help=f"Fault: {help_text}.")


for _kind, _text in faults.KINDS.items():
    hub.add_command(_switch(_kind, _text))
