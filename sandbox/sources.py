"""llama.cpp's sources for the hub, from the one registry package that carries them whole.

The sdist of llama-cpp-python vendors llama.cpp. It is fetched by pip, checked by its digest, and
``vendor/llama.cpp`` is packed again so that the same sdist always gives the same archive:
sorted names, no times, no owners.
"""

from __future__ import annotations

import gzip
import re
import shutil
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sandbox.errors import SandboxError
from sandbox.hub.store import Store, sha256
from sandbox.shell import run, say

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
SDIST_SHA256 = "@SDIST@"
# What the packed archive must be; recorded by hand after a change of VERSION.
ARCHIVE_SHA256 = "@ARCHIVE@"

_PREFIX = PurePosixPath(f"llama_cpp_python-{VERSION}/vendor/llama.cpp")
# Not needed to build llama-server, and most of the size.
_SKIP = re.compile(r"^(\.github|\.devops|\.git|docs|media|models/.*\.gguf|examples/.*\.(png|jpg))")


@dataclass(frozen=True)
class Archive:
    """A source archive on the hub: its URL path, sha256 and what is in it."""

    url_path: str
    sha256: str
    version: str
