"""The model profiles that ship: which GGUF metadata a file must have to be served (G11).

``upstream`` is what llama.cpp itself needs of the public split files of this model: an
architecture it knows (pull request 27742 of llama.cpp). ``guide`` adds the signature of the
guide's file; llama.cpp ignores those keys, and no public file has them. ``group_data`` holds the
same table as `model_profiles`, where more can be added; a test keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROFILES: Mapping[str, Mapping[str, Any]] = {
    "upstream": {
        "general.architecture": "qwen4exp",
    },
    "guide": {
        "general.architecture": "qwen4exp",
        "qwen.flash_kernel_version": "v3.2.1-v100",
        "qwen.nvlink_optimized": True,
        "qwen.cuda_arch_requirement": 7.0,
    },
}
DEFAULT = "upstream"
