"""A lab of simulated GPU servers on this machine: Debian under systemd-nspawn.

``python -m sandbox --help`` says what it can do and docs/sandbox.md how it works. Nothing in
the product imports this package; only inventory/sandbox.py and the tests read it.

What it relies on: root, systemd-nspawn, one cgroup2 mount (unified or hybrid) and overlayfs.
A host's process tree lives in one cgroup and its mounts in one private mount namespace, so
that ending the cgroup ends everything that the host ever was, whatever happened to us.
"""
