"""CUDA 12.4 as the vendor's packages lay it out, small: it compiles, it does not link.

The programs are the real ones (nvcc, ptxas and cuobjdump 12.4.131). Beside it stand-ins for two
other toolkits, whose nvcc only tells its version and refuses what that version refuses: a host
with several toolkits is what the conflict clean-up is tested on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sandbox.vendor.deb import File, Link, Package

RELEASE = "12.4.1-1"
NVCC = "12.4.131-1"
RUNTIME = "12.4.127-1"
HOME = "/usr/local/cuda-12.4"
TARGET = f"{HOME}/targets/x86_64-linux"

PROFILE = """\
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
LD_LIBRARY_PATH += $(TOP)/lib64:
PATH += $(TOP)/nvvm/bin:$(TOP)/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/targets/x86_64-linux/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/targets/x86_64-linux/lib"
CUDAFE_FLAGS +=
PTXAS_FLAGS +=
"""

# nvcc 12.4 takes gcc up to 13, and Debian 13 has 14. Debian's packages of nvcc solve it like this:
# a script that puts a folder with a choice of compiler first on the path.
WRAPPER = f"""\
#!/bin/sh
export PATH="{HOME}/libexec:$PATH"
exec {HOME}/libexec/nvcc "$@"
"""
COMPILER = """\
#!/bin/sh
# The host compiler for nvcc 12.4: the default one unless it is newer than 13.
name=${0##*/}
major=$(/usr/bin/$name -dumpversion 2>/dev/null | cut -d. -f1)
if [ "${major:-99}" -le 13 ]; then exec /usr/bin/$name "$@"; fi
for version in 13 12 11; do
    [ ! -x /usr/bin/$name-$version ] || exec /usr/bin/$name-$version "$@"
done
echo "$name: no compiler up to version 13 is installed" >&2
exit 127
"""

ALTERNATIVES = {
    "postinst": """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-{series} {priority}
    update-alternatives --install /usr/local/cuda-{major} cuda-{major} \\
        /usr/local/cuda-{series} {priority}
    ldconfig
fi
""",
    "prerm": """\
#!/bin/sh
set -e
if [ "$1" != upgrade ]; then
    update-alternatives --remove cuda /usr/local/cuda-{series}
    update-alternatives --remove cuda-{major} /usr/local/cuda-{series}
fi
""",
}

# From glibc 2.41 on these four are declared there as not throwing, and CUDA 12.4's own
# declarations have to say the same there, and only there.
PI = re.compile(r"(extern __DEVICE_FUNCTIONS_DECL__ .*\b(?:sin|cos)pif?\([a-z]+ x\));")
PI_HEAD = """\
#include <features.h>
#if defined(__GLIBC_PREREQ) && defined(__cplusplus)
#if __GLIBC_PREREQ(2, 41)
#define SANDBOX_PI_THROWS noexcept(true)
#endif
#endif
#ifndef SANDBOX_PI_THROWS
#define SANDBOX_PI_THROWS
#endif
"""

STAND_IN = """\
#!/bin/sh
# nvcc of a simulated toolkit: tells its version, compiles nothing.
case " $* " in
*" --version "*|*" -V "*)
    echo "nvcc: NVIDIA (R) Cuda compiler driver"
    echo "Cuda compilation tools, release {series}, V{version}" ;;
