"""Writes a tiny model that llama-server really loads and answers from.

Architecture llama, random weights from a fixed seed, byte-level tokenizer included, about half a
megabyte. What it says is noise; that it says something proves server, model file and settings.
The same arguments give the same bytes (with the same version of the gguf package).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import yaml

LAYERS = 2
EMBEDDING = 64
FEED_FORWARD = 176
HEADS = 4
CONTEXT = 2048

BOS, EOS, PAD = "<|begin|>", "<|endoftext|>", "<|pad|>"
# a handful of merges: the tokenizer refuses a model without any
MERGES = ["t h", "th e", "Ġ t", "Ġt h", "i n", "e r", "a n", "o n", "Ġ a", "Ġ s"]

Value = str | int | float | bool | list[str] | list[int]


def byte_alphabet() -> list[str]:
    """GPT-2's printable letter for each of the 256 bytes, in byte order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]


def vocabulary() -> tuple[list[str], list[int]]:
    """Tokens and their types: bytes, merged pieces, control tokens."""
    tokens = [*byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]
    types = [int(gguf.TokenType.NORMAL)] * len(tokens)
    tokens += [BOS, EOS, PAD]
    types += [int(gguf.TokenType.CONTROL)] * 3
    return tokens, types


def write(
    target: Path,
    *,
    seed: int = 0,
    name: str = "Tiny random llama",
    extra: Mapping[str, Value] | None = None,
) -> None:
    """Write the model to a file.

    seed: another seed gives other weights of the same size. extra: metadata keys added as they
    are (text, whole numbers as uint32, floats as float32, booleans, lists of one kind).
    """
    tokens, types = vocabulary()
    writer = gguf.GGUFWriter(str(target), "llama")
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(tokens.index(BOS))
    writer.add_eos_token_id(tokens.index(EOS))
    writer.add_pad_token_id(tokens.index(PAD))
    writer.add_add_bos_token(True)
    for key, value in (extra or {}).items():
        _add(writer, key, value)
    for tensor, values in _tensors(len(tokens), tokens.index(EOS), seed).items():
        writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(vocabulary_size: int, eos: int, seed: int) -> dict[str, np.ndarray]:
    # numpy promises this generator's stream for ever, unlike default_rng's
    random = np.random.RandomState(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        values: np.ndarray = random.standard_normal((rows, columns)) / np.sqrt(columns)
        return values.astype(np.float32)

    found = {"token_embd.weight": matrix(vocabulary_size, EMBEDDING)}
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        found[block + "attn_norm.weight"] = np.ones(EMBEDDING, dtype=np.float32)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            found[f"{block}{part}.weight"] = matrix(EMBEDDING, EMBEDDING)
        found[block + "ffn_norm.weight"] = np.ones(EMBEDDING, dtype=np.float32)
        found[block + "ffn_gate.weight"] = matrix(FEED_FORWARD, EMBEDDING)
        found[block + "ffn_up.weight"] = matrix(FEED_FORWARD, EMBEDDING)
        found[block + "ffn_down.weight"] = matrix(EMBEDDING, FEED_FORWARD)
    found["output_norm.weight"] = np.ones(EMBEDDING, dtype=np.float32)
    output = matrix(vocabulary_size, EMBEDDING) * 4
    # Logits of 0 for all but readable tokens: a greedy answer is plain text and never ends
    # before the asked number of tokens.
    for token, text in enumerate(vocabulary()[0]):
        if token == eos or not text.isascii() or text in (BOS, PAD):
            output[token] = 0
    found["output.weight"] = output
    return found


def _add(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def parse(pairs: list[str]) -> dict[str, Value]:
    """``key=value`` texts as metadata; the value is read as YAML ("7.0" is a float, "'7'" text)."""
    found = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{pair!r} is not key=value")
        found[key] = yaml.safe_load(text)
    return found


def main() -> None:
    """``python -m sandbox.tiny_model FILE``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    write(options.file, seed=options.seed, extra=parse(options.set))


if __name__ == "__main__":
    main()
