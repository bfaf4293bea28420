"""What every host must be: packages, accounts, files, kernel parameters, units."""

from __future__ import annotations

import difflib

from testinfra.host import Host

from rules.desired import Desired, Directory, Package, Sysctl, Unit, User
from tests.rollout.conftest import Target


def again(target: Target) -> str:
    """What to try when a check fails."""
    return f"run: pyinfra INVENTORY --limit {target.name} deploy.py"


def test_package(host: Host, target: Target, package: Package) -> None:
    found = host.package(package.name)
    assert found.is_installed, f"package {package.name} is not installed; {again(target)}"


def test_user(host: Host, target: Target, user: User) -> None:
    found = host.user(user.name)
    assert found.exists, f"user {user.name} is not there; {again(target)}"
    assert (found.home, found.shell) == (user.home, user.shell), again(target)


def test_file(host: Host, target: Target, desired: Desired, managed_file: str) -> None:
    wanted = next(item for item in desired.files if item.path == managed_file)
    found = host.file(wanted.path)
    assert found.exists, f"file {wanted.path} is not there; {again(target)}"
    kind = (oct(found.mode), found.user, found.group)
    expected = (oct(wanted.mode), wanted.owner, wanted.group)
    assert kind == expected, f"file {wanted.path}: is {kind}, expected {expected}; {again(target)}"
    if found.sha256sum == wanted.sha256:
        return
    shown = "its content is secret and not shown"
    if not wanted.secret:
        shown = "\n".join(
            difflib.unified_diff(
                found.content_string.splitlines(),
                wanted.content.decode().splitlines(),
                "found",
                "expected",
                lineterm="",
            )
        )
    raise AssertionError(f"file {wanted.path} has other content; {again(target)}\n{shown}")


def test_directory(host: Host, target: Target, directory: Directory) -> None:
    found = host.file(directory.path)
    assert found.is_directory, f"directory {directory.path} is not there; {again(target)}"
    kind = (oct(found.mode), found.user, found.group)
    expected = (oct(directory.mode), directory.owner, directory.group)
    assert kind == expected, (
        f"directory {directory.path}: is {kind}, expected {expected}; {again(target)}"
    )


def test_link(host: Host, target: Target, desired: Desired, link: str) -> None:
    wanted = next(item for item in desired.links if item.path == link)
    found = host.file(wanted.path)
    assert found.is_symlink, f"link {wanted.path} is no symbolic link; {again(target)}"
    points = host.check_output("readlink %s", wanted.path)
    assert points == wanted.target, (
        f"link {wanted.path}: points to {points}, expected {wanted.target}; {again(target)}"
    )


def test_sysctl(host: Host, target: Target, sysctl: Sysctl) -> None:
    found = host.check_output("cat /proc/sys/%s", sysctl.key.replace(".", "/"))
    assert found.split() == sysctl.value.split(), (
        f"{sysctl.key} is {found}, expected {sysctl.value}; {again(target)}"
    )


def test_unit(host: Host, target: Target, unit: Unit) -> None:
    found = host.service(unit.name)
    assert not found.is_masked, f"unit {unit.name} is masked; {again(target)}"
    assert found.is_enabled == unit.enabled, (
        f"unit {unit.name}: enabled is {found.is_enabled}, expected {unit.enabled}; {again(target)}"
    )
    assert found.is_running == unit.active, (
        f"unit {unit.name}: running is {found.is_running}, expected {unit.active}; "
        f"see `journalctl -u {unit.name}`; {again(target)}"
    )
