"""What the stub worker answers: small exact numbers that depend on the tokens of one row alone. Stdlib only.

Tests compute the same with ``stub_vector``, ``stub_score`` and ``stub_tokens``.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable
from typing import Any

_DEFAULT_DIMS = 4
#: Put around the query and after each document when the stub composes a pair.
_SEPARATOR = 2

Answer = tuple[dict[str, Any], "bytes | None"]


class StubRefusal(Exception):
    """Becomes ERR."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class StubModels:
    """What is loaded: model reference -> vector width, and what was compiled since."""

    def __init__(self) -> None:
        self.dims: dict[str, int] = {}
        self.compiled: dict[str, set[int]] = {}
        self._loads = 0

    def add(self, dims: int) -> str:
        """Take a model in; returns its reference."""
        self._loads += 1
        model_ref = f"stub-{self._loads}"
        self.dims[model_ref] = dims
        self.compiled[model_ref] = set()
        return model_ref

    def require(self, request: dict[str, Any]) -> str:
        """The model reference of ``request``; raises ``StubRefusal`` when nothing is loaded under it."""
        model_ref = str(request["model_ref"])
        if model_ref not in self.dims:
            raise StubRefusal("model_not_loaded", f"model_ref {model_ref!r} is not loaded here")
        return model_ref


def stub_vector(tokens: list[int], dims: int) -> list[float]:
    """The vector of one row: small exact fractions, none of them zero."""
    mark = sum((place + 1) * token for place, token in enumerate(tokens)) % 8191
    return [((mark + 31 * axis) % 127 + 1) / 128 for axis in range(dims)]


def stub_pair(query: list[int], document: list[int]) -> list[int]:
    """The sequence the stub composes of a query and a document."""
    return [_SEPARATOR, *query, _SEPARATOR, *document, _SEPARATOR]


def stub_score(tokens: list[int]) -> float:
    """The score of one composed sequence."""
    return stub_vector(tokens, 1)[0] - 0.5


def stub_tokens(prompt: list[int], max_tokens: int) -> list[int]:
    """What the stub generates after ``prompt``: at most five tokens."""
    return [(sum(prompt) + place) % 1000 for place in range(min(max_tokens, 5))]


def load(models: StubModels, request: dict[str, Any], raw: bytes) -> Answer:
    """LOADED."""
    model_ref = models.add(int(request["runtime_config"].get("dims", _DEFAULT_DIMS)))
    return {"type": "LOADED", "model_ref": model_ref, "dims": models.dims[model_ref], "cold_load_ms": 0}, None


def embed(models: StubModels, request: dict[str, Any], raw: bytes) -> Answer:
    """VECTORS."""
    dims = models.dims[models.require(request)]
    rows = _rows(raw, [item["n_tokens"] for item in request["items"]])
    vectors = [value for row in rows for value in stub_vector(row, dims)]
    return {"type": "VECTORS", "dims": dims, "n": len(rows)}, _floats(vectors)


def rerank(models: StubModels, request: dict[str, Any], raw: bytes) -> Answer:
    """SCORES for pairs."""
    models.require(request)
    counts = [request["query_n_tokens"], *(candidate["n_tokens"] for candidate in request["candidates"])]
    query, *documents = _rows(raw, counts)
    return {"type": "SCORES"}, _floats([stub_score(stub_pair(query, document)) for document in documents])


def rerank_sequences(models: StubModels, request: dict[str, Any], raw: bytes) -> Answer:
    """SCORES for composed sequences."""
    models.require(request)
    rows = _rows(raw, [sequence["n_tokens"] for sequence in request["sequences"]])
    return {"type": "SCORES"}, _floats([stub_score(row) for row in rows])


def generate(models: StubModels, request: dict[str, Any], raw: bytes) -> Answer:
    """TEXT."""
    models.require(request)
    if request.get("grammar"):
        raise StubRefusal("unsupported_request", "the stub obeys no grammar, so it refuses GENERATE with one")
    (prompt,) = _rows(raw, [len(raw) // 4])
    tokens = stub_tokens(prompt, request["max_tokens"])
    reason = "length" if len(tokens) == request["max_tokens"] else "stop"
    counts = {"n_prompt": len(prompt), "n_gen": len(tokens), "finish_reason": reason}
    ids = {"generated_token_ids": tokens} if tokens else {}
    return {"type": "TEXT", "text": " ".join(map(str, tokens)), **counts, **ids}, None


def admit(models: StubModels, request: dict[str, Any], raw: bytes) -> Answer:
    """ADMITTED."""
    compiled = models.compiled[models.require(request)]
    compiled.add(request.get("shape") or request["width"])
    executables = [{"id": f"stub-{size}", "layers": [0, 1]} for size in sorted(compiled)]
    return {"type": "ADMITTED", "inventory": {"executables": executables, "cpu_stages": ["pooling"]}}, None


def evict(models: StubModels, request: dict[str, Any], raw: bytes) -> Answer:
    """EVICTED."""
    size = request.get("shape") or request["width"]
    compiled = models.compiled[models.require(request)]
    if size not in compiled:
        raise StubRefusal("shape_not_admitted", f"{size} is not compiled here")
    compiled.discard(size)
    return {"type": "EVICTED"}, None


def self_check(models: StubModels, request: dict[str, Any], raw: bytes) -> Answer:
    """SELF_CHECKED: one operation of three numbers."""
    models.require(request)
    sizes = {"rows": 1, "width": 3, "scale": 1.0}
    check = {"kind": "operation", "subject": "add", "label": "stub", "fault": "", **sizes}
    return {"type": "SELF_CHECKED", "checks": [check]}, _floats([0.25, 0.5, 0.75])


def unload(models: StubModels, request: dict[str, Any], raw: bytes) -> Answer:
    """UNLOADED."""
    models.dims.pop(request["model_ref"], None)
    return {"type": "UNLOADED"}, None


def ping(models: StubModels, request: dict[str, Any], raw: bytes) -> Answer:
    """PONG."""
    return {"type": "PONG", "rss_mb": 1, "models_loaded": len(models.dims)}, None


#: Wire type -> the function that answers it.
ANSWERS: dict[str, Callable[[StubModels, dict[str, Any], bytes], Answer]] = {
    "LOAD": load,
    "EMBED_BATCH": embed,
    "RERANK": rerank,
    "RERANK_SEQUENCES": rerank_sequences,
    "GENERATE": generate,
    "ANE_ADMIT_SHAPE": admit,
    "ANE_EVICT_SHAPE": evict,
    "PACKED_ADMIT": admit,
    "PACKED_EVICT": evict,
    "SELF_CHECK": self_check,
    "UNLOAD": unload,
    "PING": ping,
}


def _rows(raw: bytes, counts: list[int]) -> list[list[int]]:
    tokens = struct.unpack(f"<{len(raw) // 4}i", raw)
    rows = []
    start = 0
    for count in counts:
        rows.append(list(tokens[start : start + count]))
        start += count
    return rows


def _floats(values: list[float]) -> bytes:
    packed = array("f", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
