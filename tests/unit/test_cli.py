"""The real pyinfra command line in a small project: endings, exit codes, hosts that fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.mini_project import Project, Result

THREE = "inventory/three.py"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def no_traceback(result: Result) -> None:
    assert "Traceback" not in result.all
    assert "pyinfra-debug.log" not in result.all


def changed(result: Result) -> set[str]:
    lines = [line for line in result.out.splitlines() if line.startswith("changed ")]
    return {line.removeprefix("changed @fake/") for line in lines}


# --- the question ----------------------------------------------------------------------------


def test_enter_executes(project: Project) -> None:
    result = project.run(THREE, "deploy.py", stdin="\n")
    assert result.code == 0, result.all
    assert changed(result) == {"one", "two", "three"}


@pytest.mark.parametrize("stdin", ["", None], ids=["empty", "closed"])
def test_nobody_there_to_answer(project: Project, stdin: str | None) -> None:
    result = project.run(THREE, "deploy.py", stdin=stdin)
    assert result.code == 1
    assert "nothing was changed: nobody answered" in result.err
    assert "run with -y" in result.err
    assert changed(result) == set()
    no_traceback(result)


def test_declined_is_no_success(project: Project) -> None:
    result = project.run(THREE, "deploy.py", stdin="n\n")
    assert result.code == 1
    assert "nothing was changed: the run was declined" in result.err
    assert changed(result) == set()


def test_nothing_to_change_asks_nothing(project: Project) -> None:
    result = project.run(THREE, "quiet.py", stdin=None)
    assert result.code == 0
    assert "Nothing to change" in result.err
    assert "Press enter" not in result.err


def test_failed_host_is_not_asked_about(project: Project) -> None:
    result = project.run("inventory/mixed.py", "deploy.py", stdin="\n", COMMAND="touch made")
    assert result.code == 1
    assert (project.folder / "made").exists()
    assert "continue?" not in result.err
    assert result.err.count("Press enter") == 1
    assert "[dead]" in result.err
    assert "No such private key file: /none" in result.err
    no_traceback(result)


def test_fail_percent_still_ends_the_run(project: Project) -> None:
    result = project.run(THREE, "deploy.py", "-y", "--fail-percent", "10", HOW="failure")
    assert result.code == 1
    assert "Over 10% of hosts failed" in result.err
    assert "Nothing" not in result.err  # the next operation did not start


# --- one host fails, the others go on --------------------------------------------------------


@pytest.mark.parametrize("kind", ["failure", "bug"])
@pytest.mark.parametrize("arguments", [("-y",), ()], ids=["yes", "asked"])
def test_exception_in_deploy(project: Project, kind: str, arguments: tuple[str, ...]) -> None:
    result = project.run(THREE, "deploy.py", *arguments, stdin="\n", RAISE=kind)
    assert result.code == 1
    assert "two stops in deploy.py" in result.err
    assert changed(result) == {"one", "three"}
    assert "Ready: deploy.py" not in [
        line for line in result.err.splitlines() if "@fake/two" in line and "Ready" in line
    ]
    no_traceback(result)


@pytest.mark.parametrize(
    ("how", "sentence", "mode"),
    [
        ("failure", "two is broken, expected whole; repair it", "-y"),
        ("failure", "two is broken, expected whole; repair it", "--no-wait"),
        ("failure", "two is broken, expected whole; repair it", "--serial"),
        ("operation", "two had an operation error (operations/things.py line", "-y"),
        ("bug", "unexpected ValueError: two met a bug (operations/things.py line", "-y"),
        ("function", "two broke inside a function", "-y"),
        ("command", "Error: executed 0 commands", "-y"),
        ("command", "Error: executed 0 commands", "--no-wait"),
    ],
)
def test_exception_while_executing(project: Project, how: str, sentence: str, mode: str) -> None:
    result = project.run(THREE, "deploy.py", "-y", mode, HOW=how, STAGE="execute")
    assert result.code == 1
    assert sentence in result.err
    assert changed(result) >= {"one", "three"}
    no_traceback(result)


def test_exception_while_preparing(project: Project) -> None:
    result = project.run(THREE, "deploy.py", stdin="\n", HOW="operation", STAGE="prepare")
    assert result.code == 1
    assert "two had an operation error" in result.err
    assert changed(result) == {"one", "three"}
    no_traceback(result)


def test_bad_data_of_one_host(project: Project) -> None:
    project.write(
        "group_data/odd.py", '"""One host is odd."""\n\n# Impossible.\nservice_user = "root"\n'
    )
    inventory = (project.folder / THREE).read_text()
    project.write(THREE, inventory + 'odd = ["@fake/two"]\n')
    result = project.run(THREE, "deploy.py", "-y")
    assert result.code == 1
    assert "service_user: found 'root': servers do not run as root" in result.err
    assert changed(result) == {"one", "three"}
    no_traceback(result)


def test_fact_that_fails_is_no_success(project: Project) -> None:
    result = project.run(THREE, "fact", "facts.broken.Broken")
    assert result.code == 1
    assert "no command for two" in result.err
    assert "Loaded fact" in result.err  # of the others
    no_traceback(result)


@pytest.mark.parametrize("arguments", [(), ("-y",), ("--dry",)], ids=["asked", "yes", "dry"])
def test_no_host_left(project: Project, arguments: tuple[str, ...]) -> None:
    result = project.run("inventory/dead.py", "deploy.py", *arguments)
    assert result.code == 1
    assert "No host is left" in result.err
    assert "Press enter" not in result.err
    no_traceback(result)


@pytest.mark.parametrize("arguments", [(), ("-y",)], ids=["plan", "yes"])
def test_json_without_a_host_left(project: Project, arguments: tuple[str, ...]) -> None:
    result = project.run("inventory/dead.py", "deploy.py", "--json", *arguments)
    assert result.code == 1
    document = json.loads(result.out)
    assert document["plan"] == []
    if arguments:
        assert document["results"]["failed_hosts"] == ["dead"]


def test_interrupted(project: Project) -> None:
    result = project.interrupted(
        "begun", "inventory/here.py", "deploy.py", "-y", COMMAND="touch begun; sleep 5"
    )
    assert result.code == 130
    assert "run again to finish it" in result.err
    no_traceback(result)


# --- hosts to work on ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["inventory/thre.py"],
            "inventory/thre.py: no such file; did you mean inventory/three.py?",
        ),
        (["elsewhere/x"], "inventory elsewhere/x: no such file"),
        (["inventory"], "inventory inventory: is a folder"),
        (["host.invalid"], "is neither an inventory file nor a host name that resolves"),
        (["inventory/empty.py"], "inventory/empty.py: names no host"),
        (["inventory/syntax.py"], "inventory/syntax.py:2: is no valid Python"),
        (
            ["inventory/raises.py"],
            "inventory/raises.py:2: NameError: name 'nowhere' is not defined",
        ),
        ([THREE, "--limit", "@fake/onee"], "--limit @fake/onee: matches no host and no group"),
        ([THREE, "--limit", "@fake/one", "--limit", "hots"], "did you mean hosts?"),
        ([THREE, "--exclude", "twoo"], "--exclude twoo: matches no host and no group"),
        ([THREE, "--exclude", "hosts"], "--limit and --exclude leave no host"),
    ],
)
def test_nobody_to_work_on(project: Project, arguments: list[str], sentence: str) -> None:
    project.write("inventory/empty.py", "hosts = []\n")
    project.write("inventory/syntax.py", "\nhosts = [\n")
    project.write("inventory/raises.py", "\nhosts = [nowhere]\n")
    result = project.run(*arguments, "deploy.py", "-y")
    assert result.code == 2, result.all
    assert sentence in result.err
    assert "Connecting" not in result.err
    no_traceback(result)


def test_hosts_that_do_not_resolve(project: Project) -> None:
    result = project.run("a.invalid,b.invalid", "deploy.py", "-y")
    assert result.code == 1
    assert "[a.invalid] Could not resolve hostname" in result.err


def test_limit_to_a_group_and_a_pattern(project: Project) -> None:
    result = project.run(THREE, "deploy.py", "-y", "--limit", "@fake/t*")
    assert result.code == 0, result.all
    assert "[@fake/two]" in result.err
    assert "[@fake/one]" not in result.err


# --- data ------------------------------------------------------------------------------------


def test_every_problem_before_connecting(project: Project) -> None:
    project.write(
        "group_data/lab.py",
        '"""Bad."""\n\nprobe_timout_s = 3\nlease_policy = "maybe"\n'
        'instances = {\n    "a": {\n        "model": "m",\n        "port": "8080",\n    },\n}\n',
    )
    project.write("inventory/group_data/hosts.py", "x = 1\n")
    project.write("group_data/syntax.py", "a = (\n")
    result = project.run("inventory/here.py", "deploy.py", "-y", COMMAND="touch made")
    assert result.code == 2
    for sentence in (
        "group_data/lab.py:3: probe_timout_s = 3: no such variable, did you mean probe_timeout_s?",
        "group_data/lab.py:4: lease_policy: found 'maybe', expected 'refuse' or 'wait'",
        "group_data/lab.py:8: instances.a.port: found '8080', expected a whole number from 1 to",
        "group_data/syntax.py:1: is no valid Python",
        "inventory/group_data/hosts.py:1: x = 1: no such variable",
        "5 problems in the data: nothing was connected to",
    ):
        assert sentence in result.err, result.err
    assert "Connecting" not in result.err
    assert not (project.folder / "made").exists()
    no_traceback(result)


def test_inventory_data_and_data_option(project: Project) -> None:
    project.write(
        "inventory/typo.py",
        'hosts = [\n    ("@fake/one", {"ssh_usr": "me"}),\n]\n'
        'more = (["@fake/one"], {"packges": []})\n',
    )
    result = project.run("inventory/typo.py", "deploy.py", "-y", "--data", "lease_wait_s=soon")
    assert result.code == 2
    for sentence in (
        "inventory/typo.py:2: host @fake/one: ssh_usr = 'me': no such variable, did you mean",
        "inventory/typo.py:4: group more: packges = a list of 0: no such variable, did",
        "--data lease_wait_s: found 'soon', expected a whole number of at least 0",
    ):
        assert sentence in result.err, result.err
    assert "Connecting" not in result.err


# --- the rest --------------------------------------------------------------------------------


def test_one_off_fix_finds_our_operations_and_data(project: Project) -> None:
    result = project.run(
        "inventory/here.py", "--limit", "@local", "operations.things.run", "how=show", "-y"
    )
    assert result.code == 0, result.all
    assert (project.folder / "shown").read_text() == "timeout=20\n"


def test_callbacks_tell_of_changes_and_ends_once(project: Project) -> None:
    result = project.run(THREE, "deploy.py", "-y", HOW="command")
    lines = [line for line in result.out.splitlines() if line.startswith(("changed", "ended"))]
    # "Things" ran a command on each host, also where it failed; "Nothing" ran none.
    assert sorted(lines) == sorted(
        [
            f"{word} @fake/{name}"
            for word in ("changed", "ended")
            for name in ("one", "two", "three")
        ]
    )
