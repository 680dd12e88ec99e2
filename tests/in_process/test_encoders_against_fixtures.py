"""XLM-RoBERTa and ModernBERT on the reference against what transformers computed (scripts/make_encoder_fixtures.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.families.bert import BertConfig
from synapse_host.families.xlm_roberta import read_config
from synapse_host.hookspecs import PluginError, Pooling
from synapse_host.model_files.architectures import read_architecture
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.owned_engine import engine as engine_module
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import loaded_model
from synapse_host.testing.models.recorded_encoders import (
    POOLINGS,
    RECORDED,
    RecordedEncoder,
    embedded,
    recorded_encoder,
)
from synapse_host.testing.models.tiny_encoders import TINY_XLM_ROBERTAS
from synapse_host.testing.models.tiny_models import write_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
#: Largest error of a component of a unit vector against float32 transformers, and against float64.
MAX_ERROR, MAX_ERROR_F64 = 2e-6, 2e-7


def reference_vectors(recorded: RecordedEncoder, directory: Path, pooling: Pooling) -> Any:
    write_model(directory, recorded.model)
    with loaded_model(reference_plugin, directory, max_tokens=recorded.longest) as model:
        return embedded(reference_plugin, model, recorded.rows, pooling)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("name", RECORDED)
def test_tiny_encoders_agree_with_transformers(name: str, pooling: Pooling, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    found = reference_vectors(recorded, tmp_path, pooling)
    assert len({len(row) for row in recorded.rows}) == 24
    assert np.abs(found - recorded.f32[pooling]).max() <= MAX_ERROR
    assert np.abs(found - recorded.f64[pooling]).max() <= MAX_ERROR_F64


FAULTS: Mapping[str, tuple[str, Any]] = {
    "positions from the table's start": (
        "xlm_roberta/two_layers",
        lambda c: replace(c, first_position=0, positions=132),
    ),
    "positions one row early": ("xlm_roberta/two_layers", lambda c: replace(c, first_position=1, positions=131)),
    "tanh for erf": ("xlm_roberta/three_layers", lambda c: replace(c, gelu="tanh")),
    "erf for tanh": ("xlm_roberta/pad_four", lambda c: replace(c, gelu="erf")),
    "window one token wider": ("modernbert/as_published", lambda c: replace(c, window=c.window + 1)),
    "window one token short": ("modernbert/short_window", lambda c: replace(c, window=c.window - 1)),
    "window not halved": ("modernbert/biased", lambda c: replace(c, window=11)),
    "rotary bases swapped": (
        "modernbert/as_published",
        lambda c: replace(c, global_theta=c.local_theta, local_theta=c.global_theta),
    ),
    "one rotary base for all layers": ("modernbert/biased", lambda c: replace(c, local_theta=c.global_theta)),
    "every layer global": ("modernbert/short_window", lambda c: replace(c, local_layers=(False,) * c.layers)),
    "first layer local": ("modernbert/short_window", lambda c: replace(c, local_layers=(True, *c.local_layers[1:]))),
    "tanh for erf in the gate": ("modernbert/biased", lambda c: replace(c, gelu="tanh")),
    "erf for tanh in the gate": ("modernbert/tanh_gelu", lambda c: replace(c, gelu="erf")),
    "another eps": ("modernbert/tanh_gelu", lambda c: replace(c, eps=1e-5)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_passes_the_bound_by_far(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, plant = FAULTS[fault]
    recorded = recorded_encoder(FIXTURES, name)
    read = engine_module._read_config
    monkeypatch.setattr(engine_module, "_read_config", lambda *arguments: plant(read(*arguments)))
    found = reference_vectors(recorded, tmp_path, "mean")
    assert np.abs(found - recorded.f32["mean"]).max() > 10 * MAX_ERROR


@pytest.mark.parametrize("name", [name for name in RECORDED if name.startswith("modernbert/")])
def test_a_gate_of_the_second_half_passes_the_bound_by_far(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    geglu = ReferenceOps.geglu
    swapped = lambda self, x, kind: geglu(self, np.roll(x, x.shape[-1] // 2, axis=-1), kind)  # noqa: E731
    monkeypatch.setattr(ReferenceOps, "geglu", swapped)
    rows = [row for row in recorded.rows if len(row) <= 64]
    write_model(tmp_path, recorded.model)
    with loaded_model(reference_plugin, tmp_path, max_tokens=64) as model:
        found = embedded(reference_plugin, model, rows, "mean")
    assert np.abs(found - recorded.f32["mean"][: len(rows)]).max() > 10 * MAX_ERROR


@pytest.mark.parametrize("name", RECORDED)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(name: str, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    rows = [row for row in recorded.rows if len(row) <= 300]
    write_model(tmp_path, recorded.model)
    with loaded_model(reference_plugin, tmp_path, max_tokens=recorded.longest) as model:
        together = embedded(reference_plugin, model, rows, "mean")
        order = np.random.default_rng(5).permutation(len(rows))
        shuffled = embedded(reference_plugin, model, [rows[place] for place in order], "mean")
        alone = [embedded(reference_plugin, model, [row], "mean")[0] for row in rows]
    assert shuffled.tobytes() == together[order].tobytes()
    assert [len(row) for row, a, b in zip(rows, alone, together, strict=True) if a.tobytes() != b.tobytes()] == []


def test_the_limit_is_the_table_less_the_rows_no_token_takes(tmp_path: Path) -> None:
    tiny = TINY_XLM_ROBERTAS["pad_four"]
    config = write_model(tmp_path, tiny)
    assert config["max_position_embeddings"] == 305
    assert (
        read_architecture(config).max_positions == read_config(config, pooling="mean", normalize=True).positions == 300
    )
    with (
        pytest.raises(PluginError, match="max_tokens 301 passes the 300 positions"),
        loaded_model(reference_plugin, tmp_path, max_tokens=301),
    ):
        pass


@pytest.mark.parametrize(("pad", "problem"), [("1", "pad_token_id '1'"), (-1, "pad_token_id -1"), (304, "first 305")])
def test_a_padding_id_that_leaves_no_position_is_refused(pad: Any, problem: str) -> None:
    config = TINY_XLM_ROBERTAS["pad_four"].config() | {"pad_token_id": pad}
    with pytest.raises(ValueError, match=problem):
        read_config(config, pooling="mean", normalize=True)


def test_a_bert_has_no_unused_positions() -> None:
    config = TINY_XLM_ROBERTAS["two_layers"].config()
    bert = BertConfig.from_config(config, pooling="mean", normalize=True)
    assert (bert.first_position, bert.positions) == (0, 132)
