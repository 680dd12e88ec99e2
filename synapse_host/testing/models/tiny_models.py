"""Tiny BERT checkpoints made from a seed, complete with config.json and a WordPiece tokenizer.

The numbers come from an integer hash and one multiplication, so a seed gives the same bits on every platform and
numpy version: recorded outputs of other implementations stay valid without storing any weights.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.ops.dtypes import bf16_bits

if TYPE_CHECKING:
    from synapse_host.hookspecs import DType

Float32: TypeAlias = npt.NDArray[np.float32]

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
#: Alphabet of the tiny vocabulary, most useful first: a small one keeps only the front.
_CHARACTERS = "etaoinshrdlucmfwygpbvkqxjz0123456789.,!?'-"
#: Constants of the SplitMix64 generator (Steele, Lea and Flood, OOPSLA 2014).
_GAMMA, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class TinyModel(Protocol):
    """A model made from a seed: its config.json and its weights by their published names."""

    def config(self) -> dict[str, Any]: ...
    def tensors(self) -> dict[str, Float32]: ...


@dataclass(frozen=True, slots=True)
class TinyBert:
    """Sizes of a tiny encoder; every seed and size gives another model."""

    seed: int
    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocab: int
    positions: int
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12

    def config(self) -> dict[str, Any]:
        """Its config.json."""
        return {
            "architectures": ["BertModel"],
            "attention_probs_dropout_prob": 0.0,
            "hidden_act": self.hidden_act,
            "hidden_dropout_prob": 0.0,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "layer_norm_eps": self.layer_norm_eps,
            "max_position_embeddings": self.positions,
            "model_type": "bert",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
            "type_vocab_size": 2,
            "vocab_size": self.vocab,
        }

    def tensors(self) -> dict[str, Float32]:
        """Its weights by the names of published checkpoints."""
        return {name: self._tensor(name, shape) for name, shape in self._shapes()}

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """Large enough everywhere that attention is uneven and each bias and norm shows in the output."""
        noise = uniform_noise(f"{self.seed}/{name}", math.prod(shape)).reshape(shape)
        if name.endswith("LayerNorm.weight"):
            return (1.0 + 0.25 * noise).astype(np.float32)
        if "embeddings" in name or len(shape) == 1:
            return (0.5 * noise).astype(np.float32)
        gain = 3.0 if ".self.query." in name or ".self.key." in name else 1.5
        return (gain / math.sqrt(shape[1]) * noise).astype(np.float32)

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        c, wide = self.hidden, self.intermediate
        yield "embeddings.word_embeddings.weight", (self.vocab, c)
        yield "embeddings.position_embeddings.weight", (self.positions, c)
        yield "embeddings.token_type_embeddings.weight", (2, c)
        yield from _vectors("embeddings.LayerNorm", c)
        for i in range(self.layers):
            layer = f"encoder.layer.{i}"
            for part in ("query", "key", "value"):
                yield from _dense(f"{layer}.attention.self.{part}", c, c)
            yield from _dense(f"{layer}.attention.output.dense", c, c)
            yield from _vectors(f"{layer}.attention.output.LayerNorm", c)
            yield from _dense(f"{layer}.intermediate.dense", wide, c)
            yield from _dense(f"{layer}.output.dense", c, wide)
            yield from _vectors(f"{layer}.output.LayerNorm", c)


#: Encoders whose outputs by transformers are recorded under tests/fixtures: no size is a multiple of a vector
#: register, heads are not hidden / 64, and one uses the tanh form of GELU with a large eps.
TINY_BERTS: Mapping[str, TinyBert] = MappingProxyType(
    {
        "one_layer": TinyBert(11, hidden=36, layers=1, heads=3, intermediate=50, vocab=101, positions=40),
        "two_layers": TinyBert(12, hidden=50, layers=2, heads=5, intermediate=77, vocab=333, positions=131),
        "three_layers": TinyBert(13, hidden=66, layers=3, heads=11, intermediate=130, vocab=517, positions=700),
        "tanh_gelu": TinyBert(14, 28, 2, 7, 45, 259, 300, hidden_act="gelu_new", layer_norm_eps=1e-3),
    }
)


def write_tiny_bert(
    directory: Path,
    *,
    seed: int,
    hidden: int,
    layers: int,
    heads: int,
    intermediate: int,
    vocab: int,
    positions: int,
    dtype: DType = "f32",
) -> dict[str, Any]:
    """Write model.safetensors, config.json and tokenizer.json into ``directory`` and return the config.

    Raises ``ValueError`` when ``vocab`` has no room for the special tokens or ``hidden`` is not shared by ``heads``.
    """
    model = TinyBert(seed, hidden, layers, heads, intermediate, vocab, positions)
    return write_model(directory, model, dtype)


def write_model(
    directory: Path, model: TinyModel, dtype: DType = "f32", tokenizer: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write the three files of ``model``, its weights in ``dtype``, and return the config.

    The tokenizer is ``tiny_tokenizer`` unless another is given.
    """
    config = model.config()
    hidden, heads = config["hidden_size"], config.get("num_attention_heads", 1)
    if hidden % heads:
        raise ValueError(f"hidden size {hidden} cannot be shared by {heads} heads")
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "model.safetensors", model.tensors(), dtype)
    (directory / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    document = tiny_tokenizer(config["vocab_size"]) if tokenizer is None else tokenizer
    (directory / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return config


def write_safetensors(path: Path, tensors: Mapping[str, Float32], dtype: DType = "f32") -> None:
    """Write ``tensors`` as one safetensors file, rounded to ``dtype``."""
    stored = {name: _stored(tensor, dtype) for name, tensor in tensors.items()}
    header: dict[str, Any] = {}
    end = 0
    for name, data in stored.items():
        begin, end = end, end + len(data)
        header[name] = {"dtype": dtype.upper(), "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(stored.values()))


def tiny_tokenizer(vocab: int) -> dict[str, Any]:
    """A lower-casing WordPiece tokenizer.json of exactly ``vocab`` tokens.

    Like some published files it pads and truncates to 128 tokens, which whoever reads it must take away.
    """
    if vocab <= len(_SPECIAL_TOKENS):
        raise ValueError(f"a vocabulary of {vocab} has no room beside the {len(_SPECIAL_TOKENS)} special tokens")
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 128, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 128},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": [_added(i, token) for i, token in enumerate(_SPECIAL_TOKENS)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _post_processor(),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: i for i, token in enumerate(_tokens(vocab))},
        },
    }


