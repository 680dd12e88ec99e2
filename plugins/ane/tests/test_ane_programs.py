"""What a program is made of: cut attention, banded windows, weights stored once, nothing past half precision."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_ane import attention_program, program
from synapse_ane.attention_program import Sight, tiles
from synapse_ane.closed_program import WholeModel, record_whole
from synapse_ane.interpreted import open_package
from synapse_ane.mil import ct
from synapse_ane.program import (
    RecordedProgram,
    SegmentShape,
    building_folder,
    convert,
    function_name,
    functions_of,
    record,
    save_package,
)
from synapse_ane.program_inputs import count_inputs, looked_up

from synapse_host.owned_engine.executables import Build
from synapse_host.owned_engine.family_table import FAMILIES
from synapse_host.testing.models.tiny_modernbert import TinyModernBert

pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")

MODEL = TinyModernBert(45, 20, 4, 2, 26, 97, 8192, span=128)
#: Weights that outweigh the mask of a window.
WIDE = TinyModernBert(46, 132, 3, 2, 300, 97, 8192, span=128)


class Weights:
    """A checkpoint in memory, names without their publisher's prefix."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self._tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}

    def tensor(self, name: str) -> Any:
        return self._tensors[name]


def build_of(model: TinyModernBert) -> Build:
    family = FAMILIES["modernbert"]
    config = family.config(model.config(), pooling="cls", normalize=True)

    def build(ops: Any, batch: Any, hidden: Any) -> Any:
        x = family.stem(ops, config, batch)
        for i in range(config.layers):
            x = family.block(ops, config, i, x, batch)
        return ops.result(family.head(ops, config, x, batch))

    return build


def recorded(length: int, tensors: dict[str, Any] | None = None, model: TinyModernBert = MODEL) -> RecordedProgram:
    shape = SegmentShape(length, model.hidden, has_stem=True)
    return record(build_of(model), Weights(tensors or model.tensors()), shape, max_tokens=8192)


def test_queries_of_long_rows_are_cut_and_see_all_they_may() -> None:
    for length in (128, 512, 1024, 2048, 4096, 8192):
        for causal, window in ((False, None), (True, None), (False, 64), (True, 64)):
            seen = np.zeros((length, length), bool) if length <= 2048 else None
            covered = 0
            assert (len(tiles(length, Sight(None, causal, window))) > 1) == (length > (256 if window else 512))
            for tile in tiles(length, Sight(None, causal, window)):
                assert tile.first == covered
                covered = tile.stop
                assert (tile.stop - tile.first) * (tile.end - tile.begin) <= attention_program.SCORES_AT_ONCE
                if seen is not None:
                    seen[tile.first : tile.stop, tile.begin : tile.end] = True
            assert covered == length
            if seen is not None:
                distance = np.arange(length)[:, None] - np.arange(length)[None, :]
                may = np.ones_like(seen)
                may &= distance >= 0 if causal else True
                may &= np.abs(distance) <= window if window is not None else True
                assert not (may & ~seen).any()


def test_no_operation_of_a_long_program_passes_what_the_engine_takes_and_no_mask_is_square() -> None:
    long = recorded(8192).program
    for operation in long.functions["main"].operations:
        for output in operation.outputs:
            shape = output.shape
            assert all(size <= 16384 for size in shape), (operation.name, shape)
            if operation.op_type == "const" and len(shape) == 4:
                assert np.prod(shape) <= 8192 * MODEL.hidden, (operation.name, shape)
            if operation.op_type == "softmax":
                assert shape[-1] * shape[-2] <= attention_program.SCORES_AT_ONCE


def test_programs_of_one_package_share_their_weights(tmp_path: Path) -> None:
    def size(path: Path) -> int:
        return sum(file.stat().st_size for file in path.rglob("weight.bin"))

    one, two = (recorded(length, model=WIDE) for length in (128, 256))
    save_package({function_name(128): one}, tmp_path / "one.mlpackage")
    save_package({function_name(256): two}, tmp_path / "two.mlpackage", onto=tmp_path / "one.mlpackage")
    assert functions_of(tmp_path / "two.mlpackage") == ["tokens_128", "tokens_256"]
    assert sorted(open_package(tmp_path / "two.mlpackage")) == ["tokens_128", "tokens_256"]
    shared = sum(np.asarray(tensor).size * 2 for name, tensor in WIDE.tensors().items() if "tok_emb" not in name)
    grown = size(tmp_path / "two.mlpackage") - size(tmp_path / "one.mlpackage")
    assert size(tmp_path / "one.mlpackage") > 0.8 * shared
    # A second shape brings the angles and masks of its own length, and no weight again.
    assert grown < 0.5 * shared


def test_a_conversion_leaves_nothing_but_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, kept = tmp_path / "usual", tmp_path / "kept"
    usual.mkdir()
    kept.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(usual))
    save_package({function_name(64): recorded(64)}, kept / "one.mlpackage")
    save_package({function_name(96): recorded(96)}, kept / "two.mlpackage", onto=kept / "one.mlpackage")
    assert sorted(path.name for path in kept.iterdir()) == ["one.mlpackage", "two.mlpackage"]
    assert list(usual.iterdir()) == []
    assert tempfile.gettempdir() == str(usual)


def test_the_passes_that_are_left_out_would_have_changed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything() -> Any:
        passes = ct.PassPipeline()
        passes.remove_passes({"common::fuse_elementwise_to_batchnorm", "common::guard_negative_gather_indices"})
        return passes

    model = TinyModernBert(45, 20, 2, 2, 26, 97, 8192, span=128)
    whole = WholeModel(FAMILIES["modernbert"], model.config(), "embed")
    made: list[list[bytes]] = []
    for passes in (program._passes, everything):
        monkeypatch.setattr(program, "_passes", passes)
        programs = [recorded(600, model=model), record_whole(whole, Weights(model.tensors()), 300)]
        with building_folder():
            made.append([convert(each).get_spec().mlProgram.SerializeToString(deterministic=True) for each in programs])
    assert len(everything().passes) > 2 * len(program.PASSES)
    assert made[0] == made[1]


def test_a_weight_past_half_precision_is_refused_by_name() -> None:
    tensors = MODEL.tensors()
    name = next(name for name in tensors if name.endswith("layers.1.mlp.Wo.weight"))
    tensors[name] = tensors[name] * np.float32(1e6)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.Wo\.weight.*65504"):
        recorded(128, tensors)


def test_inputs_of_a_row() -> None:
    inputs = count_inputs(3, 8)
    assert inputs["visible"].ravel().tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert inputs["last"].ravel().tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert float(inputs["share"].sum()) == pytest.approx(1.0, abs=1e-3)
    for count in (0, 9, -1):
        with pytest.raises(ValueError, match=str(count)):
            count_inputs(count, 8)
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert looked_up(table, [2, 0])[0, :, 0, :].T.tolist() == [[6, 7, 8], [0, 1, 2]]
