"""pyinfra inventory of the simulated lab: whatever ``python -m sandbox up`` has up.

Groups: ``sandbox`` (from this file's name) and ``llama_cpp`` hold all hosts, one group per
chassis profile (``r740``, ``supermicro``, ``dock``) holds its own, and ``simulated_gpus`` those
made with ``--gpus``. A host that is dead or cut
off stays in: how a run ends then is part of what the lab is for.
"""

import sys as _sys
from pathlib import Path as _Path

_root = str(_Path(__file__).resolve().parents[1])
if _root not in _sys.path:  # testinfra and pyinfra's own loader do not add the repository
    _sys.path.insert(0, _root)

from sandbox import inventory as _inventory  # noqa: E402

_groups = _inventory.groups()

llama_cpp = _groups["llama_cpp"]
r740 = _groups["r740"]
supermicro = _groups["supermicro"]
dock = _groups["dock"]
simulated_gpus = _groups["gpus"]
# last, so that group_data/sandbox.py has the last word
sandbox = _groups["sandbox"]
