"""What a magnifying model is, and the numbers and rows all of them are made of. Pure numpy, seeded."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.values import value_object

Array: TypeAlias = npt.NDArray[np.float32]

#: The token that ends each text of a pair.
SEPARATOR = 3
VOCAB = 97
#: Lengths of the rows, chosen around the edges of padded shapes.
LENGTHS = (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 127, 128, 129, 144, 160)
#: Lengths beside them where positions or windows reach further.
LONG_LENGTHS = (255, 256, 257, 300, 320, 321)


@value_object
class Magnifier:
    """One model: config.json, its weights, rows of token ids, and the longer of them as pairs of two texts.

    ``pooling`` is how it embeds; ``separator`` is the token that tells the texts of a pair apart, None where the family
    does not ask.
    """

    family: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Array]
    rows: list[list[int]]
    pairs: list[list[int]]
    pooling: Literal["mean", "last"] = "mean"
    separator: int | None = None

    @property
    def max_tokens(self) -> int:
        """Tokens a row may have, some more than the longest has."""
        return max(map(len, self.rows)) + 32

    @property
    def hidden(self) -> int:
        """Width of its vectors."""
        return int(self.config["hidden_size"])

    def safetensors(self) -> bytes:
        """The weights as a file's bytes, the same on every machine."""
        header: dict[str, object] = {}
        body = bytearray()
        for name, tensor in sorted(self.tensors.items()):
            data = np.ascontiguousarray(tensor, dtype="<f4").tobytes()
            ends = [len(body), len(body) + len(data)]
            header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": ends}
            body += data
        encoded = json.dumps(header, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)
        return struct.pack("<Q", len(encoded)) + encoded + bytes(body)


class Numbers:
    """Normal numbers of one seed, drawn in the order they are asked for."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def normal(self, *shape: int, scale: float, mean: float = 0.0) -> Array:
        """float32 of ``shape``."""
        return (mean + scale * self._rng.standard_normal(shape)).astype(np.float32)

    def rows(self, lengths: Sequence[int], vocab: int = VOCAB) -> list[list[int]]:
        """Two rows of random token ids for each length."""
        return [self._rng.integers(0, vocab, size=length).tolist() for length in lengths for _ in range(2)]


def pairs_of(rows: Sequence[list[int]]) -> list[list[int]]:
    """The rows that are long enough, with one separator after the first third and one at the end."""
    return [_pair(row) for row in rows if len(row) > 2]


def _pair(row: list[int]) -> list[int]:
    pair = [token if token != SEPARATOR else SEPARATOR + 1 for token in row]
    pair[len(row) // 3] = pair[-1] = SEPARATOR
    return pair
