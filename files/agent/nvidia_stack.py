"""Names and versions of NVIDIA driver and CUDA packages, as Debian, Ubuntu and NVIDIA name them.

The stack is what must move together: kernel module, libraries and tools of one driver version. A
hold on a part of it lets an upgrade take the rest apart ("Driver/library version mismatch"). From
branch 590 on NVIDIA's names for Ubuntu carry no branch any more, and on Debian they never did
(NVIDIA driver installation guide, "Recent Updates", "Ubuntu 590 and later packages"), so that the
branch of a package is read from its version, never from its name.
"""

from __future__ import annotations

import re

_STACK = re.compile(
    r"""^(
      cuda-drivers(-.+)?                 # NVIDIA's meta packages
    | nvidia-(driver|open|headless|dkms|utils|smi|firmware|modprobe|settings|xconfig|kernel|support)
      ([-0-9].*)?
    | nvidia-(compute-utils|persistenced|fabricmanager|imex|suspend-common|alternative|legacy-check)
      ([-0-9].*)?
    | nvidia-(egl|vulkan|opencl|vdpau)-.+
    | libnvidia-.+
    | libnv(sdm|subdev|optix|cuvid|fbc|encode).*
    | lib(cuda|cudadebugger)1
    | libxnvctrl.*
    | lib(egl|gl|gl1|gles|glx)-nvidia.*
    | xserver-xorg-video-nvidia.*
    | firmware-nvidia-.+
    | linux-(modules|objects|signatures)-nvidia-.+
    )$""",
    re.X,
)
# Look like the stack by their name and are released apart from it.
_NOT_STACK = re.compile(
    r"""^(
      libnvidia-container.*
    | libnvidia-ml-dev                    # part of Debian's toolkit
    | libnvidia-egl-(gbm|wayland|x11|xcb|xlib).*
    | nvidia-driver-(assistant|pinning-.+|local-repo-.+)
    | nvidia-opencl-dev
    )$""",
    re.X,
)
# Of the stack and held with it, but released apart: Ubuntu's libxnvctrl0 is 510 beside driver 580.
_ACCESSORY = re.compile(r"^(libxnvctrl|nvidia-(settings|modprobe|xconfig|persistenced)(-|$))")
_DRIVER_VERSION = re.compile(r"^(?:\d+:)?((\d{3,})\.\d+(?:\.\d+)?)(?:\D|$)")
_TOOLKIT = re.compile(
    r"^(?:cuda|gds-tools|lib(?:cu|np|nv)[a-z0-9]+)(?:-[a-z][a-z0-9]*)*-(\d{1,2})-(\d)"
    r"(?:-config-common|-samples|-local)?$"
)


def bare(name: str) -> str:
    """A package's name without its architecture."""
    return name.partition(":")[0]


def in_stack(name: str) -> bool:
    """Whether a package belongs to the driver stack that is held and moved together."""
    return _STACK.match(bare(name)) is not None and _NOT_STACK.match(bare(name)) is None


def tied_to_driver(name: str) -> bool:
    """Whether a package of the stack must have the driver's own version to work with it."""
    return in_stack(name) and _ACCESSORY.match(bare(name)) is None


def is_nvidia(name: str) -> bool:
    """Whether a package has to do with NVIDIA's driver or toolkits at all."""
    return (
        in_stack(name)
        or toolkit_series(name) is not None
        or re.match(r"^(cuda|nvidia|libnvidia|nsight)-", name) is not None
    )


def driver_version(version: str) -> str | None:
    """The driver version in a package's version (``1:580.95.05-0ubuntu1`` -> ``580.95.05``).

    None for a version that is no driver's, like that of a package named after a kernel.
    """
    found = _DRIVER_VERSION.match(version)
    return found[1] if found else None


def branch_of(version: str) -> int | None:
    """The driver branch of a version: 580 of ``580.95.05-0ubuntu1``; None if it is no driver's."""
    found = _DRIVER_VERSION.match(version)
    return int(found[2]) if found else None


def named_branch(name: str) -> int | None:
    """The branch that a package's name promises (``nvidia-driver-550-server``: 550), or None."""
    found = re.search(r"-(\d{3})(?!\d|\.)", bare(name))
    return int(found[1]) if found and in_stack(name) else None


def is_open(name: str) -> bool:
    """Whether a package brings the open kernel modules, by its name."""
    name = bare(name)
    return in_stack(name) and re.search(r"-open(-|$)", name) is not None


def is_unsuffixed(name: str) -> bool:
    """Whether a name means the newest branch there is (``cuda-drivers``, ``nvidia-open``)."""
    return bare(name) in ("cuda-drivers", "nvidia-open", "cuda", "nvidia-driver-cuda")


def toolkit_series(name: str) -> str | None:
    """The toolkit series a package of NVIDIA's toolkit belongs to, ``12.4`` of ``cuda-nvcc-12-4``.

    None for a package that is of no toolkit, or that all toolkits share.
    """
    name = bare(name)
    if in_stack(name) or name.startswith("cuda-repo-"):
        return None
    found = _TOOLKIT.match(name)
    return f"{found[1]}.{found[2]}" if found else None
