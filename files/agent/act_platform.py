"""The actions of the platform: repositories, CUDA, driver, boot.

- ``cuda.repo`` key, file, url, sha256, lock_wait_s; ``driver.repo`` key, file, url, suite,
  lock_wait_s; ``cuda.repo_remove`` key
- ``cuda.install`` packages, nvcc, series, lock_wait_s; ``cuda.prove`` nvcc, series, architectures;
  ``cuda.cleanup`` packages | folder | link | file and lines, lock_wait_s; ``cuda.alternative`` root
- ``driver.install`` packages, branch, flavour, hold, pins, lock_wait_s; ``driver.hold``;
  ``driver.load``; ``driver.dkms`` kernel; ``initramfs.rebuild`` kernels; ``host.reboot`` boot_id

`file` is where the .deb or the keyring lies on this host; the controller has uploaded it there
where the change's action names `upload`.
"""

from __future__ import annotations

from . import act_cuda, act_driver, act_repository

HANDLERS = {**act_repository.HANDLERS, **act_cuda.HANDLERS, **act_driver.HANDLERS}
