"""Read by pyinfra first of all, from the folder it is run in.

Checks the data files before anything connects, and puts glue/ in place: what this project needs
different from pyinfra, each piece explained there.
"""

from pathlib import Path

from pyinfra.context import config

import glue
from glue import data_files
from glue.run import BAD_DATA, LAST_RUN, asked, end

config.REQUIRE_PYINFRA_VERSION = "==3.10.0"  # what glue/ is written against
config.CONNECT_TIMEOUT = 10  # seconds

glue.apply()

# A run that reaches no host writes no report: the one of an earlier run must not speak for it.
if not {"fact", "debug-inventory", "exec"} & set(asked("operations") or ()):
    LAST_RUN.unlink(missing_ok=True)

folders = [Path("group_data"), Path(asked("inventory") or ".").parent / "group_data"]
problems = data_files.check([*folders, *(asked("group_data") or ())])
if problems:
    end(BAD_DATA, *problems, data_files.count(problems))
