"""The benchmark for a GPU, run whole where there is none; the roofline page, held to its formulas and the engine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synapse_owned_cuda import evidence as evidence_module
from synapse_owned_cuda import plugin
from synapse_owned_cuda.cpu_shim.launching import CpuDevice
from synapse_owned_cuda.cpu_shim.numpy_device import NumpyDevice
from synapse_owned_cuda.driver import DriverFacts
from synapse_owned_cuda.kernel_table import SOURCE

from benchmarks import cuda_device, cuda_kernels, cuda_parity, cuda_roofline
from benchmarks.cuda_evidence import STOPPED, Evidence, part_of, watched
from benchmarks.cuda_roofline import CARDS, Call, block_works, computed_keys
from benchmarks.random_checkpoints import SHAPES
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3, write_qwen3

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "cuda-roofline.md"


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return cuda_device.measured(stand_in=True, out=tmp_path_factory.mktemp("evidence"))


def test_every_part_runs_on_the_stand_in(evidence: Evidence) -> None:
    assert list(evidence.parts) == ["agreement", "kernels of gte", "kernels of qwen3", "speed", "transformers"]
    assert evidence.notes == []
    assert evidence.failures() == []
    for row in evidence.parts["transformers"]:
        assert "tok/s" in row or "No module named" in row["error"]


def test_every_family_and_task_agrees(evidence: Evidence) -> None:
    rows = evidence.parts["agreement"]
    assert all(row["agrees"] for row in rows), rows
    families = {(row["model"].partition("/")[0], row["task"]) for row in rows}
    assert families == {
        *((family, "embed") for family in ("bert", "xlm_roberta", "modernbert", "qwen3")),
        *(("qwen3", task) for task in ("rerank", "generate")),
        ("bert", "rerank"),
    }
    assert len(cuda_parity.cases(stand_in=False)) > len(cuda_parity.cases(stand_in=True))


def test_every_kernel_of_a_block_is_timed(evidence: Evidence) -> None:
    for name in ("gte", "qwen3"):
        works = block_works(SHAPES[name].config, cuda_kernels.CALL)
        assert [row["kernel"] for row in evidence.parts[f"kernels of {name}"]] == [work.kernel for work in works]


def test_the_evidence_is_on_disk_and_says_what_it_is_of(evidence: Evidence) -> None:
    found = json.loads(evidence.path.read_text("utf-8"))
    assert found["stand_in"] is True
    assert found["parts"]["speed"] == evidence.parts["speed"]
    page = evidence.path.with_suffix(".md").read_text("utf-8")
    assert "NumPy stood in for the device: nothing here is a figure of a GPU." in page


def test_a_part_that_fails_or_takes_too_long_leaves_the_others(tmp_path: Path) -> None:
    kept = Evidence(tmp_path, {"name": "NVIDIA H200"}, stand_in=False)
    with part_of(kept, "one", 5.0):
        kept.add("one", {"a": 1})
        raise RuntimeError("lost")
    with part_of(kept, "two", 0.05):
        spin_past_failures()
    kept.add("three", {"b": 2.5})
    found = json.loads((tmp_path / "cuda-nvidia-h200.json").read_text("utf-8"))
    assert found["notes"] == ["one ended with RuntimeError: lost", "two was cut off after its 0 s"]
    assert found["parts"] == {"one": [{"a": 1}], "three": [{"b": 2.5}]}


def spin_past_failures() -> None:
    """As a part that goes on after what fails: its end must be no such failure."""
    for _ in range(2):
        try:
            began = time.monotonic()
            while time.monotonic() - began < 20:
                pass
        except Exception:
            continue


def test_a_run_that_does_not_end_is_stopped_with_its_findings_on_disk(tmp_path: Path) -> None:
    kept, ended, status = Evidence(tmp_path, {"name": "stuck"}, stand_in=False), threading.Event(), []

    def end(code: int) -> None:
        status.append(code)
        ended.set()

    kept.add("agreement", {"agrees": True})
    with watched(kept, 0.01, end):
        assert ended.wait(20)
    assert status == [STOPPED]
    found = json.loads((tmp_path / "cuda-stuck.json").read_text("utf-8"))
    assert found["parts"] == {"agreement": [{"agrees": True}]}
    assert "did not end by itself" in found["notes"][0]


def test_a_part_gets_what_is_left_of_the_whole(tmp_path: Path) -> None:
    late = cuda_device._Run(Evidence(tmp_path, {}, stand_in=True), time.monotonic() - 1)
    assert late._left(100.0) < 0
    late._part("agreement", iter(lambda: {"endless": 1}, None))
    assert any("agreement was cut off" in failure for failure in late._evidence.failures())


@pytest.mark.parametrize(
    ("rows", "note", "failed"),
    [
        ([{"agrees": True}], None, False),
        ([{"agrees": True}, {"agrees": False}], None, True),
        ([{"agrees": True}, {"error": "lost"}], None, True),
        ([{"agrees": True}], "agreement was cut off after its 100 s", True),
        ([{"agrees": True}], "transformers was cut off after its 75 s", False),
        ([], None, True),
    ],
)
def test_a_run_fails_by_what_is_ours(rows: list[Any], note: str | None, failed: bool, tmp_path: Path) -> None:
    kept = Evidence(tmp_path, {}, stand_in=True)
    for row in rows:
        kept.add("agreement", row)
    kept.add("transformers", {"error": "No module named 'torch'"})
    if note is not None:
        kept.note(note)
    assert bool(kept.failures()) is failed


@pytest.mark.parametrize(("agrees", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_tells_of_agreement(
    agrees: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(stand_in: bool, out: Path | None) -> Evidence:
        kept = Evidence(out or tmp_path, {"name": "stand-in"}, stand_in)
        kept.add("agreement", {"agrees": agrees})
        return kept

    monkeypatch.setattr(cuda_device, "measured", measured)
    assert cuda_device.main(["--stand-in"]) == status
    assert ("FAILED agreement" in capsys.readouterr().err) is not agrees


def test_a_machine_without_a_gpu_is_told_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(evidence_module, "read_driver", lambda: DriverFacts(loaded=False))
    assert cuda_device.main(["--out", str(tmp_path)]) == cuda_device.NO_DEVICE
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "no NVIDIA driver is installed" in said.err
    assert "--stand-in" in said.err
    assert list(tmp_path.iterdir()) == []


def test_the_parts_take_less_than_six_minutes() -> None:
    assert sum(cuda_device.BUDGETS.values()) <= cuda_device.WHOLE < cuda_device.LAST < 360


@pytest.mark.parametrize(
    ("name", "card"),
    [("NVIDIA GeForce RTX 4090", "RTX 4090"), ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("NVIDIA H200", "H200 SXM")],
)
def test_cards_are_known_by_the_names_drivers_give_them(name: str, card: str) -> None:
    found = cuda_kernels.known_card(name)
    assert found is not None
    assert found.name == card
    assert cuda_kernels.known_card("stand-in") is None


# --- the roofline ----------------------------------------------------------------------------------------------


def test_the_page_has_the_tables_of_the_formulas() -> None:
    page = PAGE.read_text("utf-8")
    for table in (
        cuda_roofline.bar_table(),
        cuda_roofline.kernel_table("gte"),
        cuda_roofline.kernel_table("qwen3"),
        cuda_roofline.forward_table(),
    ):
        assert table in page, f"run python -m benchmarks.cuda_roofline and put this into {PAGE.name}:\n{table}"


@pytest.fixture(scope="module")
def device(launcher: Path) -> Iterator[NumpyDevice]:
    with CpuDevice(launcher) as cpu:
        yield NumpyDevice(cpu)


@pytest.mark.parametrize("family", ["modernbert", "qwen3"])
def test_a_block_makes_the_launches_the_formulas_count(
    family: str, device: NumpyDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_open_device", lambda: device)
    made = [launches_of(family, layers, device, tmp_path / str(layers)) for layers in (2, 3)]
    name = {"modernbert": "gte", "qwen3": "qwen3"}[family]
    assert made[1] - made[0] == sum(work.launches for work in block_works(SHAPES[name].config, Call(2, 8)))


def launches_of(family: str, layers: int, device: NumpyDevice, folder: Path) -> int:
    folder.mkdir()
    if family == "qwen3":
        write_qwen3(folder, TinyQwen3(1, 16, layers, 2, 1, 8, 24, 64, 64, tied=True))
    else:
        write_model(folder, TinyModernBert(1, 16, layers, 2, 24, 64, 64, span=8))
    with loaded_model(plugin, folder, max_tokens=32) as model:
        device.launches.clear()
        plugin.synapse_embed(model, batch_of(seeded_rows([5, 6], 64), "cls"), ignore_progress)
    return len(device.launches)


def test_tiles_are_counted_as_the_kernels_skip_them() -> None:
    source = SOURCE.read_text("utf-8")
    assert "ATTENTION(attention64_f16, Half, 64, 64)" in source
    assert "ATTENTION(attention128_f16, Half, 128, 32)" in source
    assert "#define WARPS 4\n#define WARP_QUERIES 16\n" in source
    assert computed_keys(64, 64) == 64 * 64
    assert computed_keys(65, 64) == 2 * 64 * 128
    assert computed_keys(128, 128, causal=True) == 64 * 64 + 64 * 128
    # The second block of queries, 64 to 127, sees keys 54 to 137: two tiles of 64.
    assert computed_keys(192, 64, window=10) == 64 * 64 * (2 + 2 + 2)


def test_every_bound_is_told() -> None:
    works: list[Any] = [work for shape in SHAPES.values() for work in block_works(shape.config, Call(8, 320))]
    assert {work.bound(card) for work in works for card in CARDS} == {"arithmetic", "memory"}
