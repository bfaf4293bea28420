"""apt for the hosts: a caching proxy on the bridge, the only thing there that reaches out.

apt-cacher-ng runs with a configuration of our own and keeps what it fetched in the cache folder,
so a second build downloads nothing. It forwards to the mirrors of this machine's own apt
configuration and Debian's defaults alone; any other name is refused, so the proxy is no way out.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from sandbox import services
from sandbox.errors import SandboxError
from sandbox.settings import APT_PORT, Settings

PACKAGED = Path("/etc/apt-cacher-ng")
SUPPORT = Path("/usr/lib/apt-cacher-ng")

CONFIG = """\
# written by the sandbox at each start
CacheDir: {cache}
LogDir: {logs}
SupportDir: {support}
BindAddress: {address}
Port: {port}
ForeGround: 1
PidFile: {logs}/apt-cacher-ng.pid
SocketPath: {logs}/socket
ReportPage: acng-report.html
ExThreshold: 30
# only repositories named by a Remap line are served, and CONNECT is refused
ForceManaged: 1
PassThroughPattern: ^$
{remaps}
"""


def url(settings: Settings) -> str:
    """Address of the proxy, for apt's Acquire::http::Proxy."""
    return f"http://{settings.gateway}:{APT_PORT}"


def start(settings: Settings) -> bool:
    """Start the proxy unless it runs. True when it was started."""
    folder = settings.run / "acng"
    logs = settings.run / "acng-log"
    for path in (folder, logs, settings.apt):
        path.mkdir(parents=True, exist_ok=True)
    config = CONFIG.format(
        cache=settings.apt,
        logs=logs,
        support=SUPPORT,
        address=settings.gateway,
        port=APT_PORT,
        remaps="\n".join(_remaps()),
    )
    (folder / "acng.conf").write_text(config)
    return services.start(settings, "apt", APT_PORT, ["apt-cacher-ng", "-c", folder])


def _remaps() -> list[str]:
    """Debian's Remap lines of the packaged configuration, with a backend each.

    The names of the mirrors come from there and from this machine's apt sources, so that none
    is written in this repository.
    """
    try:
        lines = (PACKAGED / "acng.conf").read_text().splitlines()
    except OSError as error:
        raise SandboxError(
            f"apt-cacher-ng's own configuration in {PACKAGED} cannot be read ({error.strerror}): "
            "run `apt-get install --reinstall apt-cacher-ng`."
        ) from error
    remaps = {line.partition(":")[0]: line for line in lines if line.startswith("Remap-")}
    try:
        names = remaps["Remap-debrep"].partition(";")[0].strip()
        return [f"{names} ; {_mirror()}", remaps["Remap-secdeb"]]
    except KeyError as error:
        raise SandboxError(f"{PACKAGED}/acng.conf has no line {error} for Debian.") from error


def _mirror() -> str:
    """The Debian mirror to fetch from: this machine's own, else Debian's redirector (deb.*)."""
    known = gzip.decompress((SUPPORT / "deb_mirrors.gz").read_bytes()).decode().split()
    sources = Path("/etc/apt")
    text = "\n".join(
        file.read_text(errors="replace")
        for file in [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))]
        if file.is_file()
    )
    ours = [mirror for mirror in known if mirror.rstrip("/") in text]
    redirectors = [mirror for mirror in known if mirror.startswith("http://deb.")]
    return (ours + redirectors + known)[0]
