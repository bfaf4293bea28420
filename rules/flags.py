"""Flags of llama-server: those that an instance uses, and what became of vanished ones.

Which flags exist depends on the build: the release's own ``--help`` decides (C15). The table here
only says what to use instead. Checked against ``llama-server --help`` of build 0.5.0-dev (sources
of 2026) and the changes named.
"""

from __future__ import annotations

import re

from rules.schema import HostConfig, InstanceSpec

# Vanished, renamed or never existing flags -> what to do today.
TODAY = {
    "--no-mmap": "gone since b10884: use load-mode 'none'",  # llama.cpp pull request 20834
    "--mmap": "gone since b10884: use load-mode 'mmap'",
    "--mlock": "gone since b10884: use load-mode 'mlock'",
    "--no-mlock": "never existed: drop it, memory is only locked when asked for",
    "--verbose-prompt": "is no flag of the server: drop it, or use 'verbosity'",
    "--webui": "use 'ui'",
    "--no-webui": "use 'no-ui'",
    "--log-disable": "would hide the lines that prove the GPUs are used: drop it",
}
# A value is a word of an environment file that systemd splits at white space; these characters
# mean nothing to systemd.
SAFE = re.compile(r"[A-Za-z0-9_./:,@%+=~-]+")


def used_by(config: HostConfig) -> set[str]:
    """Every flag that any instance of a host gives to its server."""
    return {
        word
        for spec in config.instances.values()
        for word in words(spec, model="m", key_file="k" if spec.api_key_file else None)
        if word.startswith("--")
    }


def words(spec: InstanceSpec, model: str, key_file: str | None) -> list[str]:
    """The command line of an instance after the program's name, for paths on the host."""
    given = [
        *("--model", model),
        *("--host", spec.host),
        *("--port", str(spec.port)),
        *("--ctx-size", str(spec.ctx_size)),
        *("--parallel", str(spec.slots)),
        *("--gpu-layers", str(spec.gpu_layers)),
        *("--batch-size", str(spec.batch_size)),
    ]
    if spec.threads:  # else llama-server takes the number of cores
        given += ["--threads", str(spec.threads)]
    if key_file:
        given += ["--api-key-file", key_file]
    for flag, value in sorted(spec.extra_flags.items()):
        if value is False:
            continue
        given.append(f"--{flag}")
        if value is not True:
            given.append(str(value))
    return given


def unsafe(given: list[str]) -> list[str]:
    """The words that an environment file can't carry unchanged."""
    return [word for word in given if not SAFE.fullmatch(word)]
