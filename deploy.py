"""The story of a host: what is done to it, in this order.

pyinfra inventory/lab.py deploy.py --dry --diff     # what would change
pyinfra inventory/lab.py deploy.py                  # make it so
"""

from operations import (
    accounts,
    bootstrap,
    files,
    kernel,
    llama_cpp,
    models,
    packages,
    platform,
    run,
    serving,
)

run.begin()

bootstrap.python(name="python3 for the agent")
packages.installed(name="Packages")
accounts.present(name="Service accounts")
files.managed(name="Files")
platform.installed(name="CUDA and driver")
kernel.tuned(name="Kernel parameters")

llama_cpp.released(name="llama.cpp release, beside the one in use")
models.present(name="Models, checked, beside the ones in use")

serving.switched(name="Servers")
