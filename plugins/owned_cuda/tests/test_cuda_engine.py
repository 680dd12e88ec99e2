"""The whole CUDA engine on NumPy in CuPy's place, with the real kernels run on the CPU as the engine launches them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from synapse_owned_cuda import cuda_ops, plugin
from synapse_owned_cuda.cpu_shim.launching import CpuDevice
from synapse_owned_cuda.cpu_shim.numpy_device import NumpyDevice
from synapse_owned_cuda.handles import Heads
from synapse_owned_cuda.single_ops import SingleOps

from synapse_host.certification.engine_check import judge_engine
from synapse_host.hookspecs import DeviceGone, DType, PluginError
from synapse_host.ops.tensor_ops import Batch
from synapse_host.ops.tolerances import END_TO_END
from synapse_host.owned_engine import reference_plugin, self_check
from synapse_host.owned_engine.engine import ModelSettings
from synapse_host.owned_engine.family_table import FAMILIES, family_named
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.recorded_encoders import POOLINGS, RECORDED, embedded, recorded_encoder, recorded_pairs
from synapse_host.testing.models.recorded_qwen3 import recorded_qwen3
from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS, SEPARATOR
from synapse_host.testing.models.tiny_models import write_model, write_safetensors
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, write_qwen3
from synapse_host.testing.models.tiny_static import TinyStatic
from synapse_host.testing.ops_contract import OP_CASES, OpCase, check_op

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
STORED = {"f32": np.float32, "f16": np.float16}
RERANK = {"operation": "rerank", "pair_separator": str(SEPARATOR)}


@pytest.fixture(scope="module")
def cpu(launcher: Path) -> Iterator[CpuDevice]:
    with CpuDevice(launcher, order=1) as opened:
        yield opened


@pytest.fixture
def device(cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> NumpyDevice:
    """The device the plugin opens."""
    made = NumpyDevice(cpu)
    monkeypatch.setattr(plugin, "_open_device", lambda: made)
    return made


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_operation_agrees_with_the_reference(case: OpCase, dtype: DType, device: NumpyDevice) -> None:
    check_op(SingleOps(device, dtype), case)


@pytest.mark.parametrize(("dtype", "every"), [("f32", 2), ("f16", 8)])
def test_the_backends_own_check_finds_every_operation_and_family_right(
    dtype: DType, every: int, device: NumpyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half precision a quarter of the rows: fibres of the CPU take a minute and a half for all that f32 is asked."""
    monkeypatch.setattr(self_check, "_EVERY", every)
    loaded, reference = (
        SimpleNamespace(settings=ModelSettings(family_named("bert"), {}, kind, 128, 1)) for kind in (dtype, "f32")
    )
    wanted = reference_plugin.synapse_self_check(reference, ignore_progress)
    lane = plugin.synapse_self_check(loaded, ignore_progress)
    for family in FAMILIES:
        findings = judge_engine(lane, wanted, dtype=dtype, family=family, task="rerank")
        assert findings.missed == []
    assert findings.evidence["failed"] == []


def rows_of(recorded: Any, count: int = 7) -> list[int]:
    """The shortest rows there are, an odd number of them: a block's threads take their turns one by one."""
    return sorted(range(len(recorded.rows)), key=lambda place: len(recorded.rows[place]))[:count]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "f32") for name in RECORDED), ("xlm_roberta/two_layers", "f16"), ("modernbert/biased", "f16")],
)
def test_encoders_agree_with_transformers_in_every_row(
    name: str, dtype: DType, device: NumpyDevice, tmp_path: Path
) -> None:
    recorded, bound = recorded_encoder(FIXTURES, name), END_TO_END[dtype]
    write_model(tmp_path, recorded.model)
    places = rows_of(recorded)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest) as model:
        found = embedded(plugin, model, [recorded.rows[place] for place in places], "mean").astype(np.float64)
    wanted = recorded.f64["mean"][places]
    assert np.sum(found * wanted, axis=1).min() >= bound.min_cosine
    assert np.abs(found - wanted).max() <= bound.max_abs_error
    assert any(kernel.startswith("attention") for kernel, _, _ in device.launches)


