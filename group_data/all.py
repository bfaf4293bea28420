"""What every host is, unless its role (another file here) or its inventory entry says otherwise.

Precedence, highest first: --data, the host's inventory entry, its groups (the last of the inventory
file before the first), this file. A value replaces the whole value: dictionaries are not merged.
Every variable there is stands here with its default; docs/variables.md has their types and limits.
Ids like G13 are rows of the documented state (docs/deviations.md).
"""

# --- the run -----------------------------------------------------------------------------------

# Seconds a probe may take, whatever hangs on the host; what hung is unknown, never absent.
probe_timeout_s = 20

# When another run holds the host: "refuse" at once, or "wait".
lease_policy = "refuse"

# Seconds that "wait" waits.
lease_wait_s = 600

# Seconds to wait for another apt or dpkg; its lock is never removed.
apt_lock_wait_s = 300

# Folder on the controller that paths of secrets start from; relative: in this repository, where
# git ignores it. Make a key: umask 077; openssl rand -hex 32 > .voltfleet/secrets/NAME
secrets_folder = ".voltfleet/secrets"

# Operating systems a run may change, "id version" as in /etc/os-release (G1).
supported_os = ["debian 13", "debian 12", "ubuntu 22.04", "ubuntu 24.04"]

# --- the base system ---------------------------------------------------------------------------

# Distribution packages that must be installed, at any version.
packages = ["ca-certificates", "curl", "pciutils"]

# Kernel parameters: key -> value, now and after a reboot.
sysctl = {}

# Options of kernel modules: module -> option -> value (G3: never NVreg_NvLinkDisable).
kernel_module_options = {}

# System user the servers run as, without a login; the run makes it.
service_user = "voltfleet"

# --- CUDA --------------------------------------------------------------------------------------

# Toolkit to have, like "12.4"; None: this host's CUDA is left alone (G5).
cuda_version = None

# Where it comes from: {"url" or "path" of the vendor's local-repository .deb, "sha256"}, or
# {"kind": "distribution"} for the distribution's own packages (G5).
cuda_source = None

# Packages that are the toolkit; empty: what the source calls it (G5).
cuda_packages = []

# True: this host is ours alone, other toolkits are removed; False: they stay and are reported (G4).
cuda_exclusive = False

# False: the local repository goes after the installation and its disk space is free (G5).
cuda_keep_repository = True

# GPU architectures that nvcc must compile for, as proof (G5, G9).
cuda_architectures = ["sm_70"]

# --- driver ------------------------------------------------------------------------------------

# Where it comes from: {"kind": "toolkit_repository"}, {"kind": "distribution"},
# {"kind": "repository", "url", "keyring"} or a local-repository .deb; None: left alone (G6).
driver_source = None

# Driver branch. 580 is the last for Volta, supported until June 2028 (G6).
driver_branch = 580

# Kernel modules: "proprietary", or "open" for Turing and newer (G6).
driver_flavour = "proprietary"

# Packages that are the driver; empty: what the source calls this branch (G6).
driver_packages = []

# True: every installed package of the driver is held and kept from unattended upgrades (G6).
driver_hold = True

# True: nouveau is kept from binding the cards (G6).
nouveau_blacklist = True

# True: nvidia-persistenced runs (G3, G6).
gpu_persistence = True

# Generation of cards that the built-in table does not know: "10de:1db5" -> "volta" (G6).
gpu_generations = {}

# --- reboots -----------------------------------------------------------------------------------

# True: a run may reboot this host, once, when something needs it. False: it ends as
# REBOOT_REQUIRED with the reasons (G6, G7).
reboot_allowed = False

# Hosts that may reboot at once (G6).
reboot_parallel = 1

# Seconds until a rebooted host must be back; old servers test their memory for minutes.
reboot_timeout_s = 1200

# --- llama.cpp ---------------------------------------------------------------------------------

# Pinned sources; None: this host builds none. group_data/llama_cpp.py has them (G9).
llama_cpp_source = None

# CMake options without -D; one that the sources do not know stops the build (G9).
llama_cpp_options = {}

# Programs to build and install (G9).
llama_cpp_targets = ["llama-server"]

# Folder of the releases and of the link to the one in use.
llama_cpp_root = "/opt/llama.cpp"

# Parallel compiler jobs; 0: as many as cores.
llama_cpp_build_jobs = 0

# --- models ------------------------------------------------------------------------------------

# The model hub, or a mirror of it.
model_hub_url = "https://huggingface.co"

# File on the controller (0600, from secrets_folder) that holds the hub's token, for models that
# are not public (G11); "": none. Hosts keep it in /etc/voltfleet/hub-token, for root alone.
model_hub_token_file = ""

# Folder with a folder per model and revision; best a file system of its own.
model_root = "/srv/voltfleet/models"

# Models this host keeps: name -> source, pinned revision, files with bytes and sha256 (G11, T2).
models = {}

# Metadata a GGUF must have: profile -> key -> value. A model names its profile; its own
# `architecture` goes before the profile's (G11). The agent's command `check` has the same table.
model_profiles = {
    # What public files of the fleet's model have: an architecture that llama.cpp knows.
    "upstream": {
        "general.architecture": "qwen4exp",
    },
    # The guide's own file and its "signature". No public file carries these keys and llama.cpp
    # does not read them: only for those who have that file.
    "guide": {
        "general.architecture": "qwen4exp",
        "qwen.flash_kernel_version": "v3.2.1-v100",
        "qwen.nvlink_optimized": True,
        "qwen.cuda_arch_requirement": 7.0,
    },
}

# True: hash every byte again on this run, not only size and times. A weekly timer does it as well.
models_full_check = False

# --- serving -----------------------------------------------------------------------------------

# Running servers: name -> model, address, port, flags (G13, T10).
instances = {}

# Hosts whose running servers are switched to something new at a time, in the order of the
# inventory; when one fails it is put back, and the hosts not begun stay as they are.
serving_switch_at_once = 1
