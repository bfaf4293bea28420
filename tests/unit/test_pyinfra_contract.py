"""What this project uses of pyinfra's inside, and which of its habits it changes.

When this file fails after an upgrade of pyinfra: read the message, look at what became of the
name in pyinfra's new sources, adapt the module it names, and run ``tests/unit/test_cli.py``. The
last part runs pyinfra *without* glue/: a failure there is good news, the module named can go.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rules.foreign import PYINFRA_KEYS
from tests.unit.mini_project import ROOT, Project

# Names and their parameters, None where only the name is used. Who uses it stands beside it.
CALLED: list[tuple[str, list[str] | None, str]] = [
    ("pyinfra_cli.cli:_set_fail_prompts", ["state", "config"], "glue/prompts.py"),
    ("pyinfra_cli.cli:_do_confirm", ["msg"], "glue/prompts.py"),
    (
        "pyinfra_cli.cli:make_inventory",
        ["inventory", "override_data", "cwd", "group_data_directories"],
        "glue/targets.py",
    ),
    (
        "pyinfra_cli.cli:_get_inventory_pattern_matches",
        ["inventory", "patterns", "option_name"],
        "glue/targets.py",
    ),
    (
        "pyinfra_cli.cli:_apply_inventory_exclude",
        ["inventory", "initial_limit", "exclude"],
        "glue/targets.py",
    ),
    ("pyinfra_cli.cli:get_facts", ["state", "args", "kwargs"], "glue/hosts.py"),
    (
        "pyinfra_cli.util:_parallel_load_hosts",
        ["state", "callback", "name"],
        "glue/hosts.py",
    ),
    ("pyinfra_cli.exceptions:UnexpectedExternalError", ["e", "filename"], "glue/hosts.py"),
    (
        "pyinfra.api.facts:get_fact",
        ["state", "host", "cls", "args", "kwargs", "ensure_hosts", "apply_failed_hosts"],
        "glue/hosts.py",
    ),
    ("pyinfra.api.operations:_run_host_op", ["state", "host", "op_hash"], "glue/hosts.py"),
    ("pyinfra.api.operations:_run_single_op", ["state", "op_hash"], "glue/hosts.py"),
    ("pyinfra.api.operations:_run_host_ops", ["state", "host", "progress"], "glue/endings.py"),
    ("pyinfra.api.inventory:Inventory.get_active_hosts", ["self"], "glue/order.py"),
    (
        "pyinfra.api.command:FunctionCommand.execute",
        ["self", "state", "host", "connector_arguments"],
        "glue/hosts.py",
    ),
    (
        "pyinfra.api.state:State.fail_hosts",
        ["self", "hosts_to_fail", "activated_count"],
        "glue/hosts.py",
    ),
    ("pyinfra.api.state:State.add_callback_handler", ["self", "handler"], "glue/callbacks.py"),
    (
        "pyinfra.api.state:BaseStateCallback.host_disconnect",
        ["state", "host"],
        "glue/callbacks.py",
    ),
    (
        "pyinfra.api.operation:OperationMeta.set_complete",
        ["self", "success", "commands", "combined_output", "retry_attempts", "max_retries"],
        "glue/hosts.py",
    ),
    ("pyinfra.api.operation:OperationMeta.is_complete", ["self"], "glue/hosts.py"),
    ("pyinfra.connectors.ssh:SSHConnector.connect", ["self"], "glue/connections.py"),
    ("pyinfra.connectors.util:CommandOutput", None, "glue/hosts.py"),
    (
        "pyinfra.api.host:Host.log_styled",
        ["self", "message", "log_func", "kwargs"],
        "glue/hosts.py",
    ),
    ("pyinfra.api.host:HostData.dict", ["self"], "deploy.py"),
    (
        "pyinfra.connectors.util:make_unix_command_for_host",
        ["state", "host", "command", "command_arguments"],
        "facts/remote.py",
    ),
    ("pyinfra.connectors.util:extract_control_arguments", ["arguments"], "facts/remote.py"),
    (
        "pyinfra.api.arguments:pop_global_arguments",
        ["state", "host", "kwargs"],
        "facts/remote.py",
    ),
    ("pyinfra.api.arguments:CONNECTOR_ARGUMENT_KEYS", None, "facts/remote.py"),
    ("paramiko:Transport.__init__", None, "glue/transport.py"),
]

ASK = """
import inspect, json, socket, sys
import pyinfra_cli  # patches the standard library for gevent, as the command line does
import importlib
from pyinfra.api import Config, Inventory, State
from pyinfra.api.arguments import all_argument_meta
from pyinfra.api.config import config_defaults
from pyinfra.api.connectors import get_all_connectors
from pyinfra.api.operation import OperationMeta
from pyinfra.connectors.util import make_unix_command_for_host
from pyinfra.context import ctx_state, state
from pyinfra.version import __version__
from pyinfra_cli.cli import cli
import paramiko

