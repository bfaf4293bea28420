"""The command line: ``python -m sandbox``."""

from __future__ import annotations

import json
import subprocess
import sys

import click

from sandbox import faults, image, lab, machine, profiles, settings, state
from sandbox.errors import SandboxError
from sandbox.hub.cli import hub


class Group(click.Group):
    """Commands whose errors are one sentence on stderr and exit code 1."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; a SandboxError becomes its sentence."""
        try:
            return super().invoke(ctx)
        except SandboxError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A lab of simulated GPU servers on this machine (docs/sandbox.md)."""


main.add_command(hub)


@main.command()
@click.option("--hosts", default=3, show_default=True, help="How many hosts to have at least.")
@click.option(
    "--profile",
    default=profiles.MIXED,
    show_default=True,
    type=click.Choice([*profiles.names(), profiles.MIXED]),
    help="Chassis of the hosts that are added.",
)
@click.option(
    "--release",
    default=image.RELEASES[0],
    show_default=True,
    type=click.Choice(image.RELEASES),
    help="Debian release of the hosts that are added.",
)
@click.option("--bare", default=0, show_default=True, help="How many of them without python3.")
@click.option("--gpus", is_flag=True, help="Added hosts have simulated GPUs (docs/sandbox.md).")
def up(hosts: int, profile: str, release: str, bare: int, gpus: bool) -> None:
    """Bring the lab up, add hosts to it, boot dead hosts; nothing else changes.

    The first time builds the base image (about half a minute), later it takes seconds.
    """
    config = settings.load()
    booted = lab.up(config, hosts, profile, release, bare, gpus)
    hosts_now = lab.status(config)["hosts"]
    paused = [host["name"] for host in hosts_now if host["condition"] == "paused"]
    word = "nothing to do" if not booted else f"{len(booted)} booted"
    if paused:
        word += f"; paused: {', '.join(paused)}, `break HOST resume` mends that"
    click.echo(f"{len(hosts_now)} hosts up ({word}). Next: pyinfra inventory/sandbox.py deploy.py")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def status(as_json: bool) -> None:
    """Show the hosts and servers of the lab and how they are."""
    now = lab.status(settings.load())
    if as_json:
        click.echo(json.dumps(now, indent=1))
        return
    if not now["up"]:
        click.echo("No sandbox is up: run `python -m sandbox up`.")
        return
    click.echo(
        f"{'host':<10} {'address':<15} {'profile':<11} {'release':<9} {'login':<6} condition"
    )
    for host in now["hosts"]:
        bare = ", no python3" if host["bare"] else ""
        click.echo(
            f"{host['name']:<10} {host['address']:<15} {host['profile']:<11} "
            f"{host['release']:<9} {host['user']:<6} {host['condition']}{bare}"
        )
    for name, info in now["services"].items():
        condition = f"pid {info['pids'][0]}" if info["pids"] else "dead: run `up`"
        click.echo(f"{name:<10} {info['address']}:{info['port']} {condition}")


@main.command()
@click.argument("host")
def shell(host: str) -> None:
    """Open a root shell in HOST (not through ssh, so it works on a broken host too)."""
    config = settings.load()
    state.require_host(config, host)
    sys.exit(subprocess.call(machine.inside(config, host, ["bash", "-l"])))


@main.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("host")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(host: str, command: tuple[str, ...]) -> None:
    """Run COMMAND as root in HOST, without ssh; its exit code is ours."""
    config = settings.load()
    state.require_host(config, host)
    sys.exit(subprocess.call(machine.inside(config, host, command)))


@main.command()
@click.argument("host")
def start(host: str) -> None:
    """Boot a dead HOST again, with its disk as it was left."""
    lab.restart(settings.load(), host)


@main.command()
@click.argument("host")
def renew(host: str) -> None:
    """Replace HOST by a freshly installed one of the same name, address and chassis."""
    lab.restart(settings.load(), host, fresh=True)


@main.command("break", context_settings={"ignore_unknown_options": True})
@click.option("--list", "show", is_flag=True, help="Show everything that can be broken.")
@click.argument("host", required=False)
@click.argument("what", required=False)
@click.argument("arguments", nargs=-1)
def break_(show: bool, host: str | None, what: str | None, arguments: tuple[str, ...]) -> None:
    """Break WHAT on HOST by hand (or mend it); --list shows what there is."""
    if show or not host or not what:
        for fault in faults.known().values():
            undo = f" (undo: {fault.undo})" if fault.undo else ""
            click.echo(f"{fault.usage:<26} {fault.help}{undo}")
        if not show:
            raise SandboxError("Say what to break: `python -m sandbox break HOST WHAT`.")
        return
    config = settings.load()
    _, found = state.require_host(config, host)
    faults.apply(config, found, what, list(arguments))


@main.command()
def down() -> None:
    """Stop everything and delete the hosts (base image, apt cache and hub stay)."""
    stopped = lab.down(settings.load())
    click.echo(f"Stopped: {', '.join(stopped)}." if stopped else "Nothing was up.")


@main.command()
@click.confirmation_option(prompt="Delete the hosts, base images, apt cache and hub?")
def clean() -> None:
    """Take the lab down and delete everything it keeps in the cache folder."""
    config = settings.load()
    lab.clean(config)
    click.echo(f"Deleted what the sandbox kept in {config.cache}.")
