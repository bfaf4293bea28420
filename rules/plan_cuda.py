"""What must change for the CUDA toolkit: repository, installation, proof, clean-up (G4, G5).

What is in the toolkit's way goes after the new toolkit is proved, except what lies in its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from rules.change import Change
from rules.cuda import Conflict, conflicts, kept_by_hold, lacking, nvcc_path, proved
from rules.desired import CACHE
from rules.desired_platform import CudaToolkit, Repository
from rules.reboot import State

INSTALL = "cuda"
PROOF = "cuda:proof"
ALTERNATIVE = "cuda:alternative"

Part = Mapping[str, Any]


def repository_id(repository: Repository) -> str:
    """The id of the change that registers a repository."""
    return f"repository:{repository.key[:12] if repository.sha256 else repository.url}"


def cached(repository: Repository) -> str:
    """Where the host keeps a repository's .deb, or the keyring that was uploaded for it."""
    if repository.kind == "local_repo_deb":
        return f"{CACHE}/{repository.sha256}.deb"
    return f"{CACHE}/{hashlib.sha256(repository.url.encode()).hexdigest()[:16]}-keyring.gpg"


def registration(repository: Repository, part: Part, lock_wait_s: int) -> Change | None:
    """The change that registers a repository; None where it is whole already."""
    found = part["repositories"].get(repository.key)
    if found is not None and found["sound"]:
        return None
    local = repository.kind == "local_repo_deb"
    where = repository.url or repository.path
    return Change(
        id=repository_id(repository),
        area="platform",
        verb="register",
        thing=f"package repository {where.rsplit('/', 1)[-1] if local else where}",
        before=found["reason"] if found is not None else "not registered",
        after="one signed source entry",
        reason=("G5",),
        action={
            "do": "cuda.repo" if local else "driver.repo",
            "key": repository.key,
            "url": repository.url,
            "upload": repository.path or repository.keyring,  # a file on the controller, or ""
            "file": cached(repository),  # where it lies on the host, uploaded or fetched
            "sha256": repository.sha256,
            "suite": repository.suite,
            "lock_wait_s": lock_wait_s,
        },
    )


def changes(
    wanted: CudaToolkit, part: Part, lock_wait_s: int, *, driver_needs: bool
) -> list[Change]:
    """The changes for the toolkit, in order.

    `driver_needs`: the driver comes from the same repository and is still to be installed.
    """
    planned: list[Change] = []
    missing = lacking(wanted, part)
    in_way = conflicts(wanted, part) if wanted.exclusive else []
    needs: list[str] = []
    if wanted.repository and (missing or driver_needs):
        repo = registration(wanted.repository, part, lock_wait_s)
        if repo is not None:
            planned.append(repo)
            needs.append(repo.id)
    if missing:
        in_place = [_removal(one, (), lock_wait_s) for one in in_way if one.before_install]
        planned += in_place
        needs += [change.id for change in in_place]
        planned.append(_install(wanted, missing, needs, lock_wait_s))
    proof = () if proved(wanted, part) and not missing else (PROOF,)
    if proof:
        planned.append(_proof(wanted, part, (INSTALL,) if missing else ()))
    planned += [
        _removal(one, proof, lock_wait_s) for one in in_way if not (missing and one.before_install)
    ]
    planned += _alternative(wanted, part, [change.id for change in planned])
    planned += _space(wanted, part, proof, missing=bool(missing))
    return planned


def states(wanted: CudaToolkit, part: Part) -> list[State]:
    """What stays in the toolkit's way, and why."""
    found = [
        State(
            "HELD",
            f"the packages of CUDA {series} stay, somebody holds {', '.join(names)} "
            "(apt-mark showhold)",
        )
        for series, names in kept_by_hold(wanted, part["packages"]).items()
        if wanted.exclusive
    ]
    if not wanted.exclusive:
        found += [
            State("COEXISTS", f"{one.thing} stays ({one.why}): cuda_exclusive is not set")
            for one in conflicts(wanted, part)
        ]
    return found


def _install(wanted: CudaToolkit, missing: list[str], needs: list[str], lock_wait_s: int) -> Change:
    return Change(
        id=INSTALL,
        area="platform",
        verb="install",
        thing=f"CUDA toolkit {wanted.version}",
        before="; ".join(missing),
        after=f"{', '.join(wanted.packages)}, {nvcc_path(wanted)} of {wanted.series}",
        reason=("G5",),
        needs=tuple(needs),
        action={
            "do": "cuda.install",
            "packages": list(wanted.packages),
            "nvcc": nvcc_path(wanted),
            "series": wanted.series,
            "lock_wait_s": lock_wait_s,
        },
    )


def _proof(wanted: CudaToolkit, part: Part, needs: tuple[str, ...]) -> Change:
    names = ", ".join(wanted.architectures)
    return Change(
        id=PROOF,
        area="platform",
        verb="prove",
        thing=f"CUDA compiler {nvcc_path(wanted)}",
        before="not proved" if part["cuda_proof"] is None else "another compiler was proved",
        after=f"compiles a kernel for {names}",
        reason=("G5", "G9"),
        needs=needs,
        action={
            "do": "cuda.prove",
            "nvcc": nvcc_path(wanted),
            "series": wanted.series,
            "architectures": list(wanted.architectures),
        },
    )


def _removal(conflict: Conflict, needs: tuple[str, ...], lock_wait_s: int) -> Change:
    return Change(
        id=f"cuda-conflict:{conflict.key}",
        area="platform",
        verb="remove",
        thing=conflict.thing,
        before=conflict.why,
        after="gone",
        reason=("G4",),
        needs=needs,
        action={"do": "cuda.cleanup", **conflict.removal, "lock_wait_s": lock_wait_s},
    )


def _alternative(wanted: CudaToolkit, part: Part, needs: list[str]) -> list[Change]:
    """On a host that is ours alone /usr/local/cuda leads to our toolkit; elsewhere the packages
    decide. Where the toolkit is still to be installed its package does that by itself."""
    found = part["alternative"]
    known = wanted.root in found["choices"]
    if not wanted.exclusive or not known or found["value"] == wanted.root:
        return []
    return [
        Change(
            id=ALTERNATIVE,
            area="platform",
            verb="set",
            thing="alternative cuda (/usr/local/cuda)",
            before=str(found["value"]),
            after=str(wanted.root),
            reason=("G4", "G5"),
            needs=tuple(needs),
            action={"do": "cuda.alternative", "root": wanted.root},
        )
    ]


def _space(
    wanted: CudaToolkit, part: Part, proof: tuple[str, ...], *, missing: bool
) -> list[Change]:
    repository = wanted.repository
    if repository is None or wanted.keep_repository:
        return []
    if not missing and repository.key not in part["repositories"]:
        return []
    return [
        Change(
            id=f"{repository_id(repository)}:space",
            area="platform",
            verb="remove",
            thing="local CUDA repository",
            before="its packages lie on the disk",
            after="gone, its disk space free",
            reason=("G5",),
            needs=proof,
            action={"do": "cuda.repo_remove", "key": repository.key},
        )
    ]
