"""The kinds of text and numbers that variables are made of, with words for people."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

# Patterns have words of their own: nobody should have to read a regular expression in an error.
SHA256 = r"^[0-9a-f]{64}$"
USER = r"^[a-z_][a-z0-9_-]{0,30}$"
REVISION = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
ABSOLUTE_PATH = r"^(/[A-Za-z0-9@+_-][A-Za-z0-9.@+_-]*)+$"
COMMIT = r"^[0-9a-f]{40}$"
# In a URL this stands for the variable: a lab without internet serves sources and models itself.
HUB_PLACEHOLDER = "{model_hub_url}"
URL = r"^((https?|file)://|\{model_hub_url\}/)[^\s@]+$"
# What aria2 downloads: it knows no file://.
MODEL_URL = r"^(https?://|\{model_hub_url\}/)[^\s@]+$"
PLAIN_URL = r"^https?://[^\s@]+$"
# Nothing that git is given may be secret: it is in its argument list and in the release's record.
GIT_URL = (
    r"^(https?://[A-Za-z0-9\[][^\s/?#@\\]*(/[^\s?#@]*)?"
    r"|ssh://([A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9\[][^\s/?#@\\]*/[^\s?#@]+"
    r"|file:///[^\s?#@]+|\{model_hub_url\}/[^\s?#@]+)$"
)
OPERATING_SYSTEM = r"^[a-z]+ [0-9]+(\.[0-9]+)?$"
SYSCTL_KEY = r"^[a-z][A-Za-z0-9_-]*([./][A-Za-z0-9_-]+)+$"
PACKAGE = r"^[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?$"
CMAKE_OPTION = r"^[A-Z][A-Z0-9_]*$"
CUDA_VERSION = r"^[1-9][0-9]\.[0-9](\.[0-9]+)?$"
PCI_DEVICE = r"^10de:[0-9a-f]{4}$"
SM = r"^sm_[1-9][0-9]{1,2}$"
PATTERN_WORDS = {
    SHA256: "64 lower-case hexadecimal digits",
    NAME: "a name of at most 63 lower-case letters, digits, '.', '_' and '-'",
    REVISION: "a commit id or another name of at most 127 letters, digits, '.', '_' and '-'",
    USER: "a user name of at most 31 lower-case letters, digits, '_' and '-'",
    ABSOLUTE_PATH: "an absolute path (letters, digits, '.', '@', '+', '_', '-'; no '..', no '/' "
    "at its end)",
    COMMIT: "a full commit id (40 lower-case hexadecimal digits)",
    URL: "a URL that starts with http://, https://, file:// or {model_hub_url}/ (no user name or "
    "password in it)",
    MODEL_URL: "a URL that starts with http://, https:// or {model_hub_url}/ (no user name or "
    "password in it)",
    PLAIN_URL: "a URL that starts with http:// or https:// (no user name or password in it)",
    GIT_URL: "a URL that starts with https://, http://, ssh://, file:/// or {model_hub_url}/, "
    "without '?' and '#' (no password or token in it, a user name with ssh:// only: for private "
    "sources give the host's root an ssh key, or use an archive on a mirror)",
    OPERATING_SYSTEM: "'id version' as in /etc/os-release, like 'debian 13'",
    SYSCTL_KEY: "the name of one kernel parameter, like 'vm.swappiness'",
    PACKAGE: "a package name, without a version",
    CMAKE_OPTION: "a CMake option in capitals, without -D",
    CUDA_VERSION: "a toolkit version, like '12.4' or '12.4.1'",
    PCI_DEVICE: "a PCI id of an NVIDIA card, like '10de:1db5'",
    SM: "a GPU architecture as nvcc names it, like 'sm_70'",
}

Sha256 = Annotated[str, StringConstraints(pattern=SHA256)]
Name = Annotated[str, StringConstraints(pattern=NAME)]
Revision = Annotated[str, StringConstraints(pattern=REVISION)]
Commit = Annotated[str, StringConstraints(pattern=COMMIT)]
GitUrl = Annotated[str, StringConstraints(pattern=GIT_URL)]
UserName = Annotated[str, StringConstraints(pattern=USER)]
AbsolutePath = Annotated[str, StringConstraints(pattern=ABSOLUTE_PATH)]
PlainUrl = Annotated[str, StringConstraints(pattern=PLAIN_URL)]
Url = Annotated[str, StringConstraints(pattern=URL)]
OperatingSystem = Annotated[str, StringConstraints(pattern=OPERATING_SYSTEM)]
SysctlKey = Annotated[str, StringConstraints(pattern=SYSCTL_KEY)]
PackageName = Annotated[str, StringConstraints(pattern=PACKAGE)]
CmakeOption = Annotated[str, StringConstraints(pattern=CMAKE_OPTION)]
CudaVersion = Annotated[str, StringConstraints(pattern=CUDA_VERSION)]
PciDevice = Annotated[str, StringConstraints(pattern=PCI_DEVICE)]
Architecture = Annotated[str, StringConstraints(pattern=SM)]
Port = Annotated[int, Field(ge=1, le=65535)]
Text = Annotated[str, StringConstraints(min_length=1)]
