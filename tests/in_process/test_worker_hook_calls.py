"""From every request to its hook, and from whatever the hook does to a typed reply."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.hookspecs import CheckNumbers, DeviceGone, Generation, PluginError
from synapse_host.testing.plain_plugin import PlainModel, PlainPlugin, hook_calls
from synapse_host.testing.workers.fake_engine import load_request
from synapse_host.worker.hook_calls import HOOKS, HookCalls
from synapse_host.worker_protocol.codec import check_outgoing
from synapse_host.worker_protocol.messages import (
    AdmitShape,
    Admitted,
    EmbedBatchRequest,
    Err,
    Evicted,
    EvictShape,
    Generate,
    Load,
    Loaded,
    Message,
    PackedAdmit,
    PackedEvict,
    Ping,
    Pong,
    Rerank,
    RerankSequences,
    Scores,
    SelfCheck,
    SelfChecked,
    Text,
    Unload,
)

INVENTORY = {"executables": [{"id": "a", "layers": (0, np.int32(1))}], "cpu_stages": ("pool",)}
PLAIN_INVENTORY = {"executables": [{"id": "a", "layers": [0, 1]}], "cpu_stages": ["pool"]}
#: Every request for a model but LOAD and UNLOAD, and the raw frame that goes with it.
REQUESTS: list[tuple[Any, bytes]] = [
    (EmbedBatchRequest("r", "model-1", "mean", True, [{"id": "a", "n_tokens": 2}]), bytes(8)),
    (Rerank("r", "model-1", 1, [{"n_tokens": 1}]), bytes(8)),
    (RerankSequences("r", "model-1", [{"n_tokens": 2}]), bytes(8)),
    (Generate("r", "model-1", 4), bytes(8)),
    (AdmitShape("r", "model-1", 128), b""),
    (EvictShape("r", "model-1", 128), b""),
    (PackedAdmit("r", "model-1", 256), b""),
    (PackedEvict("r", "model-1", 256), b""),
    (SelfCheck("r", "model-1"), b""),
]
BY_TYPE = pytest.mark.parametrize(("request_", "raw"), REQUESTS, ids=lambda v: getattr(v, "TYPE", ""))


def loaded(plugin: PlainPlugin, folder: Path, operation: str = "embed", **more: Any) -> HookCalls:
    calls = hook_calls(plugin, **more)
    reply, _ = calls.answer(load_request(folder, operation=operation), None)
    assert isinstance(reply, Loaded), reply
    return calls


def refusal(calls: HookCalls, request: Message, raw: bytes = b"") -> Err:
    reply, payload = calls.answer(request, raw)
    assert isinstance(reply, Err)
    assert (reply.req_id, payload) == (getattr(request, "req_id", None), None)
    check_outgoing(reply)
    return reply


def operation_of(request: Message) -> str:
    return request.OPERATION if request.OPERATION in ("embed", "rerank", "generate") else "embed"


@BY_TYPE
def test_a_request_whose_hook_is_missing_is_refused_by_its_wire_type(
    request_: Message, raw: bytes, tmp_path: Path
) -> None:
    others = {hook: lambda **_: pytest.fail("another hook was called") for hook in set(HOOKS.values())}
    del others[HOOKS[type(request_)]]
    calls = loaded(PlainPlugin(**others), tmp_path, operation_of(request_))
    err = refusal(calls, request_, raw)
    assert (err.code, err.msg) == ("unsupported_request", f"backend 'plain' does not answer {request_.TYPE}")


@BY_TYPE
def test_a_request_reaches_its_hook_with_the_model_and_its_progress(request_: Any, raw: bytes, tmp_path: Path) -> None:
    model, called = PlainModel(), []

    def hook(**arguments: Any) -> Any:
        called.append(arguments)
        arguments["progress"](1, "control" if request_.OPERATION in ("admit", "evict") else "inference")
        raise PluginError("ane_lane_busy", "later")

    calls = loaded(PlainPlugin(model, **{HOOKS[type(request_)]: hook}), tmp_path, operation_of(request_))
    if isinstance(request_, EvictShape | PackedEvict):
        assert refusal(calls, request_).code == "shape_not_admitted"
        return
    assert refusal(calls, request_, raw).code == "ane_lane_busy"
    (arguments,) = called
    assert arguments["model"] is model


@BY_TYPE
def test_a_model_that_is_not_loaded_is_named(request_: Any, raw: bytes) -> None:
    calls = hook_calls(PlainPlugin(**dict.fromkeys(HOOKS.values(), pytest.fail)))
    err = refusal(calls, request_, raw)
    assert (err.code, "'model-1'" in err.msg) == ("model_not_loaded", True)


@pytest.mark.parametrize("operation", ["embed", "rerank", "generate"])
@BY_TYPE
def test_a_model_answers_what_it_was_loaded_for(request_: Any, raw: bytes, operation: str, tmp_path: Path) -> None:
    calls = loaded(PlainPlugin(**dict.fromkeys(HOOKS.values(), lambda **_: None)), tmp_path, operation)
    reply, _ = calls.answer(request_, raw)
    mismatch = isinstance(reply, Err) and reply.code == "operation_mismatch"
    assert mismatch == (request_.OPERATION in {"embed", "rerank", "generate"} - {operation})


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (PluginError("head_tensor_missing", "no head"), "head_tensor_missing", "no head"),
        (PluginError("out_of_luck", "no luck"), "inference_failed", "out_of_luck: no luck"),
        (MemoryError("7 GiB"), "oom", "7 GiB"),
        (ZeroDivisionError("by zero"), "inference_failed", "ZeroDivisionError: by zero"),
    ],
)
@BY_TYPE
def test_what_a_hook_raises_is_the_answer(
    request_: Any, raw: bytes, problem: Exception, code: str, said: str, tmp_path: Path
) -> None:
    failing: list[Exception] = []

    def hook(**_: Any) -> Any:
        if failing:
            raise failing[0]
        return INVENTORY

    calls = loaded(PlainPlugin(**dict.fromkeys(HOOKS.values(), hook)), tmp_path, operation_of(request_))
    for admission in (AdmitShape("a", "model-1", 128), PackedAdmit("a", "model-1", 256)):
        assert isinstance(calls.answer(admission, None)[0], Admitted)
    failing.append(problem)
    err = refusal(calls, request_, raw)
    assert err.code == code
    assert said in err.msg


def test_shapes_are_admitted_reported_and_evicted(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    def admit(model: object, shape: int, progress: Callable[..., None]) -> Any:
        asked.append(("admit", shape))
        progress(1, "control")
        return INVENTORY

    def evict(model: object, shape: int, progress: Callable[..., None]) -> bool:
        asked.append(("evict", shape))
        return shape != 512

    calls = loaded(PlainPlugin(synapse_admit_shape=admit, synapse_evict_shape=evict), tmp_path)
    for shape in (512, 128, 256, 128):
        assert calls.answer(AdmitShape("a", "model-1", shape), None) == (Admitted("a", PLAIN_INVENTORY), None)
    assert calls.answer(EvictShape("e", "model-1", 256), None) == (Evicted("e"), None)
    assert refusal(calls, EvictShape("e", "model-1", 256)).code == "shape_not_admitted"
    kept = refusal(calls, EvictShape("e", "model-1", 512))
    assert (kept.code, "512" in kept.msg) == ("inference_failed", True)
    pong, _ = calls.answer(Ping("p"), None)
    assert isinstance(pong, Pong)
    assert pong.ane_resident_shapes == {"model-1": [128, 512]}
    assert asked == [("admit", 512), ("admit", 128), ("admit", 256), ("admit", 128), ("evict", 256), ("evict", 512)]
    assert refusal(calls, AdmitShape("a", "model-1", 0)).code == "invalid_request"


def test_packed_programs_have_a_width_that_hello_offers(tmp_path: Path) -> None:
    calls = loaded(
        PlainPlugin(synapse_admit_packed=lambda **_: INVENTORY, synapse_evict_packed=lambda **_: True), tmp_path
    )
    assert calls.answer(PackedAdmit("a", "model-1", 256), None) == (Admitted("a", PLAIN_INVENTORY), None)
    wrong = refusal(calls, PackedAdmit("a", "model-1", 512))
    assert (wrong.code, "256, 384" in wrong.msg) == ("invalid_request", True)
    assert refusal(calls, PackedEvict("e", "model-1", 384)).code == "shape_not_admitted"
    assert calls.answer(PackedEvict("e", "model-1", 256), None) == (Evicted("e"), None)
    assert refusal(calls, PackedEvict("e", "model-1", 256)).code == "shape_not_admitted"


@pytest.mark.parametrize(
    "inventory",
    [
        None,
        [],
        {"executables": []},
        {"executables": 7, "cpu_stages": []},
        {"executables": [{"id": "a"}], "cpu_stages": []},
        {"executables": [{"id": "a", "layers": [0.5]}], "cpu_stages": []},
        {"executables": [{"id": "a", "layers": [-1]}], "cpu_stages": []},
        {"executables": [{"id": 7, "layers": [1]}], "cpu_stages": []},
        {"executables": [], "cpu_stages": [7]},
    ],
    ids=str,
)
def test_an_inventory_that_is_none_is_the_plugins_mistake_not_the_protocols(inventory: Any, tmp_path: Path) -> None:
    calls = loaded(PlainPlugin(synapse_admit_shape=lambda **_: inventory), tmp_path)
    assert refusal(calls, AdmitShape("a", "model-1", 128)).code == "inference_failed"


def test_pong_leaves_out_what_a_backend_does_not_have(tmp_path: Path) -> None:
    calls = hook_calls(PlainPlugin())
    pong, _ = calls.answer(Ping("p"), None)
    assert set(pong.to_wire()) == {"type", "req_id", "rss_mb", "models_loaded"}
    pong, _ = loaded(PlainPlugin(), tmp_path).answer(Ping("p"), None)
    assert set(pong.to_wire()) == {"type", "req_id", "rss_mb", "models_loaded"}


def test_pong_gathers_all_loaded_models(tmp_path: Path) -> None:
    models = [PlainModel(buckets=(32, 16), share=0.9), PlainModel(buckets=[64, 32], share=0.25)]
    queue = [*models]
    plugin = PlainPlugin(
        synapse_load=lambda **_: queue.pop(0),
        synapse_placement=lambda model: model.share,
        synapse_admit_shape=lambda **_: INVENTORY,
    )
    calls = loaded(plugin, tmp_path)
    assert isinstance(calls.answer(load_request(tmp_path), None)[0], Loaded)
    calls.answer(AdmitShape("a", "model-2", 128), None)
    pong, _ = calls.answer(Ping("p"), None)
    assert isinstance(pong, Pong)
    assert (pong.models_loaded, pong.placement_share, pong.buckets) == (2, 0.25, [16, 32, 64])
    assert pong.placement_shares == {"model-1": 0.9, "model-2": 0.25}
    assert pong.ane_resident_shapes == {"model-1": [], "model-2": [128]}
    calls.answer(Unload("u", "model-2"), None)
    pong, _ = calls.answer(Ping("p"), None)
    assert isinstance(pong, Pong)
    assert (pong.placement_share, pong.ane_resident_shapes) == (0.9, {"model-1": []})


@pytest.mark.parametrize("share", [float("nan"), -0.1, 1.5, "much"])
def test_a_share_that_is_none_is_the_plugins_mistake(share: Any, tmp_path: Path) -> None:
    calls = loaded(PlainPlugin(synapse_placement=lambda **_: share), tmp_path)
    assert refusal(calls, Ping("p")).code == "inference_failed"


def test_a_model_of_which_nothing_is_compiled_has_no_share(tmp_path: Path) -> None:
    pong, _ = loaded(PlainPlugin(synapse_placement=lambda **_: None), tmp_path).answer(Ping("p"), None)
    assert isinstance(pong, Pong)
    assert (pong.placement_share, pong.placement_shares) == (None, None)


@pytest.mark.parametrize(
    ("operation", "dims", "served"),
    [("embed", 0, False), ("rerank", 0, True), ("generate", 0, True), ("rerank", -1, False), ("embed", "4", False)],
)
def test_only_a_model_that_embeds_needs_a_width(operation: str, dims: Any, served: bool, tmp_path: Path) -> None:
    calls = hook_calls(PlainPlugin(PlainModel(dims=dims)))
    reply, _ = calls.answer(load_request(tmp_path, operation=operation), None)
    assert isinstance(reply, Loaded) == served, reply


def test_a_ladder_of_nonsense_is_a_failed_load(tmp_path: Path) -> None:
    calls = hook_calls(PlainPlugin(PlainModel(buckets=[0, 16])))
    request = load_request(tmp_path)
    assert isinstance(request, Load)
    assert refusal(calls, request).code == "load_failed"
    assert isinstance(calls.answer(Ping("p"), None)[0], Pong)


def test_scores_and_text_leave_in_their_frames(tmp_path: Path) -> None:
    plugin = PlainPlugin(
        synapse_rerank=lambda **_: np.array([0.5], np.float32),
        synapse_generate=lambda **_: Generation([7], "stop", 2, "seven"),
    )
    reply, payload = loaded(plugin, tmp_path, "rerank").answer(*REQUESTS[2])
    assert (reply, bytes(payload or b"")) == (Scores("r"), np.float32(0.5).tobytes())
    reply, payload = loaded(plugin, tmp_path, "generate").answer(*REQUESTS[3])
    assert (reply, payload) == (Text("r", "seven", 2, 1, "stop", [7]), None)


def test_the_numbers_of_a_self_check_leave_in_one_frame_in_their_order(tmp_path: Path) -> None:
    checks = [
        CheckNumbers("operation", "add", "a", np.array([[1, np.nan]], np.float32), 2.5),
        CheckNumbers("vectors", "bert", "b", np.empty((0, 0), np.float32), fault="RuntimeError: no"),
        CheckNumbers("scores", "bert", "c", np.array([[3], [4]], np.float32)),
    ]
    plugin = PlainPlugin(synapse_self_check=lambda **_: checks)
    reply, payload = loaded(plugin, tmp_path).answer(SelfCheck("r", "model-1"), None)
    assert isinstance(reply, SelfChecked)
    assert [(one["kind"], one["rows"], one["width"], one["scale"], one["fault"]) for one in reply.checks] == [
        ("operation", 1, 2, 2.5, ""),
        ("vectors", 0, 0, 1.0, "RuntimeError: no"),
        ("scores", 2, 1, 1.0, ""),
    ]
    assert np.array_equal(np.frombuffer(payload or b"", "<f4"), [1, np.nan, 3, 4], equal_nan=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"add": np.zeros(3, np.float32)}, "no CheckNumbers"),
        ([CheckNumbers("operation", "add", "a", np.zeros(3, np.float32))], "shape (3,)"),
        ([CheckNumbers("operation", "add", "a", np.zeros((1, 3)))], "float64"),
    ],
)
def test_a_self_check_of_another_form_is_refused(wrong: Any, said: str, tmp_path: Path) -> None:
    calls = loaded(PlainPlugin(synapse_self_check=lambda **_: wrong), tmp_path)
    err = refusal(calls, SelfCheck("r", "model-1"))
    assert err.code == "inference_failed"
    assert said in err.msg


def test_every_request_for_a_model_is_in_the_list() -> None:
    assert {type(request) for request, _ in REQUESTS} == set(HOOKS)


def test_a_lost_device_is_remembered_beside_its_refusal(tmp_path: Path) -> None:
    def lost(**_: Any) -> None:
        raise DeviceGone("vkQueueSubmit: VK_ERROR_DEVICE_LOST")

    calls = loaded(PlainPlugin(synapse_embed=lost), tmp_path)
    assert not calls.device_gone
    answer = refusal(calls, *REQUESTS[0])
    assert (answer.code, answer.msg) == ("inference_failed", "vkQueueSubmit: VK_ERROR_DEVICE_LOST")
    assert calls.device_gone