@pytest.mark.parametrize("dtype", STORED)
def test_a_table_of_static_vectors_agrees_with_the_reference(dtype: DType, device: NumpyDevice, tmp_path: Path) -> None:
    write_model(tmp_path, TinyStatic(seed=7, hidden=37, vocab=211, positions=600))
    rows = seeded_rows([1, 5, 33, 130, 531], 211)
    with loaded_model(reference_plugin, tmp_path, max_tokens=600) as model:
        wanted = [embedded(reference_plugin, model, rows, pooling) for pooling in POOLINGS]
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=600) as model:
        found = [embedded(plugin, model, rows, pooling) for pooling in POOLINGS]
    assert np.abs(np.array(found) - np.array(wanted)).max() <= END_TO_END[dtype].max_abs_error


def test_a_request_tells_of_its_inputs_before_its_forward(device: NumpyDevice, tmp_path: Path) -> None:
    """Of two calls: nobody hears of a long forward until it ends, so its inputs are a phase of longer silence."""
    recorded = recorded_encoder(FIXTURES, "xlm_roberta/two_layers")
    write_model(tmp_path, recorded.model)
    told: list[tuple[int, str, int]] = []
    with loaded_model(plugin, tmp_path, max_tokens=64) as model:
        device.launches.clear()
        rows = [np.array([5, 6, 7], np.int32), np.arange(20, dtype=np.int32)]
        progress = lambda completed, phase, ids=(): told.append((completed, phase, len(device.launches)))  # noqa: E731
        plugin.synapse_embed(model, batch_of(rows), progress)
    assert [step[:2] for step in told] == [(1, "setup"), (2, "inference"), (3, "inference"), (4, "inference")]
    assert [launches for _, _, launches in told[:2]] == [0, 0]


def test_a_lane_holds_the_pool_to_what_it_needs(device: NumpyDevice, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, "modernbert/short_window")
    write_model(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, max_tokens=64):
        short = device.limit
    with loaded_model(plugin, tmp_path, max_tokens=400):
        assert short < device.limit < 2**28
    device.free = 2**20
    with (
        pytest.raises(PluginError, match=r"needs \d+ MiB of the GPU and 1 are free") as refused,
        loaded_model(plugin, tmp_path, max_tokens=64),
    ):
        pass
    assert refused.value.code == "oom"


class CUDARuntimeError(RuntimeError):
    """As CuPy's, known by its name."""


