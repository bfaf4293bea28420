"""Where pyinfra is bent to what this project promises: one small module per habit.

Seen in pyinfra 3.10.0. Each module says what pyinfra does, why that does not do here, and what
to remove when pyinfra changes; ``tests/unit/test_pyinfra_contract.py`` holds what they stand on.

==============  ==================================================================================
`transport`     paramiko leaves Nagle's algorithm on
`prompts`       a question at the first failed host; a traceback when standard input is closed
`targets`       no host to work on is a success
`connections`   a host that cannot be reached is told in paramiko's words and tracebacks
`hosts`         an exception on one host ends the run for all of them
`order`         hosts are worked on in no stated order
`endings`       exit codes and JSON that hide a failure
`callbacks`     telling others that something changed on a host, or that its connection ends
`data_files`    any name is accepted in a data file (uses nothing of pyinfra)
==============  ==================================================================================
"""

from __future__ import annotations


def apply() -> None:
    """Put every change in place. Called by config.py, before pyinfra connects to anything."""
    from glue import connections, endings, hosts, order, prompts, targets, transport

    for module in (transport, prompts, targets, connections, hosts, order, endings):
        module.apply()
