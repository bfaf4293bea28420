"""Hosts of the simulated lab that were made with GPUs (``python -m sandbox up --gpus``).

`cuda_source` is not here: inventory/sandbox.py gives it as host data, since only the lab knows
the .deb of its simulated vendor.
"""

# What V100 needs: the last toolkit series that the guide names (G5).
cuda_version = "12.4"

# The simulated hosts are ours alone (G4).
cuda_exclusive = True

# The vendor's .deb brings drivers as well (G6).
driver_source = {"kind": "toolkit_repository"}

# The last branch for Volta (G6).
driver_branch = 580

# Nobody minds a simulated host's reboot; nouveau has its cards when it is new (G6).
reboot_allowed = True

# Seconds; a simulated host boots in five.
reboot_timeout_s = 120
