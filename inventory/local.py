"""This machine, without ssh: ``pyinfra inventory/local.py deploy.py`` as root.

For trying things out, and for a single workstation. Put the host in the role groups it has.
"""

llama_cpp = ["@local"]
