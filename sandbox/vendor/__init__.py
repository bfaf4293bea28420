"""The simulated vendor: .deb packages, repositories and the kernel side of its driver.

`sandbox.vendor.build` makes what a host installs; `sandbox.vendor.kernel` gives what the
simulated kernel of a host needs to be laid over it.
"""
