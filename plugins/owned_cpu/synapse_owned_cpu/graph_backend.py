"""Turns recorded segments into compiled OpenVINO graphs the owned engine can call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType
from synapse_host.ops.tensor_ops import Batch
from synapse_host.owned_engine.decoder import Reading
from synapse_host.owned_engine.executables import Build, Executable, ExecutableKey
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_owned_cpu.openvino_ops import OpenVinoOps, StatefulCache
from synapse_owned_cpu.runtime import core, opset, ov

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]

#: OpenVINO's names of the activation types we offer.
PRECISIONS: dict[DType, str] = {"f32": "f32", "bf16": "bf16"}


def decoding_settings(dtype: DType, threads: int) -> dict[str, str]:
    """Settings of a graph that keeps keys and values: kept as they were computed, where the default is 8 bits."""
    kept = dict.fromkeys(("KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION", "KV_CACHE_PRECISION"), PRECISIONS[dtype])
    return compile_settings(dtype, threads) | kept


def compile_settings(dtype: DType, threads: int) -> dict[str, str]:
    """Settings of one lane's graphs: one request at a time, on ``threads`` threads, in exactly ``dtype``.

    Threads are not pinned: every worker would pin to the same cores, and this machine has other work. Nothing is
    quantised behind our back.
    """
    return {
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
        "ENABLE_CPU_PINNING": "NO",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    }


class CompiledSegment:
    """One compiled graph and its only inference request.

    Inputs are always shared: a request that has once been given shared inputs refuses larger copied ones later.
    Outputs are always copied, since the request's own buffers may be released or overwritten.
    """

    def __init__(self, compiled: Any, held: list[Any]) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._held = held

    def __call__(self, ids: Int32, counts: Int32, hidden: Float32 | None = None, kinds: Int32 | None = None) -> Float32:
        inputs = [given for given in (ids, counts, hidden, kinds) if given is not None]
        outputs = self._request.infer(dict(enumerate(inputs)), share_inputs=True, share_outputs=False)
        vectors: Float32 = outputs[0]
        return vectors

    def release(self) -> None:
        """Give the request's buffers back; the next call takes new ones."""
        self._compiled.release_memory()


class DecodingSession:
    """One text, read piece by piece; its keys and values are the state of an inference request of its own."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._read = 0

    def next_token(self, ids: Sequence[int]) -> int:
        """Read ``ids`` after all read before; the likeliest token to follow."""
        row, count = np.array([ids], dtype=np.int32), np.array([len(ids)], dtype=np.int32)
        inputs = {0: row, 1: count, 2: np.array([self._read], dtype=np.int32)}
        outputs = self._request.infer(inputs, share_inputs=True, share_outputs=False)
        self._read += len(ids)
        return int(outputs[0][0, 0])


class OpenVinoBackend:
    """The graphs of one model. Shapes are dynamic, so a key stands for every row count and bucket."""

    static_shapes = False

    def __init__(self, weights: CheckpointWeights, *, max_tokens: int, threads: int, dtype: DType = "f32") -> None:
        self._weights = weights
        self._max_tokens = max_tokens
        self._threads = threads
        self._dtype = dtype
        self._reader: tuple[Any, list[Any]] | None = None
        self._segments: list[CompiledSegment] = []

    def executable(self, key: ExecutableKey, build: Build) -> Executable:
        ops = OpenVinoOps(self._weights, max_tokens=self._max_tokens, regime=key.regime, dtype=key.dtype)
        model = _record(ops, key, build)
        compiled = core().compile_model(model, "CPU", compile_settings(key.dtype, self._threads))
        segment = CompiledSegment(compiled, ops.held)
        self._segments.append(segment)
        return segment

    def session(self, reading: Reading) -> DecodingSession:
        """A text of which nothing is read yet; the graph is compiled for the first."""
        if self._reader is None:
            ops = OpenVinoOps(self._weights, max_tokens=self._max_tokens, dtype=self._dtype)
            model = record_reading(ops, reading)
            self._reader = core().compile_model(model, "CPU", decoding_settings(self._dtype, self._threads)), ops.held
        return DecodingSession(self._reader[0].create_infer_request())

    def between_segments(self) -> None:
        for segment in self._segments:
            segment.release()

    def close(self) -> None:
        self._segments.clear()
        self._reader = None
        self._weights.close()


def _record(ops: OpenVinoOps, key: ExecutableKey, build: Build) -> Any:
    ids = opset.parameter([-1, -1], ov.Type.i32, name="ids")
    counts = opset.parameter([-1], ov.Type.i32, name="counts")
    parameters, hidden, kinds = [ids, counts], None, None
    if not key.segment.has_stem:
        rows = opset.parameter([-1, -1, key.width], ov.Type.f32, name="hidden")
        parameters.append(rows)
        hidden = rows.output(0)
    elif key.kinds:
        parameters.append(opset.parameter([-1, -1], ov.Type.i32, name="kinds"))
        kinds = parameters[-1].output(0)
    result = build(ops, Batch(ids.output(0), counts.output(0), kinds=kinds), hidden)
    return ov.Model([opset.result(result)], parameters, f"{key.family}-{key.segment.first}-{key.segment.stop}")


def record_reading(ops: OpenVinoOps, reading: Reading) -> Any:
    """The graph that reads ids i32[1, S] after the ``start`` i32[1] positions its state holds: the next token."""
    ids = opset.parameter([1, -1], ov.Type.i32, name="ids")
    counts = opset.parameter([1], ov.Type.i32, name="counts")
    start = opset.parameter([1], ov.Type.i32, name="start")
    cache = StatefulCache()
    batch = Batch(ids.output(0), counts.output(0), start=start.output(0))
    picks = reading(ops, batch, cache)
    return ov.Model([opset.result(picks)], cache.sinks, [ids, counts, start], "reading")


def run_trial_graph(dtype: DType) -> None:
    """Compile and run one product of two small matrices; raises ``RuntimeError`` when it comes out wrong."""
    x = opset.parameter([-1, 16], ov.Type.f32)
    w = np.eye(16, dtype=np.float32) * 2.0
    model = ov.Model([opset.result(opset.matmul(x, opset.constant(w), False, True))], [x], "trial")
    compiled = core().compile_model(model, "CPU", compile_settings(dtype, 1))
    given = np.arange(48, dtype=np.float32).reshape(3, 16)
    found = compiled(given)[0]
    if not np.array_equal(found, given * 2.0):
        raise RuntimeError(f"a {dtype} product of small whole numbers came out wrong on the CPU device")
