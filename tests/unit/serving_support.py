"""Data of a host that serves a tiny model, for tests of releases, models and serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rules import models, releases, serving
from rules.desired import Desired
from rules.schema import HostConfig

TEMPLATES = {
    path.name: path.read_text() for path in (Path(__file__).parents[2] / "templates").glob("*.j2")
}
SYSTEM = {"id": "debian", "version": "13", "machine": "x86_64"}
KEY = b"secret-key\n"
TINY = {
    "repository": "voltfleet/tiny",
    "revision": "v1",
    "files": [{"path": "tiny.gguf", "size": 501_760, "sha256": "a" * 64}],
    "architecture": "llama",
}
SERVER = {
    "model": "tiny",
    "host": "0.0.0.0",
    "port": 8080,
    "ctx_size": 2048,
    "slots": 4,
    "api_key_file": "secrets/tiny.key",
}


def config(**more: Any) -> HostConfig:
    """A host with one instance; `more` replaces variables."""
    data: dict[str, Any] = {
        "llama_cpp_source": {
            "kind": "archive",
            "url": "http://hub/sources/llama.cpp.tar.gz",
            "sha256": "b" * 64,
        },
        "llama_cpp_options": {"CMAKE_BUILD_TYPE": "Release"},
        "model_hub_url": "http://hub",
        "model_profiles": {
            "upstream": {"general.architecture": "qwen4exp"},
            "guide": {"qwen.nvlink_optimized": True},
        },
        "models": {"tiny": TINY},
        "instances": {"tiny": SERVER},
    }
    return HostConfig.model_validate({**data, **more})


def built(host: HostConfig, name: str = "tiny", key: bytes | None = KEY) -> serving.Built:
    release = releases.release(host, SYSTEM)
    model = models.model(host, host.instances[name].model)
    return serving.instance(host, name, release, model, key, TEMPLATES)


def desired(host: HostConfig | None = None) -> Desired:
    """The served part of a host's desired state."""
    host = host or config()
    parts = [built(host, name) for name in host.instances]
    release = releases.release(host, SYSTEM)
    return Desired(
        directories=tuple({d.path: d for p in parts for d in p.directories}.values()),
        files=tuple({f.path: f for p in parts for f in p.files}.values()),
        links=tuple({link.path: link for p in parts for link in p.links}.values()),
        units=tuple(unit for p in parts for unit in p.units),
        releases=(release,) if release else (),
        models=tuple(models.model(host, name) for name in host.models),
        instances=tuple(p.instance for p in parts),
    )
