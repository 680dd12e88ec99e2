"""Whatever a worker does in the middle of any operation, the caller gets one typed crash and the worker is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synapse_host.errors import EngineCrashed
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.supervision.worker import Worker
from synapse_host.testing.running_worker import (
    details_of,
    embed,
    generate,
    load,
    misbehaving_spec,
    rerank,
    rerank_sequences,
    running,
)
from synapse_host.worker_protocol.messages import AdmitShape, EvictShape, PackedAdmit, Ping, Unload

pytestmark = pytest.mark.anyio

Ask = Callable[[Worker, str], Awaitable[Any]]

#: Wire type -> a lawful request of it. LOAD is asked for a second time.
ASKS: dict[str, Ask] = {
    "LOAD": lambda worker, ref: load(worker, dims="2"),
    "RERANK": lambda worker, ref: rerank(worker, ref, [1], [2], [3]),
    "RERANK_SEQUENCES": lambda worker, ref: rerank_sequences(worker, ref, [2], [3]),
    "GENERATE": lambda worker, ref: generate(worker, ref, [1, 2], 3),
    "ANE_ADMIT_SHAPE": lambda worker, ref: worker.request(AdmitShape("a", ref, 128)),
    "PACKED_ADMIT": lambda worker, ref: worker.request(PackedAdmit("a", ref, 256)),
    "PING": lambda worker, ref: worker.request(Ping("p")),
    "UNLOAD": lambda worker, ref: worker.request(Unload("u", ref)),
}
FAULTS = {
    "exits_on_request": ("exited", "closed the connection"),
    "exits_mid_reply": ("exited", "closed the connection"),
    "oversized_frame": ("protocol_fault", "4294967295"),
    "stalling_progress": ("protocol_fault", "completed 2 after 2"),
    "foreign_progress": ("protocol_fault", "'embed-0'"),
    "wrong_request_id": ("protocol_fault", "'embed-0'"),
    "wrong_reply": ("protocol_fault", " answers "),
    "extra_field": ("protocol_fault", "'mood'"),
    "unreadable_request": ("protocol_fault", "no idea"),
}
#: Faults that only some operations can have.
OWN_FAULTS = [
    ("GENERATE", "wrong_rows", "3 prompt tokens and 2 were sent"),
    ("GENERATE", "too_many_tokens", "4 generated tokens and at most 3"),
    ("GENERATE", "loses_tokens", "3 generated tokens and gives 0 ids"),
    ("GENERATE", "half_character", "surrogate"),
    ("GENERATE", "control_phase", "names phase 'control'"),
    ("GENERATE", "backward_phase", "went back"),
    ("RERANK", "wrong_rows", "12 bytes; 2 candidates take 8"),
    ("RERANK", "short_vectors", "4 bytes; 2 candidates take 8"),
    ("RERANK", "progress_inside", "2 candidates take 8"),
    ("RERANK_SEQUENCES", "short_vectors", "4 bytes; 2 candidates take 8"),
    ("RERANK_SEQUENCES", "control_phase", "names phase 'control'"),
    ("UNLOAD", "backward_phase", "names phase 'inference'"),
    ("ANE_ADMIT_SHAPE", "backward_phase", "names phase 'inference'"),
    ("LOAD", "control_phase", "names phase 'control'"),
    ("PING", "control_phase", "names phase 'control'"),
]


async def crash(spec: Any, on: str) -> EngineCrashed:
    """What the caller gets; the worker may not be there afterwards."""
    async with running(spec) as worker:
        # The fault is in every request of its type, so a model is loaded only where LOAD itself is sound.
        ref = "stub-1" if on == "LOAD" else await load(worker)
        with pytest.raises(EngineCrashed) as crashed:
            await ASKS[on](worker, ref)
        assert worker.closed.is_set()
    return crashed.value


@pytest.mark.parametrize("on", ASKS)
@pytest.mark.parametrize("kind", FAULTS)
async def test_a_broken_exchange_of_any_operation_is_a_typed_crash(tmp_path: Path, kind: str, on: str) -> None:
    reason, said = FAULTS[kind]
    error = await crash(misbehaving_spec(tmp_path, kind, on=on), on)
    assert (details_of(error)["reason"], said in error.message) == (reason, True), error.message


@pytest.mark.parametrize(("on", "kind", "said"), OWN_FAULTS)
async def test_a_fault_of_one_operation_is_a_protocol_fault(tmp_path: Path, on: str, kind: str, said: str) -> None:
    error = await crash(misbehaving_spec(tmp_path, kind, on=on), on)
    assert (details_of(error)["reason"], said in error.message) == ("protocol_fault", True), error.message


async def test_vectors_of_another_width_than_loaded_are_a_protocol_fault(tmp_path: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "wrong_dims")) as worker:
        ref = await load(worker, dims="3")
        with pytest.raises(EngineCrashed, match="VECTORS has 4 dims and LOADED said 3"):
            await embed(worker, ref, [1], [2])


BRIEF_INFERENCE = SilenceWindows(long_s=60.0, inference_s=0.3)
BRIEF_CHANGES = SilenceWindows(long_s=0.3, inference_s=60.0)


@pytest.mark.parametrize(
    ("on", "windows"),
    [
        ("RERANK", BRIEF_INFERENCE),
        ("RERANK_SEQUENCES", BRIEF_INFERENCE),
        ("GENERATE", BRIEF_INFERENCE),
        ("PING", BRIEF_INFERENCE),
        ("ANE_ADMIT_SHAPE", BRIEF_CHANGES),
        ("PACKED_ADMIT", BRIEF_CHANGES),
        ("UNLOAD", BRIEF_CHANGES),
        ("LOAD", BRIEF_CHANGES),
    ],
)
async def test_silence_past_the_window_of_its_operation_kills(tmp_path: Path, on: str, windows: SilenceWindows) -> None:
    error = await crash(replace(misbehaving_spec(tmp_path, "silence", on=on), silence=windows), on)
    assert (details_of(error)["reason"], details_of(error)["exit"]) == ("silence", "signal SIGKILL")
    assert f"{on} reported no completed work for 0.3 s" in error.message


async def test_a_refusal_of_any_operation_leaves_the_worker_serving(tmp_path: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "refuses", on="ANE_EVICT_SHAPE")) as worker:
        ref = await load(worker)
        await worker.request(AdmitShape("a", ref, 128))
        with pytest.raises(Exception, match="all zeros"):
            await worker.request(EvictShape("e-1", ref, 128))
        await worker.request(EvictShape("e-2", ref, 128))
