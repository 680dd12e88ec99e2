"""What host and worker must know of a model in a GGUF file: its architecture and the sizes it is bound by. Pure.

The sizes are held against each other where a file that contradicts itself would make the engine end its process.
Source of the key names: the published GGUF format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from synapse_host.model_files.gguf_cursor import GgufFault
from synapse_host.model_files.gguf_header import ArrayOf, GgufHeader, read_gguf_header

MODEL_FORMAT = "gguf"
#: Largest size a header may state: token ids and positions travel as 32-bit integers.
MAX_SIZE = 2**31 - 1
#: Most blocks the engine has room for.
MAX_BLOCKS = 512
_EMBEDDING_TABLE = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class GgufModel:
    """One model: ``context_length`` tokens are the most it was made for, ``vocab_size`` rows its embedding has."""

    architecture: str
    context_length: int
    embedding_length: int
    block_count: int
    vocab_size: int
    tensor_names: frozenset[str]


def read_gguf_model(fd: int, size: int) -> GgufModel:
    """The model in an open GGUF file of ``size`` bytes.

    Raises:
        GgufFault: the file is not whole, contradicts itself, or is a part of a split model.
        OSError: the descriptor cannot be read.

    """
    return gguf_model(read_gguf_header(fd, size))


def gguf_model(header: GgufHeader) -> GgufModel:
    """The model a header describes; raises ``GgufFault``."""
    values = header.values
    architecture = values.get("general.architecture")
    if not isinstance(architecture, str) or not architecture.isascii() or not 0 < len(architecture) <= 64:
        _fault(f"general.architecture is {architecture!r:.80}, which is no name of an architecture")
    if values.get("split.count", 0):
        _fault("the file is one part of a split model; join the parts into one file")
    model = GgufModel(
        architecture=architecture,
        context_length=_size(values, f"{architecture}.context_length"),
        embedding_length=_size(values, f"{architecture}.embedding_length"),
        block_count=_size(values, f"{architecture}.block_count", MAX_BLOCKS),
        vocab_size=_vocabulary(values),
        tensor_names=frozenset(header.tensors),
    )
    _check_heads(values, model)
    _check_embedding(header, model)
    return model


def _fault(message: str) -> NoReturn:
    raise GgufFault(f"{message}; use the file published with the model")


def _size(values: Mapping[str, Any], key: str, most: int = MAX_SIZE) -> int:
    value = values.get(key)
    if type(value) is not int or not 1 <= value <= most:
        _fault(f"{key} is {value!r:.80}, which must be an integer from 1 to {most}")
    return value


def _vocabulary(values: Mapping[str, Any]) -> int:
    kind, tokens = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.tokens")
    if not isinstance(kind, str) or kind in ("", "none", "no_vocab"):
        _fault(f"tokenizer.ggml.model is {kind!r:.80}, so the file has no vocabulary")
    if not isinstance(tokens, ArrayOf) or not 0 < len(tokens.items) <= MAX_SIZE:
        _fault("tokenizer.ggml.tokens is no list of strings with at least one in it")
    # The engine asserts that no two tokens are spelled alike.
    spellings = {_spelling(place, token) for place, token in enumerate(tokens.items)}
    if len(spellings) != tokens.count:
        _fault(f"tokenizer.ggml.tokens has {tokens.count - len(spellings)} tokens twice")
    return tokens.count


def _spelling(place: int, token: bytes) -> bytes:
    """A token as the engine reads it: up to a NUL, and an empty one under a name of its own."""
    return token.split(b"\0", 1)[0] or b"[EMPTY_%d]" % place


def _check_heads(values: Mapping[str, Any], model: GgufModel) -> None:
    """Sizes the engine divides by. A list, one number a block, is left to the engine's own reading."""
    prefix = f"{model.architecture}.attention."
    for key in (f"{prefix}head_count", f"{prefix}head_count_kv"):
        if key in values and not isinstance(values[key], ArrayOf):
            _size(values, key, model.embedding_length)
    heads, groups = values.get(f"{prefix}head_count"), values.get(f"{prefix}head_count_kv")
    if type(heads) is int and type(groups) is int and heads % groups:
        _fault(f"{prefix}head_count is {heads}, no multiple of head_count_kv, {groups}")
    for key in ("key_length", "value_length"):
        if prefix + key in values:
            _size(values, prefix + key, model.embedding_length * 64)


def _check_embedding(header: GgufHeader, model: GgufModel) -> None:
    table = header.tensors.get(_EMBEDDING_TABLE)
    wanted = (model.embedding_length, model.vocab_size)
    if table is None or table.dims != wanted:
        dims = None if table is None else list(table.dims)
        _fault(f"tensor {_EMBEDDING_TABLE!r} has dimensions {dims}; the header's sizes make it {list(wanted)}")
