"""Groups and users: who must exist, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rules.change import Change
from rules.desired import Desired, Group, User
from rules.observed import Observed, Unknown

# From here on uids are people's, on Debian and Ubuntu (adduser.conf's FIRST_UID).
FIRST_PERSON = 1000
NO_LOGIN = ("nologin", "false")


def changes(desired: Desired, observed: Observed) -> list[Change]:
    """Groups to make, then users to make or to set right.

    Supplementary groups are added where they are missing; further ones that a user has are left.
    """
    groups = [_group(group, observed) for group in desired.groups]
    making = {change.id for change in groups if change is not None}
    users = [_user(user, observed, making) for user in desired.users]
    return [change for change in [*groups, *users] if change is not None]


def refusals(desired: Desired, observed: Observed) -> list[str]:
    """A sentence for every account of somebody else's that a run would make its own.

    A server's user has no shell and no home of its own: taking somebody's account for it would
    lock them out.
    """
    found = ((user, observed.of("users", user.name)) for user in desired.users)
    return [
        f"user {user.name} exists with uid {account.get('uid')}, home {account.get('home')} and "
        f"shell {account.get('shell')}, so it is not the servers' own, and a run would take its "
        "home and shell away: name another service_user"
        for user, account in found
        if isinstance(account, Mapping) and _is_somebody_elses(user, account)
    ]


def _is_somebody_elses(user: User, account: Mapping[str, Any]) -> bool:
    if account.get("home") == user.home and account.get("shell") == user.shell:
        return False  # nothing is taken away
    uid = account.get("uid")
    if isinstance(uid, int) and (uid == 0 or uid >= FIRST_PERSON):
        return True
    # With the home that runs give, it is the one a run made, and its shell was changed since.
    may_log_in = str(account.get("shell")).rpartition("/")[2] not in NO_LOGIN
    return may_log_in and account.get("home") != user.home


def _group(group: Group, observed: Observed) -> Change | None:
    found = observed.of("groups", group.name)
    if isinstance(found, Mapping):
        return None
    unknown = isinstance(found, Unknown)
    return Change(
        id=f"group:{group.name}",
        area="accounts",
        verb="create",
        thing=f"group {group.name}",
        before=f"unknown: {found.reason}" if isinstance(found, Unknown) else "absent",
        after="a system group",
        reason=group.reason,
        action=None if unknown else {"do": "group.make", "name": group.name},
    )


def _user(user: User, observed: Observed, making: set[str]) -> Change | None:
    found = observed.of("users", user.name)
    wanted = {"home": user.home, "shell": user.shell, "groups": list(user.groups)}
    action: dict[str, Any] | None = {"do": "user.make", "name": user.name, **wanted}
    verb, before, after = "create", "absent", _words(wanted)
    if isinstance(found, Unknown):
        before, action = f"unknown: {found.reason}", None
    elif found is not None:
        wrong = _wrong(user, found)
        if not wrong:
            return None
        verb, action = "set", {"do": "user.set", "name": user.name, **wanted}
        before = _words({key: found.get(key) for key in wrong})
        after = _words({key: wanted[key] for key in wrong})
    needed = [f"group:{name}" for name in (user.name, *user.groups)]
    return Change(
        id=f"user:{user.name}",
        area="accounts",
        verb=verb,
        thing=f"user {user.name}",
        before=before,
        after=after,
        reason=user.reason,
        needs=tuple(change_id for change_id in needed if change_id in making),
        action=action,
    )


def _wrong(user: User, found: Mapping[str, Any]) -> list[str]:
    wrong = [key for key in ("home", "shell") if found.get(key) != getattr(user, key)]
    has = {*found.get("groups", ()), found.get("group", "")}
    return wrong + (["groups"] if set(user.groups) - has else [])


def _words(properties: Mapping[str, Any]) -> str:
    words = []
    for key, value in properties.items():
        text = ", ".join(value) if isinstance(value, list) else str(value)
        if text or key != "groups":
            words.append(f"{key} {text}")
        elif len(properties) == 1:
            words.append("no groups")
    return "; ".join(words)
