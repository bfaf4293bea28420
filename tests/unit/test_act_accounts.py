"""Groups and users with stand-ins for the account tools and the account database."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from files.agent import act_accounts
from tests.unit.act_support import act, calls, program


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH whose files ``group`` and ``passwd`` are the database."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HERE", str(tmp_path))
    for name in ("group", "passwd"):
        (tmp_path / name).touch()

    def groups() -> list[Any]:
        rows = [line.split(":") for line in (tmp_path / "group").read_text().splitlines()]
        return [
            SimpleNamespace(gr_name=name, gr_gid=int(gid), gr_mem=members.split(","))
            for name, gid, members in rows
        ]

    def users() -> list[Any]:
        rows = [line.split(":") for line in (tmp_path / "passwd").read_text().splitlines()]
        return [
            SimpleNamespace(pw_name=name, pw_gid=int(gid), pw_dir=home, pw_shell=shell)
            for name, gid, home, shell in rows
        ]

    monkeypatch.setattr("grp.getgrall", groups)
    monkeypatch.setattr(
        act_accounts, "_group", lambda name: next((g for g in groups() if g.gr_name == name), None)
    )
    monkeypatch.setattr(
        act_accounts, "_user", lambda name: next((u for u in users() if u.pw_name == name), None)
    )
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    program(tmp_path, "groupadd", 'echo "$2:990:" >> "$HERE/group"')
    return tmp_path


def user(do: str, **more: Any) -> dict[str, Any]:
    wanted = {"home": "/srv/s", "shell": "/usr/sbin/nologin", "groups": ["video"]}
    return {"do": f"user.{do}", "name": "serve", **wanted, **more}


def test_group(host: Path) -> None:
    action = {"do": "group.make", "name": "serve"}
    assert act(action).of("done")["0"]["changed"] is True
    assert act(action).of("done")["0"]["changed"] is False
    assert calls(host, "groupadd") == ["--system serve"]
    program(host, "groupadd", "true")
    assert "does not exist" in act({**action, "name": "other"}).failure("0")


def test_user_is_made_with_its_group(host: Path) -> None:
    (host / "group").write_text("serve:990:\nvideo:44:serve\n")
    program(host, "useradd", 'echo "serve:990:/srv/s:/usr/sbin/nologin" >> "$HERE/passwd"')
    assert act(user("make")).of("done")["0"]["changed"] is True
    assert act(user("make")).of("done")["0"]["changed"] is False
    assert calls(host, "useradd") == [
        "--system --no-create-home --home-dir /srv/s --shell /usr/sbin/nologin "
        "--gid serve --groups video serve"
    ]


def test_user_without_a_group_gets_one(host: Path) -> None:
    program(host, "useradd", 'echo "serve:990:/srv/s:/usr/sbin/nologin" >> "$HERE/passwd"')
    act(user("make", groups=[]))
    assert "--user-group serve" in calls(host, "useradd")[0]


def test_only_what_differs_is_set(host: Path) -> None:
    (host / "passwd").write_text("serve:990:/srv/s:/bin/sh\n")
    (host / "group").write_text("video:44:serve\n")
    program(host, "usermod", 'echo "serve:990:/srv/s:/usr/sbin/nologin" > "$HERE/passwd"')
    assert act(user("set")).of("done")["0"]["changed"] is True
    assert calls(host, "usermod") == ["--shell /usr/sbin/nologin serve"]
    message = act(user("set", home="/elsewhere", groups=["render"])).failure("0")
    assert "still differs in groups, home" in message
    assert calls(host, "usermod")[-1] == "--home /elsewhere --append --groups render serve"


def test_a_lock_on_the_database_is_waited_out_and_not_for_ever(host: Path) -> None:
    locked = "echo 'groupadd: cannot lock /etc/group; try again later.' >&2; exit 10"
    program(
        host,
        "groupadd",
        f'if [ "$(wc -l < "$HERE/groupadd.calls")" -lt 3 ]; then {locked}; fi\n'
        'echo "$2:990:" >> "$HERE/group"',
    )
    assert act({"do": "group.make", "name": "a"}).of("done")["0"]["changed"] is True
    program(host, "groupadd", locked)
    message = act({"do": "group.make", "name": "b"}).failure("0")
    assert message == ("groupadd of b failed: groupadd: cannot lock /etc/group; try again later.")


def test_other_failures_are_told_at_once(host: Path) -> None:
    program(host, "useradd", "echo \"useradd: group 'video' does not exist\" >&2; exit 6")
    assert "group 'video' does not exist" in act(user("make")).failure("0")
    assert len(calls(host, "useradd")) == 1
