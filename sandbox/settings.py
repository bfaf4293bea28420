"""Where the lab lies and what it is called, from the environment.

VOLTFLEET_CACHE            cache folder (default ~/.cache/voltfleet)
VOLTFLEET_SANDBOX_NAME     prefix of our bridge, machines and cgroups (default vf)
VOLTFLEET_SANDBOX_SUBNET   the hosts' /24 to /20 (default 198.18.77.0/24)
VOLTFLEET_SANDBOX_DISK     size of each host's model disk, sparse (default 2G)
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import SandboxError

# 198.18.0.0/15 is set aside for tests of network devices (RFC 2544): no company network and no
# public host has it, so a lab cannot shadow an address that somebody needs.
DEFAULT_SUBNET = "198.18.77.0/24"
DEFAULT_NAME = "vf"
DEFAULT_DISK = "2G"

# The model folder is a file system of its own on real hosts as well; here it makes a full disk
# possible without filling this machine's.
MODEL_FOLDER = "/srv/models"

APT_PORT = 3142
HUB_PORT = 8080
FIRST_HOST = 11  # addresses below are for the bridge and later services (BMC)

_NAME = re.compile(r"^[a-z][a-z0-9]{0,4}$")
_DISK = re.compile(r"^[1-9][0-9]*[MG]$")


@dataclass(frozen=True)
class Settings:
    """Settings of one lab; every path of it lies below ``cache``."""

    cache: Path
    name: str
    subnet: ipaddress.IPv4Network
    disk: str

    @property
    def bridge(self) -> str:
        """Network interface that all hosts hang on."""
        return f"{self.name}-br0"

    @property
    def gateway(self) -> str:
        """Address of this machine on the bridge: apt proxy and hub listen there."""
        return str(self.subnet.network_address + 1)

    @property
    def mark(self) -> str:
        """Short sign of the cache folder; tells our cgroups from those of another lab."""
        return hashlib.sha256(str(self.cache).encode()).hexdigest()[:8]

    @property
    def cgroup(self) -> str:
        """Name of the cgroup under which every process of the lab runs."""
        return f"voltfleet-{self.name}-{self.mark}"

    @property
    def owner(self) -> str:
        """Written to the bridge's alias, so that only our own bridge is ever removed."""
        return f"voltfleet sandbox {self.cache}"

    @property
    def base(self) -> Path:
        """Built root file systems, one folder per key."""
        return self.cache / "base"

    @property
    def hosts(self) -> Path:
        """One folder per host, deleted by ``down``."""
        return self.cache / "hosts"

    @property
    def apt(self) -> Path:
        """Packages and lists kept by the caching proxy."""
        return self.cache / "apt"

    @property
    def hub(self) -> Path:
        """Files that the model hub serves."""
        return self.cache / "hub"

    @property
    def keys(self) -> Path:
        """Login key and known_hosts of the lab."""
        return self.cache / "keys"

    @property
    def run(self) -> Path:
        """State, lock, logs and fault switches."""
        return self.cache / "run"

    @property
    def login_key(self) -> Path:
        """Private key that logs in to every host."""
        return self.keys / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """Host keys of the lab, in OpenSSH's format."""
        return self.keys / "known_hosts"

    def machine(self, host: str) -> str:
        """nspawn's machine name of a host, unique over labs."""
        return f"{self.name}-{host}"


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from the environment (this process's unless given).

    Raises SandboxError when a value cannot be used.
    """
    env = os.environ if environment is None else environment
    name = env.get("VOLTFLEET_SANDBOX_NAME", DEFAULT_NAME)
    if not _NAME.match(name):
        raise SandboxError(
            f"VOLTFLEET_SANDBOX_NAME is {name!r}: use 1 to 5 lower-case letters and digits, "
            "beginning with a letter (network interface names are short)."
        )
    disk = env.get("VOLTFLEET_SANDBOX_DISK", DEFAULT_DISK)
    if not _DISK.match(disk):
        raise SandboxError(
            f"VOLTFLEET_SANDBOX_DISK is {disk!r}: give a whole number and M or G, such as 2G."
        )
    text = env.get("VOLTFLEET_SANDBOX_SUBNET", DEFAULT_SUBNET)
    try:
        subnet = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise SandboxError(f"VOLTFLEET_SANDBOX_SUBNET is {text!r}: {error}.") from error
    if not 20 <= subnet.prefixlen <= 24:
        raise SandboxError(f"VOLTFLEET_SANDBOX_SUBNET is {text}: use a network of size /20 to /24.")
    cache = Path(env.get("VOLTFLEET_CACHE") or Path.home() / ".cache" / "voltfleet")
    return Settings(cache=cache.expanduser().resolve(), name=name, subnet=subnet, disk=disk)
