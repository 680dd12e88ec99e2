"""Tiny GGUF models made from a seed: decoders with a byte-level BPE tokenizer, and BERT encoders of any weights.

The keys and tensor names are those of the published GGUF format and of llama.cpp's architectures; a decoder's
tokenizer.json has the same tokens at the same ids as its GGUF file.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synapse_host.testing.models.gguf_file import Float32, write_gguf

END_OF_TEXT = "<|endoftext|>"
_WORDS = ("th", "the", "an", "and", "in", "ing", "er", "on", "re")
_NORMAL, _CONTROL = 1, 3
#: Kind of an architecture's extra tensors in a block -> what they are.
_BIASED = frozenset({"qwen2"})
_NORMED_HEADS = frozenset({"qwen3", "gemma3"})
_NORMED_TWICE = frozenset({"gemma3"})


@dataclass(frozen=True, slots=True)
class TinyDecoder:
    """Sizes of a tiny decoder; every seed and size gives another model.

    ``end`` is the id that ends a text; without one it is the end-of-text token, which is the last of the vocabulary.
    """

    seed: int
    architecture: str = "llama"
    hidden: int = 32
    layers: int = 2
    heads: int = 4
    groups: int = 2
    intermediate: int = 48
    positions: int = 256
    end: int | None = None

    @property
    def tokens(self) -> list[str]:
        """The vocabulary, a token's place its id."""
        return [*_byte_letters(), *_WORDS, END_OF_TEXT]

    def values(self) -> dict[str, Any]:
        """The key-value pairs of its file."""
        name, tokens = self.architecture, self.tokens
        head = self.hidden // self.heads
        values = {
            "general.architecture": name,
            "general.name": f"tiny {name} {self.seed}",
            f"{name}.context_length": self.positions,
            f"{name}.embedding_length": self.hidden,
            f"{name}.block_count": self.layers,
            f"{name}.feed_forward_length": self.intermediate,
            f"{name}.attention.head_count": self.heads,
            f"{name}.attention.head_count_kv": self.groups,
            f"{name}.attention.layer_norm_rms_epsilon": 1e-6,
            f"{name}.attention.key_length": head,
            f"{name}.attention.value_length": head,
            f"{name}.rope.freq_base": 10000.0,
            f"{name}.rope.dimension_count": head,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [_NORMAL] * (len(tokens) - 1) + [_CONTROL],
            "tokenizer.ggml.merges": [f"{a} {b}" for a, b in _merges()],
            "tokenizer.ggml.eos_token_id": len(tokens) - 1 if self.end is None else self.end,
            "tokenizer.ggml.add_bos_token": False,
        }
        if name == "gemma3":
            values["gemma3.attention.sliding_window"] = 64
        return values

    def tensors(self) -> dict[str, Float32]:
        """Its weights."""
        rng = np.random.default_rng(self.seed)
        return {name: _filled(rng, name, shape) for name, shape in self._shapes()}

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        c, head = self.hidden, self.hidden // self.heads
        yield "token_embd.weight", (len(self.tokens), c)
        yield "output_norm.weight", (c,)
        for i in range(self.layers):
            yield from ((f"blk.{i}.{name}", shape) for name, shape in self._block(c, head, self.groups * head))

    def _block(self, c: int, head: int, narrow: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        name = self.architecture
        yield "attn_norm.weight", (c,)
        for part, rows in (("q", c), ("k", narrow), ("v", narrow)):
            yield f"attn_{part}.weight", (rows, c)
            if name in _BIASED:
                yield f"attn_{part}.bias", (rows,)
        yield "attn_output.weight", (c, c)
        if name in _NORMED_HEADS:
            yield "attn_q_norm.weight", (head,)
            yield "attn_k_norm.weight", (head,)
        if name in _NORMED_TWICE:
            yield "post_attention_norm.weight", (c,)
            yield "post_ffw_norm.weight", (c,)
        yield "ffn_norm.weight", (c,)
        yield "ffn_gate.weight", (self.intermediate, c)
        yield "ffn_up.weight", (self.intermediate, c)
        yield "ffn_down.weight", (c, self.intermediate)


def write_tiny_decoder(directory: Path, model: TinyDecoder) -> None:
    """Write model.gguf and tokenizer.json into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    write_gguf(directory / "model.gguf", model.values(), model.tensors())
    (directory / "tokenizer.json").write_text(json.dumps(decoder_tokenizer(model.tokens)), encoding="utf-8")


def decoder_tokenizer(tokens: Sequence[str]) -> dict[str, Any]:
    """The byte-level BPE tokenizer.json of a tiny decoder; it adds no special tokens."""
    end = len(tokens) - 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": end, "content": tokens[end], **flags}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: place for place, token in enumerate(tokens)},
            "merges": [list(pair) for pair in _merges()],
        },
    }


def write_bert_gguf(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Float32],
    tokens: Sequence[str],
    *,
    classifier: tuple[Float32, Float32] | None = None,
    halved: bool = False,
) -> None:
    """Write a BERT checkpoint as GGUF; ``tensors`` by the names of published checkpoints, ``tokens`` its WordPieces.

    ``classifier`` is the weight [outputs, hidden] and bias [outputs] that make it a reranker.
    """
    named = {_bert_name(name): tensor for name, tensor in tensors.items() if "pooler" not in name}
    # One row a token type; the table is read as a matrix, and as a vector it would be refused.
    values = _bert_values(config, tokens)
    if classifier is not None:
        named["cls.output.weight"], named["cls.output.bias"] = classifier
    write_gguf(path, values, named, halved=halved)


def _bert_values(config: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    places = {token: place for place, token in enumerate(tokens)}
    special = [token.startswith("[") and token.endswith("]") and len(token) > 2 for token in tokens]
    return {
        "general.architecture": "bert",
        "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"],
        "bert.block_count": config["num_hidden_layers"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": float(config["layer_norm_eps"]),
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": [_word_piece(token, kept) for token, kept in zip(tokens, special, strict=True)],
        "tokenizer.ggml.token_type": [_CONTROL if kept else _NORMAL for kept in special],
        "tokenizer.ggml.bos_token_id": places["[CLS]"],
        "tokenizer.ggml.seperator_token_id": places["[SEP]"],
        "tokenizer.ggml.padding_token_id": places["[PAD]"],
        "tokenizer.ggml.unknown_token_id": places["[UNK]"],
    }


def _word_piece(token: str, special: bool) -> str:
    """GGUF marks the start of a word where WordPiece marks the rest of one."""
    if special:
        return token
    return token.removeprefix("##") if token.startswith("##") else f"\u2581{token}"


_BERT_NAMES = (
    ("embeddings.word_embeddings.", "token_embd."),
    ("embeddings.position_embeddings.", "position_embd."),
    ("embeddings.token_type_embeddings.", "token_types."),
    ("embeddings.LayerNorm.", "token_embd_norm."),
    ("encoder.layer.", "blk."),
    ("attention.self.query.", "attn_q."),
    ("attention.self.key.", "attn_k."),
    ("attention.self.value.", "attn_v."),
    ("attention.output.dense.", "attn_output."),
    ("attention.output.LayerNorm.", "attn_output_norm."),
    ("intermediate.dense.", "ffn_up."),
    ("output.dense.", "ffn_down."),
    ("output.LayerNorm.", "layer_output_norm."),
)


def _bert_name(name: str) -> str:
    for published, ours in _BERT_NAMES:
        name = name.replace(published, ours)
    return name


def _byte_letters() -> list[str]:
    """The letter of each byte in byte-level BPE: printable ones stand for themselves, the rest for letters from 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


def _merges() -> list[tuple[str, str]]:
    """A merge for each word of more letters than one, from parts that are tokens before it."""
    return [(word[:-1], word[-1]) for word in _WORDS]


def _filled(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Float32:
    noise = rng.standard_normal(shape).astype(np.float32)
    if "norm" in name:
        return np.float32(1) + np.float32(0.2) * noise
    if name == "token_embd.weight" or len(shape) == 1:
        return noise
    return np.float32(2.0 / math.sqrt(shape[-1])) * noise


if __name__ == "__main__":
    write_tiny_decoder(Path(sys.argv[1]), TinyDecoder(seed=1))
