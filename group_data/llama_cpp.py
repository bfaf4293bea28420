"""Role llama_cpp: a host that builds llama.cpp for V100 and serves models with it.

Which models and instances is said per site: in a file for a group of your inventory, beside this
one, or in the inventory entry of a host. docs/variables.md has an example.
"""

# llama.cpp b11312 of 2026-10-01; the model's architecture qwen4exp needs pull request 27742 of
# 2026-08-27 or newer (G9). A commit proves itself; a tag or branch may move.
llama_cpp_source = {
    "kind": "git",
    "url": "https://github.com/ggml-org/llama.cpp",
    "commit": "0c1e57098bba43ac29e6e3b677cdceebdd22334f",
}

# For V100 alone: 70-real is machine code for compute capability 7.0, plain 70 would add PTX (G9).
# Needs CUDA 12.4 on the host that builds. The guide's LLAMA_CUDA is an old alias of GGML_CUDA, its
# other five options never existed: docs/deviations.md.
llama_cpp_options = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_CUDA": "ON",
    "CMAKE_CUDA_ARCHITECTURES": "70-real",
    "GGML_NATIVE": "OFF",
}

# llama-cli is for looking at a model by hand (G9; the guide's names main and server are gone).
llama_cpp_targets = ["llama-server", "llama-cli"]
