"""The simulated lab: what differs there from a real one. No GPU, two cores, a tiny model.

`model_hub_url` is not here: inventory/sandbox.py gives it as host data, since only the lab knows
where its hub listens. `{model_hub_url}` in a URL below stands for it.
"""

# llama.cpp at the commit of group_data/llama_cpp.py, as the lab's hub serves it: no internet there.
# The sha256 is that of sandbox/sources.py (G9).
llama_cpp_source = {
    "kind": "archive",
    "url": "{model_hub_url}/files/llama.cpp-0c1e57098.tar.gz",
    "sha256": "867e329a096a15879053003bb02f4e8de406ff70ce9b57b4e18e9b7eedbf1334",
}

# A small build for the CPU: no GPU here, and minutes instead of an hour (G9).
llama_cpp_options = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "OFF",
    "GGML_OPENMP": "OFF",
    "GGML_CCACHE": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}

# The server alone (G9).
llama_cpp_targets = ["llama-server"]

# The one parameter here that a simulated host may set: its network namespace is its own.
sysctl = {
    "net.core.somaxconn": 8192,  # pending connections
}

# The simulated hosts' model disk is a file system of its own, as on real hosts.
model_root = "/srv/models"

# The tiny model with random weights that llama-server really runs: sandbox/tiny_model.py, seed 0
# (G11).
models = {
    "tiny": {
        "source": "hub",
        "repository": "voltfleet/tiny",
        "revision": "main",
        "format": "gguf",
        "files": [
            {
                "path": "tiny.gguf",
                "size": 546432,  # bytes
                "sha256": "d9a2bf63f5324b36e410c56070fe7e12f2e4407d197a2a0b75cd214689112374",
            },
        ],
        "profile": "upstream",
        "architecture": "llama",
    },
}

# One server for everybody on the lab's network, so it wants a key (G13). The sandbox makes the key;
# its folder is `secrets_folder`, which the inventory gives.
instances = {
    "tiny": {
        "model": "tiny",
        "host": "0.0.0.0",  # noqa: S104  it wants a key
        "port": 8080,
        "api_key_file": "api_key",
        "ctx_size": 1024,  # tokens, shared by the slots
        "slots": 2,
        "gpu_layers": 0,  # layers
        "threads": 1,
        "start_timeout_s": 60,  # seconds
    },
}
