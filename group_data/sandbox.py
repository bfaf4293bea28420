"""The simulated lab: what differs there from a real one. No GPU, two cores, a tiny model.

`model_hub_url` is not here: inventory/sandbox.py gives it as host data, since only the lab knows
where its hub listens. `{model_hub_url}` in a URL below stands for it.
"""

# PLACEHOLDER until the sandbox's hub serves the sources: the archive's sha256 (G9).
llama_cpp_source = {
    "kind": "archive",
    "url": "{model_hub_url}/sources/llama.cpp.tar.gz",
    "sha256": "0000000000000000000000000000000000000000000000000000000000000000",
}

# PLACEHOLDER, a small build for the CPU: no GPU here, and minutes instead of an hour (G9).
llama_cpp_options = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "OFF",
    "GGML_CUDA": "OFF",
    "LLAMA_CURL": "OFF",
}

# The server alone (G9).
llama_cpp_targets = ["llama-server"]

# The simulated hosts' model disk is a file system of its own, as on real hosts.
model_root = "/srv/models"

# PLACEHOLDER: size in bytes and sha256 of the tiny random-weight model that llama-server really
# runs (G11).
models = {
    "tiny": {
        "source": "hub",
        "repository": "voltfleet/tiny",
        "revision": "v1",
        "format": "gguf",
        "files": [
            {
                "path": "tiny.gguf",
                "size": 1,  # bytes
                "sha256": "0000000000000000000000000000000000000000000000000000000000000000",
            },
        ],
        "profile": "upstream",
        "architecture": "llama",
    },
}

# One server on loopback, without a key, as G13 has it for that case.
instances = {
    "tiny": {
        "model": "tiny",
        "port": 8080,
        "ctx_size": 256,  # tokens, shared by the slots
        "slots": 1,
        "gpu_layers": 0,  # layers
        "threads": 1,
        "start_timeout_s": 60,  # seconds
    },
}
