"""Distribution packages: all that are missing in one apt-get call, each told by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from . import apt, apt_errors
from .handler import (
    Action,
    ActionError,
    Context,
    Handler,
    Outcome,
    Results,
    argument,
    command,
)
from .probe_tools import packages_state

LISTS_OLD_S = 24 * 3600
APT_GET = (
    *("apt-get", "--yes", "--quiet"),
    *("-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=60"),
    *("-o", "Dpkg::Use-Pty=0", "-o", "Dpkg::Options::=--force-confold"),
)


@dataclass
class Installation:
    """One go of installing packages: what is left to try, and what was tried already."""

    context: Context
    actions: dict[str, Action]  # by package name
    lock_wait_s: float
    updated: bool = False
    repaired: bool = False
    update_problem: str = ""
    results: dict[str, Outcome | ActionError] = field(default_factory=dict)  # by change id

    def progress(self, package: str, message: str, percent: float | None) -> None:
        name = package.partition(":")[0]
        action = self.actions.get(name) or next(iter(self.actions.values()))
        self.context.progress(action, message, percent)

    def fail(self, names: Sequence[str], sentence: str) -> None:
        for name in names:
            self.results[self.actions[name]["id"]] = ActionError(f"package {name}: {sentence}")

    def update(self) -> None:
        """Renew apt's lists once; a failure counts only if an installation then fails too."""
        self.updated = True
        self.progress("", "renews the package lists", None)
        ended = apt.run([*APT_GET, "update"], self.lock_wait_s, self.progress)
        if ended.rc != 0 or "Some index files failed to download" in ended.out:
            problem = apt_errors.classify(ended.out)
            self.update_problem = problem.sentence
            if problem.kind == "sources":
                raise ActionError(problem.sentence)
            self.progress("", f"goes on with the old lists: {problem.sentence}", None)

    def repair(self) -> None:
        """Finish an interrupted dpkg, once."""
        self.repaired = True
        self.progress("", "finishes an interrupted dpkg: dpkg --configure -a", None)
        _configure_all(self.lock_wait_s, self.progress)

    def attempt(self, names: list[str]) -> None:
        """Install packages together; those at fault are taken out and the others tried again."""
        while names:
            specs = [_spec(self.actions[name]) for name in names]
            downgrade = ["--allow-downgrades"] if any("=" in spec for spec in specs) else []
            options = ["--no-install-recommends", "--no-remove", *downgrade]
            words = [*APT_GET, *options, "install", "--", *specs]
            ended = apt.run(words, self.lock_wait_s, self.progress)
            names = self._told(names)
            if ended.rc == 0:
                self.fail(
                    names, "apt-get reported success, yet it is not installed: a virtual one?"
                )
                return
            names = self._after(apt_errors.classify(ended.out), names)

    def _told(self, names: list[str]) -> list[str]:
        """Tell those that are installed now; the others are returned."""
        state = installed([self.actions[name] for name in names])
        note = "an interrupted dpkg was finished first" if self.repaired else ""
        for name in names:
            if state[name]:
                self.results[self.actions[name]["id"]] = Outcome(True, note)
        return [name for name in names if not state[name]]

    def _after(self, problem: apt_errors.Problem, names: list[str]) -> list[str]:
        """Do what a failed attempt calls for; returns the packages to try once more together."""
        if self.context.gone:
            self.fail(names, "the connection was lost")
            return []
        if problem.kind == "interrupted" and not self.repaired:
            self.repair()
            return names
        if problem.kind in ("stale", "unknown") and not self.updated:
            self.update()
            return names
        at_fault = [name for name in names if name.partition(":")[0] in problem.names]
        if problem.kind == "unknown" and at_fault:
            because = f" (renewing the lists failed: {self.update_problem})"
            for name in at_fault:
                one = problem.sentence if len(at_fault) == 1 else _unknown_one(name)
                self.fail([name], one + (because if self.update_problem else ""))
            return [name for name in names if name not in at_fault]
        if problem.kind in ("dependencies", "removal", "script") and len(names) > 1:
            for name in names:  # one that can't be installed must not keep the others away
                self.attempt([name])
            return []
        self.fail(names, problem.sentence)
        return []


def _unknown_one(name: str) -> str:
    return "is in no source of this host: correct the name, or add the source that has it"


def install(context: Context, actions: Sequence[Action]) -> Results:
    """Install packages, at exact versions where asked; never removes another package."""
    state = installed(actions)
    results: dict[str, Outcome | ActionError] = {
        action["id"]: Outcome(False) for action in actions if state[_name(action)]
    }
    missing = {_name(action): action for action in actions if not state[_name(action)]}
    if not missing:
        return results
    wait = max(argument(action, "lock_wait_s", int) for action in missing.values())
    go = Installation(context, missing, wait)
    try:
        if apt.lists_age_s() > LISTS_OLD_S:
            go.update()
        go.attempt(list(missing))
    except ActionError as error:
        go.fail([n for n, a in missing.items() if a["id"] not in go.results], str(error))
    return {**results, **go.results}


def installed(actions: Sequence[Action]) -> dict[str, bool]:
    """Whether each package is installed, whole, and at the version asked; by name."""
    ended = command(
        ["dpkg-query", "--show", "--showformat"]
        + ["${Package}\\t${Architecture}\\t${db:Status-Status}\\t${Version}\\n", "--"]
        + [_name(action) for action in actions],
        60,
    )
    found = [line.split("\t") for line in ended.out.splitlines() if line.count("\t") == 3]
    state = {}
    for action in actions:
        name, _, architecture = _name(action).partition(":")
        version = action.get("version")
        state[_name(action)] = any(
            row[0] == name
            and row[2] == "installed"
            and (not architecture or row[1] == architecture)
            and (version is None or row[3] == version)
            for row in found
        )
    return state


def repair(context: Context, action: Action) -> Outcome:
    """Finish what an interrupted dpkg left half done."""
    if not packages_state()["interrupted"]:
        return Outcome(changed=False)
    _configure_all(
        argument(action, "lock_wait_s", int),
        lambda package, message, percent: context.progress(action, message, percent),
    )
    if packages_state()["interrupted"]:
        raise ActionError(
            "packages are still half done after dpkg --configure -a: see dpkg --audit"
        )
    return Outcome(changed=True, message="an interrupted dpkg was finished: dpkg --configure -a")


def _configure_all(lock_wait_s: float, progress: apt.Progress) -> None:
    words = ["dpkg", "--force-confold", "--configure", "-a"]
    ended = apt.run(words, lock_wait_s, progress)
    if ended.rc != 0:
        problem = apt_errors.classify(ended.out)
        raise ActionError(f"dpkg --configure -a failed: {problem.sentence}")


def _name(action: Action) -> str:
    name = argument(action, "name", str)
    if name.endswith("-") or name.startswith("-"):  # apt-get would take "curl-" as: remove curl
        raise ActionError(f"{name} is no name of a package")
    return name


def _spec(action: Action) -> str:
    version = action.get("version")
    return _name(action) if version is None else f"{_name(action)}={version}"


HANDLERS = {
    "package.install": Handler(together=install),
    "package.repair": Handler(one=repair),
}