def _tokens(vocab: int) -> list[str]:
    """Special tokens, characters alone and within words, then pairs of characters until the size is met."""
    pairs = [a + b for a in _CHARACTERS[:26] for b in _CHARACTERS[:26]]
    pieces = [*_CHARACTERS, *(f"##{c}" for c in _CHARACTERS), *pairs, *(f"##{pair}" for pair in pairs)]
    spare = [f"[unused{i}]" for i in range(max(0, vocab - len(pieces) - len(_SPECIAL_TOKENS)))]
    return [*_SPECIAL_TOKENS, *pieces, *spare][:vocab]


def _added(index: int, token: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": token, **flags}


def _post_processor() -> dict[str, Any]:
    """[CLS] before, [SEP] after each sequence; the second one and its end are of kind 1, as in BERT's files."""
    cls, sep = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("[CLS]", "[SEP]"))
    end = {"SpecialToken": {"id": "[SEP]", "type_id": 1}}
    first, second = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    special = {
        token: {"id": token, "ids": [_SPECIAL_TOKENS.index(token)], "tokens": [token]} for token in ("[CLS]", "[SEP]")
    }
    return {
        "type": "TemplateProcessing",
        "single": [cls, first, sep],
        "pair": [cls, first, sep, second, end],
        "special_tokens": special,
    }


def _dense(name: str, out: int, into: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (out, into)
    yield f"{name}.bias", (out,)


def _vectors(name: str, size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (size,)
    yield f"{name}.bias", (size,)


def _stored(tensor: Float32, dtype: DType) -> bytes:
    if dtype == "bf16":
        return bf16_bits(tensor).astype("<u2").tobytes()
    return tensor.astype("<f2" if dtype == "f16" else "<f4").tobytes()


def uniform_noise(key: str, count: int) -> npt.NDArray[np.float64]:
    """Even numbers in [-1, 1) of 24 bits, the SplitMix64 stream of ``key``."""
    seed = zlib.crc32(key.encode()) | zlib.adler32(key.encode()) << 32
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    bits = (z ^ (z >> np.uint64(31))) >> np.uint64(40)
    return bits.astype(np.float64) / 2.0**23 - 1.0
