"""The 31 tensor operations every model family is written in, and nothing else.

A handle is opaque: a family may not use operators, shapes, axes, casts or masks on it. The same calls therefore run
eagerly on arrays and record a graph on a compiler. Shapes in the docstrings: B rows, S positions, C features, N heads,
D features of one head, V vocabulary, P positions of a table. A is the lane's activation type; families never cast.

``Rows`` is A[B, S, C] (a pooled result has S = 1), ``Heads`` is A[B, N, S, D], ``Weight`` keeps the checkpoint's type,
``Table`` is a float32 host constant. Statistics, softmax and reductions are computed in float32 by every backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

#: An opaque tensor of the backend.
Handle: TypeAlias = Any
Rows: TypeAlias = Handle
Heads: TypeAlias = Handle
Weight: TypeAlias = Handle
Table: TypeAlias = Handle
Cache: TypeAlias = Handle
Logits: TypeAlias = Handle

GeluKind = Literal["erf", "tanh"]
Activation = Literal["gelu", "gelu_tanh", "silu", "tanh", "relu"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids i32[B, S], valid tokens per row i32[B], and how many tokens the cache already holds.

    ``start`` is a number, or an i32[1] of a recording that is run for many of them.
    ``kinds`` i32[B, S] says which of two texts a token belongs to, for families that learnt the difference; None
    where there is one text.
    """

    ids: Handle
    counts: Handle
    start: int | Handle = 0
    kinds: Handle | None = None


class TensorOps(Protocol):
    """One backend's operations. The numpy reference in ``reference_ops`` defines what each of them means."""

    def weight(self, name: str, shape: Sequence[int]) -> Weight:
        """The checkpoint tensor ``name``; raises ``ValueError`` naming it and both shapes when they differ."""

    def embedding(self, ids: Handle, table: Weight) -> Rows:
        """Gather rows of ``table`` [V, C] by token id."""

    def positions(self, batch: Batch, table: Weight, first: int = 0) -> Rows:
        """Rows ``first + start + s`` of ``table`` [P, C], as [1, S, C]."""

    def table_row(self, table: Weight, index: int) -> Rows:
        """Row ``index`` of ``table``, as [1, 1, C]."""

    def linear(self, x: Rows, w: Weight, b: Weight | None = None, act: Activation | None = None) -> Rows:
        """``x · wᵀ + b`` with ``w`` [O, C], accumulated in float32, then the activation."""

    def add(self, a: Handle, b: Handle) -> Handle:
        """Sum; broadcasts only over B and S of size 1."""

    def mul(self, a: Handle, b: Handle) -> Handle:
        """Product; broadcasts only over B and S of size 1."""

    def layer_norm(self, x: Rows, w: Weight, b: Weight | None, eps: float) -> Rows:
        """Normalise over C with the biased variance, ``eps`` inside the root."""

    def rms_norm(self, x: Handle, w: Weight, eps: float) -> Handle:
        """Divide by the root mean square over C (``Rows``) or D (``Heads``)."""

    def add_layer_norm(self, x: Rows, r: Rows, w: Weight, b: Weight | None, eps: float) -> tuple[Rows, Rows]:
        """``s = x + r`` and its layer norm, as (s, normed)."""

    def add_rms_norm(self, x: Rows, r: Rows, w: Weight, eps: float) -> tuple[Rows, Rows]:
        """``s = x + r`` and its RMS norm, as (s, normed)."""

    def gelu(self, x: Handle, kind: GeluKind) -> Handle:
        """Gaussian error linear unit, exact (erf) or by the tanh form."""

    def silu(self, x: Handle) -> Handle:
        """``x · sigmoid(x)``."""

    def tanh(self, x: Handle) -> Handle:
        """Hyperbolic tangent."""

    def relu(self, x: Handle) -> Handle:
        """``max(x, 0)``."""

    def geglu(self, x: Rows, kind: GeluKind) -> Rows:
        """``gelu(first half) · second half`` over the features of [B, S, 2I]."""

    def swiglu(self, gate: Rows, up: Rows) -> Rows:
        """``silu(gate) · up``."""

    def split(self, x: Rows, sizes: Sequence[int]) -> tuple[Rows, ...]:
        """Cut the feature axis into pieces of ``sizes``."""

    def heads(self, x: Rows, n: int) -> Heads:
        """[B, S, N·D] to [B, N, S, D]."""

    def merge_heads(self, h: Heads) -> Rows:
        """[B, N, S, D] to [B, S, N·D]."""

    def rope_table(self, theta: float, d: int, scaling: float | None = None) -> Table:
        """Cosine and sine of every position up to the lane's max_tokens, made in float64 on the host."""

    def rope(self, h: Heads, table: Table, batch: Batch) -> Heads:
        """Rotate halves by the angle of position ``start + s``."""

    def attention(
        self,
        q: Heads,
        k: Heads,
        v: Heads,
        batch: Batch,
        *,
        scale: float,
        causal: bool = False,
        window: int | None = None,
    ) -> Heads:
        """Softmax attention.

        Key j is visible to query i iff j < start + counts[b], j ≤ i when causal, and
        |i - j| ≤ window. Query head n reads key head n // (N / Nk). Padded queries get some finite value.
        """

    def kv_append(self, cache: Cache, layer: int, k: Heads, v: Heads, batch: Batch) -> tuple[Heads, Heads]:
        """Append to the cache of ``layer`` and return all keys and values so far."""

    def first_row(self, x: Rows, batch: Batch) -> Rows:
        """Position 0, as [B, 1, C]."""

    def last_row(self, x: Rows, batch: Batch) -> Rows:
        """Position ``counts - 1`` of each row, as [B, 1, C]."""

    def mean_rows(self, x: Rows, batch: Batch) -> Rows:
        """Mean over the first ``counts`` positions, summed in float32, as [B, 1, C]."""

    def l2_normalize(self, x: Rows) -> Rows:
        """Divide by the Euclidean norm over C; a zero row stays zero."""

    def logits(self, x: Rows, w: Weight, rows: Sequence[int] | None = None) -> Logits:
        """``x · wᵀ`` in float32 against all of ``w`` [V, C] or the named rows only."""

    def argmax(self, logits: Logits) -> Handle:
        """Index of the largest logit in float32, the lowest index on ties; V where the logits are NaN."""

    def result(self, x: Rows) -> Handle:
        """The only way out of a graph: float32 [B, C]."""


#: Names of the operations, in the order of the reference page.
OP_NAMES: tuple[str, ...] = tuple(name for name in vars(TensorOps) if not name.startswith("_"))