@pytest.mark.parametrize(
    ("said", "kind", "code"),
    [
        ("cudaErrorIllegalAddress: an illegal memory access was encountered", DeviceGone, "inference_failed"),
        ("cudaErrorMemoryAllocation: out of memory", PluginError, "oom"),
    ],
)
def test_a_fault_of_the_device_ends_the_worker_unless_memory_was_short(
    said: str, kind: type[PluginError], code: str, device: NumpyDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = recorded_encoder(FIXTURES, "xlm_roberta/two_layers")
    write_model(tmp_path, recorded.model)

    def failing(*launch: Any) -> None:
        raise CUDARuntimeError(said)

    with loaded_model(plugin, tmp_path, max_tokens=64) as model:
        monkeypatch.setattr(device, "launch", failing)
        with pytest.raises(PluginError, match=said) as refused:
            plugin.synapse_embed(model, batch_of([np.array([5, 6, 7], np.int32)]), ignore_progress)
    assert (type(refused.value), refused.value.code) == (kind, code)
    with pytest.raises(PluginError, match=said) as refused, loaded_model(plugin, tmp_path, max_tokens=64):
        pass
    assert (type(refused.value), refused.value.code) == (kind, code)


def test_weights_that_half_precision_cannot_hold_are_refused_by_name(device: NumpyDevice, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, "xlm_roberta/two_layers")
    write_model(tmp_path, recorded.model)
    tensors = recorded.model.tensors()
    name = next(name for name in tensors if name.endswith("query.bias"))
    tensors[name][0] = -1e5
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with (
        pytest.raises(PluginError, match=f"{name}.*numbers that f16 has no room for") as refused,
        loaded_model(plugin, tmp_path, dtype="f16", max_tokens=64),
    ):
        pass
    assert refused.value.code == "artifact_invalid"


@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_greedy_tokens_are_those_of_transformers(
    name: str, device: NumpyDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache grows on the way: it starts with room for 16 positions."""
    monkeypatch.setattr(cuda_ops, "_CACHE_STEP", 16)
    recorded = recorded_qwen3(FIXTURES, name)
    write_qwen3(tmp_path, recorded.model, eos_token_id=None)
    generating = SimpleNamespace(synapse_load=plugin.load_decoder, synapse_unload=plugin.synapse_unload)
    # Of the larger two, some: a thread of the device is a fibre of the CPU here.
    prompts = recorded.prompts[: 3 if name in ("pairs", "fours") else None]
    with loaded_model(generating, tmp_path, max_tokens=300, runtime_config={"operation": "generate"}) as model:
        made = [list(model.generate(prompt, {"max_tokens": 64}, ignore_progress).token_ids) for prompt in prompts]
    assert made == recorded.generated[: len(prompts)].tolist()


def test_qwen3_rerankers_agree_with_transformers(device: NumpyDevice, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "one_key_head")
    write_qwen3(tmp_path, recorded.model, readout_ids=list(recorded.readout))
    places, logits = rows_of(recorded), recorded.logits["f64"]
    with loaded_model(plugin, tmp_path, max_tokens=300, runtime_config={"operation": "rerank"}) as model:
        found = plugin.synapse_rerank(model, [recorded.rows[place] for place in places], ignore_progress)
    wanted = 1 / (1 + np.exp(logits[places, 1] - logits[places, 0]))
    assert np.abs(found - wanted).max() <= 1e-5


@pytest.mark.parametrize("dtype", STORED)
def test_qwen3_agrees_with_transformers_in_every_row(dtype: DType, device: NumpyDevice, tmp_path: Path) -> None:
    """Its queries are wider than its hidden rows."""
    recorded = recorded_qwen3(FIXTURES, "pairs")
    assert recorded.model.heads * recorded.model.head_dim > recorded.model.hidden
    write_qwen3(tmp_path, recorded.model)
    places = rows_of(recorded, 7)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest) as model:
        found = plugin.synapse_embed(model, batch_of([recorded.rows[p] for p in places], "last"), ignore_progress)
    wanted = recorded.vectors["f64"][places]
    assert np.sum(found.astype(np.float64) * wanted, axis=1).min() >= {"f32": 0.999999, "f16": 0.9999}[dtype]


@pytest.mark.parametrize("name", sorted(CROSS_ENCODERS))
def test_rerankers_agree_with_transformers(name: str, device: NumpyDevice, tmp_path: Path) -> None:
    recorded = recorded_pairs(FIXTURES, name)
    write_model(tmp_path, recorded.model)
    places = rows_of(recorded)
    with loaded_model(plugin, tmp_path, max_tokens=recorded.longest, runtime_config=RERANK) as model:
        found = plugin.synapse_rerank(model, [recorded.rows[place] for place in places], ignore_progress)
    assert np.abs(found - recorded.f64[places]).max() <= 1e-4


def test_a_launch_that_covers_half_the_rows_is_seen(
    device: NumpyDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    write_qwen3(tmp_path, recorded.model)
    places = rows_of(recorded)
    launch = NumpyDevice.launch

    def halved(self: NumpyDevice, kernel: str, grid: Any, block: int, arguments: Any) -> None:
        if kernel.startswith("rotated"):
            grid = (max(1, grid[0] // 2),)
        launch(self, kernel, grid, block, arguments)

    monkeypatch.setattr(NumpyDevice, "launch", halved)
    with loaded_model(plugin, tmp_path, max_tokens=recorded.longest) as model:
        found = plugin.synapse_embed(model, batch_of([recorded.rows[p] for p in places], "last"), ignore_progress)
    assert not np.isfinite(found).all()


def test_heads_wider_than_any_kernel_are_refused(device: NumpyDevice) -> None:
    ops = SingleOps(device, "f32").make(None, max_tokens=8)  # type: ignore[arg-type]
    wide = Heads(np.zeros((1, 1, 130), np.float32), 0, 1, 130, 1)
    batch = Batch(np.zeros((1, 1), np.int32), np.ones(1, np.int32))
    for refused in (
        lambda: ops.attention(wide, wide, wide, batch, scale=1.0),
        lambda: ops.rope(wide, wide.whole, batch),
    ):
        with pytest.raises(ValueError, match="130 features are wider than 128"):
            refused()
