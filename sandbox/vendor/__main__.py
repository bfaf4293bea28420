"""`python -m sandbox.vendor build --out DIR`: the vendor's packages, for a look or a lab."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.settings import load
from sandbox.vendor import build


def main(words: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sandbox.vendor", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("build", help="build (or take from the cache) and copy to a folder")
    make.add_argument("--out", type=Path, required=True, help="folder to copy to")
    make.add_argument("--series", choices=[build.SERIES], default=build.SERIES)
    given = parser.parse_args(words)
    try:
        vendor = build.ensure(load().cache)
        given.out.mkdir(parents=True, exist_ok=True)
        for path in sorted(vendor.folder.iterdir()):
            target = given.out / path.name
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True, copy_function=_link)
            else:
                _link(path, target)
            print(target)
    except (SandboxError, OSError) as error:
        print(f"sandbox.vendor: {error}", file=sys.stderr)
        return 1
    return 0


def _link(source: str | Path, target: str | Path) -> None:
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


if __name__ == "__main__":
    sys.exit(main())