found = {}
for name in json.load(sys.stdin):
    module, _, path = name.partition(":")
    try:
        thing = importlib.import_module(module)
        for part in path.split("."):
            thing = getattr(thing, part)
    except (ImportError, AttributeError):
        found[name] = None
        continue
    found[name] = list(inspect.signature(thing).parameters) if callable(thing) else []

inventory = Inventory((["a"], {}))
made = State(inventory, Config())
ctx_state.set(made)
host = inventory.get_host("a")
sudo = make_unix_command_for_host(
    made, host, "true", _sudo=True, _shell_executable="sh"
).get_raw_value()


def delay(transport):
    listener = socket.create_server(("127.0.0.1", 0))
    sock = socket.create_connection(listener.getsockname())
    transport(sock)
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


before = delay(paramiko.Transport)
from glue import transport
transport.apply()
transport.apply()
json.dump({
    "found": found,
    "version": __version__,
    "data_keys": sorted(
        {key for key in all_argument_meta if key.startswith("_")}
        | {key for connector in get_all_connectors().values() for key in connector.data_meta}
    ),
    "config": sorted(config_defaults),
    "parameters": sorted(parameter.name for parameter in cli.params),
    "state": sorted(set(vars(made)) | {key for key in dir(made) if not key.startswith("__")}),
    "host": sorted(set(vars(host)) | set(dir(host))),
    "operation_meta": sorted(dir(OperationMeta("x", True))),
    "stage_before_execute": made.current_stage < 4,
    "proxied": state._get_module() is made,
    "sudo": sudo,
    "nodelay": [before, delay(paramiko.Transport)],
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What this pyinfra has, told by a process of its own: it patches the standard library."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([name for name, _, _ in CALLED]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"pyinfra moved something that is imported here: {done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("name", "parameters", "user"), CALLED, ids=[name for name, _, _ in CALLED]
)
def test_names(seen: dict[str, Any], name: str, parameters: list[str] | None, user: str) -> None:
    there = seen["found"][name]
    assert there is not None, f"{name} is gone: find what does its job now and adapt {user}"
    if parameters is not None:
        assert there == parameters, f"{name} is called differently now: adapt {user}"


def test_version_is_the_same_everywhere(seen: dict[str, Any]) -> None:
    pinned = re.search(r'"pyinfra==([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    wanted = re.search(r'REQUIRE_PYINFRA_VERSION = "==([0-9.]+)"', (ROOT / "config.py").read_text())
    assert pinned and wanted
    message = "upgrade: set pyproject.toml and config.py, and go through the rest of this file"
    assert pinned[1] == wanted[1] == seen["version"], message


def test_data_keys(seen: dict[str, Any]) -> None:
    assert set(seen["data_keys"]) == PYINFRA_KEYS, "adapt rules/foreign.py to pyinfra's data keys"


def test_settings(seen: dict[str, Any]) -> None:
    used = {"REQUIRE_PYINFRA_VERSION", "CONNECT_TIMEOUT", "FAIL_PERCENT", "DIFF"}
    assert used <= set(seen["config"]), "a setting is gone: adapt config.py and glue/prompts.py"


def test_command_line_parameters(seen: dict[str, Any]) -> None:
    used = {"inventory", "group_data"}
    assert used <= set(seen["parameters"]), "adapt what config.py asks of glue.run.asked"


def test_state(seen: dict[str, Any]) -> None:
    used = {
        "active_hosts",
        "callback_handlers",
        "current_stage",
        "failed_hosts",
        "get_op_data_for_host",
        "get_results_for_host",
        "initialised",
        "is_executing",
        "ops",
        "pool",
        "trigger_callbacks",
    }
    assert used <= set(seen["state"]), (
        "State lost something: adapt glue/ and operations/converge.py"
    )
    assert seen["proxied"], "pyinfra.state is no proxy with _get_module now: adapt glue/run.py"


def test_host(seen: dict[str, Any]) -> None:
    used = {"connector", "connector_data", "current_op_global_arguments", "noop", "print_prefix"}
    assert used <= set(seen["host"]), "Host lost something: adapt glue/, facts/ and operations/"


def test_operation_meta(seen: dict[str, Any]) -> None:
    message = "adapt glue/prompts.py (_maybe_is_change) and glue/hosts.py (_commands)"
    assert {"_maybe_is_change", "_commands"} <= set(seen["operation_meta"]), message


def test_sudo_command(seen: dict[str, Any]) -> None:
    message = "pyinfra builds its sudo command differently: adapt facts/remote.py, which edits it"
    assert seen["sudo"].startswith("sudo -H -n sh -c "), message


def test_nagle(seen: dict[str, Any]) -> None:
    before, after = seen["nodelay"]
    assert after, "glue/transport.py no longer sets TCP_NODELAY: find where paramiko has its socket"
    assert not before, "paramiko sets TCP_NODELAY itself now: remove glue/transport.py"


@pytest.mark.parametrize(
    "name", ["config", "facts", "files", "glue", "group_data", "operations", "rules"]
)
def test_no_installed_package_hides_ours(name: str) -> None:
    """pyinfra puts the working folder last on sys.path."""
    ask = (
        "import importlib.util, sys; sys.path = [p for p in sys.path if p]; "
        f"found = importlib.util.find_spec({name!r}); "
        "print(found and (found.origin or list(found.submodule_search_locations)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", ask], capture_output=True, text=True, cwd="/", timeout=60
    )
    assert done.stdout.strip() == "None", f"{name} of {done.stdout} is found before this project's"


# --- pyinfra's habits, without glue/ -----------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path) -> Project:
    project = Project(tmp_path, glued=False)
    project.write(
        "deploy.py",
        "import os\nfrom operations import things\n"
        'things.run(name="Things", how=os.environ.get("HOW"))\n',
    )
    return project


GONE = "pyinfra lost this habit: remove it from {} and here"


def test_habit_missing_inventory(bare: Project) -> None:
    result = bare.run("inventory/none.py", "deploy.py", "-y")
    assert result.code == 0, GONE.format("glue/targets.py")


def test_habit_limit_without_match(bare: Project) -> None:
    result = bare.run("inventory/three.py", "deploy.py", "-y", "--limit", "nobody")
    assert result.code == 0, GONE.format("glue/targets.py")


def test_habit_closed_input(bare: Project) -> None:
    result = bare.run("inventory/three.py", "deploy.py")
    assert "EOFError" in result.err, GONE.format("glue/prompts.py")


def test_habit_declined(bare: Project) -> None:
    result = bare.run("inventory/three.py", "deploy.py", stdin="n\n")
    assert result.code == 0, GONE.format("glue/prompts.py")


def test_habit_first_failed_host(bare: Project) -> None:
    result = bare.run("inventory/mixed.py", "deploy.py", "--exclude", "keyless", stdin="\n\n")
    assert "failed to connect, continue?" in result.err, GONE.format("glue/prompts.py")


def test_habit_one_exception_ends_all(bare: Project) -> None:
    result = bare.run("inventory/three.py", "deploy.py", "-y", HOW="operation")
    assert "Results" not in result.err, GONE.format("glue/hosts.py")


def test_habit_no_wait(bare: Project) -> None:
    result = bare.run("inventory/three.py", "deploy.py", "-y", "--no-wait", HOW="command")
    assert result.code == 0, GONE.format("glue/endings.py")


def test_habit_json_without_hosts(bare: Project) -> None:
    result = bare.run("inventory/dead.py", "deploy.py", "-y", "--json")
    assert result.out == "", GONE.format("glue/hosts.py")
