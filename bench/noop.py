"""A run with nothing to change against what ssh itself costs.

    python -m bench.noop [--hosts 1,10,20] [--rounds 5]

On the sandbox's hosts, converged first, in one run on one machine: (a) ``ssh HOST true`` to all
hosts at once with OpenSSH, once as configured by default and once with the curve25519 key
exchange; (b) ``pyinfra inventory/sandbox.py deploy.py -y``. Medians; the numbers that count are
the ratios. Writes ``bench/results/noop.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "noop.json"
BIN = Path(sys.executable).parent


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository, output kept; a failure ends the measurement."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done


def inventory() -> list[dict[str, Any]]:
    """The lab's hosts with their data, as pyinfra sees them."""
    done = run([str(BIN / "pyinfra"), "--json", "inventory/sandbox.py", "debug-inventory"])
    hosts: list[dict[str, Any]] = json.loads(done.stdout)
    return hosts


def ssh_to_all(hosts: list[dict[str, Any]], options: list[str]) -> None:
    """``ssh HOST true`` to all hosts at the same time."""
    started = []
    for host in hosts:
        data = host["data"]
        command = [
            "ssh",
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            f"UserKnownHostsFile={data['ssh_known_hosts_file']}",
            "-i",
            data["ssh_key"],
            *options,
            f"{data['ssh_user']}@{data['ssh_hostname']}",
            "true",
        ]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE))
    for process in started:
        _, errors = process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"bench: ssh failed: {errors.decode(errors='replace')}")


def no_op(names: list[str]) -> None:
    """One run with nothing to change; a change ends the measurement."""
    limits = [word for name in names for word in ("--limit", name)]
    done = run([str(BIN / "pyinfra"), *limits, "-y", "inventory/sandbox.py", "deploy.py"])
    if len(re.findall(r"no change", done.stderr)) != len(names):
        raise SystemExit(f"bench: that was no run without changes:\n{done.stderr[-2000:]}")


def medians(rounds: int, tasks: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median seconds of each task, the tasks taking turns so that drift hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            begun = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(values) for name, values in seconds.items()}


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def main() -> None:
    """Measure and print one line per number of hosts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", default="1,10,20", help="numbers of hosts, comma separated")
    parser.add_argument(
        "--rounds", type=int, default=5, help="runs of each kind; the median counts"
    )
    args = parser.parse_args()
    counts = sorted(int(word) for word in args.hosts.split(","))
    run([sys.executable, "-m", "sandbox", "up", "--hosts", str(counts[-1])])
    hosts = inventory()
    run([str(BIN / "pyinfra"), "-y", "inventory/sandbox.py", "deploy.py"])
    rows = []
    for count in counts:
        some = hosts[:count]
        names = [host["name"] for host in some]
        found = medians(
            args.rounds,
            {
                "ssh_default_s": lambda some=some: ssh_to_all(some, []),  # type: ignore[misc]
                "ssh_curve25519_s": lambda some=some: ssh_to_all(  # type: ignore[misc]
                    some, ["-o", "KexAlgorithms=curve25519-sha256"]
                ),
                "voltfleet_s": lambda names=names: no_op(names),  # type: ignore[misc]
            },
        )
        row = {"hosts": count, **{name: round(value, 3) for name, value in found.items()}}
        row["ratio_to_ssh_default"] = round(found["voltfleet_s"] / found["ssh_default_s"], 2)
        row["ratio_to_ssh_curve25519"] = round(found["voltfleet_s"] / found["ssh_curve25519_s"], 2)
        rows.append(row)
        print(json.dumps(row))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"machine": machine(), "rounds": args.rounds, "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
