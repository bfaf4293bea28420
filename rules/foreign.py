"""Keys of host data that are pyinfra's, not ours: connector settings and operation arguments.

Listed here because rules/ does not import pyinfra; the contract test holds the list equal to
what the pinned pyinfra accepts.
"""

from __future__ import annotations

# "name" is an operation argument too, but as data it would name every operation alike.
ARGUMENTS = frozenset(
    [
        "_sudo",
        "_sudo_user",
        "_use_sudo_login",
        "_sudo_password",
        "_preserve_sudo_env",
        "_su_user",
        "_use_su_login",
        "_preserve_su_env",
        "_su_shell",
        "_su_password",
        "_doas",
        "_doas_user",
        "_dzdo",
        "_dzdo_user",
        "_shell_executable",
        "_chdir",
        "_env",
        "_success_exit_codes",
        "_timeout",
        "_get_pty",
        "_stdin",
        "_retries",
        "_retry_delay",
        "_retry_until",
        "_temp_dir",
        "_ignore_errors",
        "_continue_on_error",
        "_if",
        "_parallel",
        "_run_once",
        "_serial",
    ]
)
SSH = frozenset(
    [
        "ssh_hostname",
        "ssh_port",
        "ssh_user",
        "ssh_password",
        "ssh_key",
        "ssh_key_password",
        "ssh_allow_agent",
        "ssh_look_for_keys",
        "ssh_forward_agent",
        "ssh_config_file",
        "ssh_known_hosts_file",
        "ssh_strict_host_key_checking",
        "ssh_paramiko_connect_kwargs",
        "ssh_connect_retries",
        "ssh_connect_retry_min_delay",
        "ssh_connect_retry_max_delay",
        "ssh_file_transfer_protocol",
    ]
)
OTHER_CONNECTORS = frozenset(
    [
        "docker_architecture",
        "docker_identifier",
        "docker_platform",
        "fake_delay",
        "fake_delay_jitter",
        "fake_responses",
    ]
)
PYINFRA_KEYS = ARGUMENTS | SSH | OTHER_CONNECTORS