*"{refuses}"*) echo "nvcc fatal   : Unsupported gpu architecture 'compute_70'" >&2; exit 1 ;;
*) echo "nvcc fatal   : this toolkit is a stand-in of the sandbox" >&2; exit 1 ;;
esac
"""


def _scripts(series: str) -> dict[str, str]:
    major, _, minor = series.partition(".")
    values = {"series": series, "major": major, "priority": f"{major}{minor}"}
    return {name: text.format(**values) for name, text in ALTERNATIVES.items()}


def _tree(source: Path, target: str) -> dict[str, File | Link]:
    return {
        f"{target}/{path.relative_to(source)}": File(path)
        for path in sorted(source.rglob("*"))
        if path.is_file() and path.suffix != ".py"
    }


def _programs(inputs: Path, names: tuple[str, ...]) -> dict[str, File | Link]:
    folder = inputs / "nvidia-cuda-toolkit/usr/bin"
    return {f"{HOME}/bin/{name}": File(folder / name, 0o755) for name in names}


def packages(inputs: Path) -> list[Package]:
    """Packages of CUDA 12.4 from `sandbox.vendor.inputs.fetch`'s folder."""
    nvcc_wheel = inputs / "wheels/nvidia/cuda_nvcc"
    runtime = inputs / "wheels/nvidia/cuda_runtime"
    internals = inputs / "nvidia-cuda-toolkit/usr/lib/nvidia-cuda-toolkit"
    crt = _tree(nvcc_wheel / "include", f"{TARGET}/include")
    math = f"{TARGET}/include/crt/math_functions.h"
    text = (nvcc_wheel / "include/crt/math_functions.h").read_text()
    crt[math] = File((PI_HEAD + PI.sub(r"\1 SANDBOX_PI_THROWS;", text)).encode())
    nvvm = nvcc_wheel / "nvvm"
    compiler: dict[str, File | Link] = {
        f"{HOME}/bin/nvcc": File(WRAPPER.encode(), 0o755),
        f"{HOME}/libexec/nvcc": File(internals / "bin/nvcc", 0o755),
        f"{HOME}/libexec/nvcc.profile": File(PROFILE.encode()),
        f"{HOME}/libexec/gcc": File(COMPILER.encode(), 0o755),
        f"{HOME}/libexec/g++": File(COMPILER.encode(), 0o755),
        f"{HOME}/libexec/crt/link.stub": File(internals / "bin/crt/link.stub"),
        f"{HOME}/libexec/crt/prelink.stub": File(internals / "bin/crt/prelink.stub"),
        **_programs(inputs, ("bin2c", "cudafe++", "fatbinary", "nvlink", "ptxas")),
        f"{HOME}/nvvm/bin/cicc": File(internals / "bin/cicc", 0o755),
        f"{HOME}/nvvm/libdevice/libdevice.10.bc": File(nvvm / "libdevice/libdevice.10.bc"),
        f"{HOME}/nvvm/lib64/libnvvm.so": Link("libnvvm.so.4"),
        f"{HOME}/nvvm/lib64/libnvvm.so.4": File(nvvm / "lib64/libnvvm.so"),
    }
    links: Mapping[str, File | Link] = {
        f"{HOME}/include": Link("targets/x86_64-linux/include"),
        f"{HOME}/lib64": Link("targets/x86_64-linux/lib"),
        "/etc/ld.so.conf.d/988_cuda-12.conf": File(
            b"/usr/local/cuda-12/targets/x86_64-linux/lib\n"
        ),
    }
    config = f"cuda-toolkit-12-4-config-common (>= {RUNTIME})"
    return [
        Package("cuda-toolkit-12-4-config-common", RUNTIME, {}, links, _scripts("12.4"), "all"),
        Package("cuda-crt-12-4", NVCC, {}, crt),
        # the compilers that this nvcc takes; Debian 13's own default, gcc 14, is too new for it
        Package(
            "cuda-nvcc-12-4",
            NVCC,
            {"Depends": f"cuda-crt-12-4, {config}, g++-13 | g++-12 | g++-11"},
            compiler,
        ),
        Package("cuda-cuobjdump-12-4", RUNTIME, {}, _programs(inputs, ("cuobjdump",))),
        Package("cuda-nvdisasm-12-4", RUNTIME, {}, _programs(inputs, ("nvdisasm",))),
        Package("cuda-nvprune-12-4", RUNTIME, {}, _programs(inputs, ("nvprune", "cu++filt"))),
        Package(
            "cuda-cudart-12-4",
            RUNTIME,
            {"Depends": config},
            {
                f"{TARGET}/lib/libcudart.so.12": Link("libcudart.so.12.4.127"),
                f"{TARGET}/lib/libcudart.so.12.4.127": File(runtime / "lib/libcudart.so.12"),
            },
        ),
        Package(
            "cuda-cudart-dev-12-4",
            RUNTIME,
            {"Depends": f"cuda-cudart-12-4, cuda-crt-12-4, {config}"},
            {
                **_tree(runtime / "include", f"{TARGET}/include"),
                f"{TARGET}/lib/libcudart.so": Link("libcudart.so.12"),
            },
        ),
        Package(
            "cuda-toolkit-12-4",
            RELEASE,
            {
                "Depends": "cuda-nvcc-12-4, cuda-cuobjdump-12-4, cuda-nvdisasm-12-4, "
                "cuda-nvprune-12-4, cuda-cudart-dev-12-4"
            },
        ),
        Package("cuda-12-4", RELEASE, {"Depends": "cuda-toolkit-12-4, cuda-drivers"}),
        Package("cuda", RELEASE, {"Depends": "cuda-12-4"}),
    ]


def others() -> list[Package]:
    """Stand-ins for CUDA 11.8 and 13.0 (the first builds for sm_70, the second refuses)."""
    out = []
    for series, version, refuses in (("11.8", "11.8.89", "\n"), ("13.0", "13.0.88", "70")):
        tag = series.replace(".", "-")
        nvcc = STAND_IN.format(series=series, version=version, refuses=refuses)
        out += [
            Package(
                f"cuda-nvcc-{tag}",
                f"{version}-1",
                {"Depends": f"cuda-toolkit-{tag}-config-common"},
                {f"/usr/local/cuda-{series}/bin/nvcc": File(nvcc.encode(), 0o755)},
            ),
            Package(
                f"cuda-toolkit-{tag}-config-common", f"{version}-1", {}, {}, _scripts(series), "all"
            ),
            Package(f"cuda-toolkit-{tag}", f"{series}.0-1", {"Depends": f"cuda-nvcc-{tag}"}),
        ]
    return out
