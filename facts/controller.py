"""What lies on the controller and goes to hosts: templates, the agent, secrets' files."""

from __future__ import annotations

import stat
from functools import lru_cache
from pathlib import Path

from facts import bundle
from rules.compose import Inputs
from rules.schema import HostConfig

ROOT = Path(__file__).resolve().parent.parent


class ControllerError(Exception):
    """A file of the controller cannot be used. The message is one sentence."""


@lru_cache(maxsize=1)
def _templates() -> dict[str, str]:
    folder = ROOT / "templates"
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


def secret(folder: str, name: str) -> bytes:
    """The content of a secret's file, without the newline at its end.

    `name` is a path from `folder`, and that from this repository, unless they are absolute.
    Refuses a file others can read, an empty one, and one that is not there.
    """
    path = ROOT / Path(folder).expanduser() / Path(name).expanduser()
    try:
        mode = path.stat().st_mode
        content = path.read_bytes().strip()
    except OSError as error:
        raise ControllerError(
            f"secret file {path}: cannot be read ({error.strerror}); put the secret there "
            f"with mode 0600 (a new key: `umask 077; openssl rand -hex 32 > {path}`)"
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise ControllerError(
            f"secret file {path}: mode {stat.S_IMODE(mode):04o} lets others read it, expected "
            f"0600; run `chmod 600 {path}`"
        )
    if not content:
        raise ControllerError(f"secret file {path}: is empty, expected the secret on one line")
    return content


def inputs(config: HostConfig) -> Inputs:
    """Everything of the controller that the desired state of a host is made from."""
    names = {spec.api_key_file for spec in config.instances.values()}
    names.add(config.model_hub_token_file)
    return Inputs(
        templates=_templates(),
        agent=bundle.agent_files(),
        secrets={name: secret(config.secrets_folder, name) for name in sorted(names) if name},
    )
