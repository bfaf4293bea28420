"""Groups and system users, through groupadd, useradd and usermod."""

from __future__ import annotations

import grp
import pwd
import time

from .handler import Action, ActionError, Context, Ended, Handler, Outcome, argument, command, texts

LIMIT_S = 60
LOCK_TRIES = 15  # one second apart: /etc/passwd is locked only for moments


def group_make(context: Context, action: Action) -> Outcome:
    """Create a system group."""
    name = argument(action, "name", str)
    if _group(name) is not None:
        return Outcome(changed=False)
    _account_tool(["groupadd", "--system", name])
    if _group(name) is None:
        raise ActionError(f"groupadd reported success but group {name} does not exist")
    return Outcome(changed=True)


def user_make(context: Context, action: Action) -> Outcome:
    """Create a system user without a login or a home directory of useradd's making."""
    name = argument(action, "name", str)
    if _user(name) is not None:
        return user_set(context, action)
    options = ["--system", "--no-create-home", "--home-dir", argument(action, "home", str)]
    options += ["--shell", argument(action, "shell", str)]
    options += ["--gid", name] if _group(name) is not None else ["--user-group"]
    if texts(action, "groups"):
        options += ["--groups", ",".join(texts(action, "groups"))]
    _account_tool(["useradd", *options, name])
    _must_be(action)
    return Outcome(changed=True)


def user_set(context: Context, action: Action) -> Outcome:
    """Bring home, shell and supplementary groups of a user to what they must be."""
    name = argument(action, "name", str)
    if _user(name) is None:
        raise ActionError(
            f"user {name} does not exist: it was removed since the host was looked at"
        )
    wrong = _differences(action)
    if not wrong:
        return Outcome(changed=False)
    options: list[str] = []
    if "home" in wrong:
        options += ["--home", argument(action, "home", str)]
    if "shell" in wrong:
        options += ["--shell", argument(action, "shell", str)]
    if "groups" in wrong:
        options += ["--append", "--groups", ",".join(texts(action, "groups"))]
    _account_tool(["usermod", *options, name])
    _must_be(action)
    return Outcome(changed=True)


def _group(name: str) -> grp.struct_group | None:
    try:
        return grp.getgrnam(name)
    except KeyError:
        return None


def _user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _groups_of(user: pwd.struct_passwd) -> set[str]:
    names = {group.gr_name for group in grp.getgrall() if user.pw_name in group.gr_mem}
    return names | {group.gr_name for group in grp.getgrall() if group.gr_gid == user.pw_gid}


def _differences(action: Action) -> set[str]:
    """Which of home, shell and groups of an existing user are not as they must be."""
    user = _user(argument(action, "name", str))
    if user is None:
        return {"user"}
    wrong = set()
    if user.pw_dir != argument(action, "home", str):
        wrong.add("home")
    if user.pw_shell != argument(action, "shell", str):
        wrong.add("shell")
    if set(texts(action, "groups")) - _groups_of(user):
        wrong.add("groups")
    return wrong


def _must_be(action: Action) -> None:
    wrong = _differences(action)
    if wrong:
        raise ActionError(
            f"user {action['name']} still differs in {', '.join(sorted(wrong))} "
            "although the tool reported success"
        )


def _account_tool(argv: list[str]) -> Ended:
    """Run one of the account tools; another one's lock on /etc/passwd is waited out."""
    for _ in range(LOCK_TRIES):
        ended = command(argv, LIMIT_S)
        if ended.rc == 0:
            return ended
        if ended.rc is None:
            raise ActionError(f"{argv[0]} did not end within {LIMIT_S} s and was stopped")
        if "cannot lock" not in ended.err:
            break
        time.sleep(1)
    raise ActionError(f"{argv[0]} of {argv[-1]} failed: {ended.last_words}")


HANDLERS = {
    "group.make": Handler(one=group_make),
    "user.make": Handler(one=user_make),
    "user.set": Handler(one=user_set),
}
