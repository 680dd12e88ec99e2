"""The verdict on a machine names the floor that failed, and the description needs no heavy import."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from synapse_owned_cpu import evidence, plugin
from synapse_owned_cpu.evidence import Machine, dtypes_of, judge

from synapse_host.backends.description_check import check_description, check_evidence

GOOD = Machine("linux", "x86_64", frozenset({"avx2", "avx512f", "avx512_bf16"}), 16_000, "2026.4.1")

REFUSALS = [
    ({"platform": "win32"}, "not_supported_on_platform", "not_supported_on_platform", "'win32'"),
    ({"arch": "riscv64"}, "device_below_floor", "device_unsupported", "'riscv64'"),
    ({"isa": frozenset({"sse4_2"})}, "device_below_floor", "device_below_floor", "lacks avx2"),
    ({"memory_mb": 512}, "device_below_floor", "device_below_floor", "512 MB"),
    ({"openvino": None}, "worker_missing", "runtime_missing", "not installed"),
    ({"openvino": "2025.4.0"}, "worker_missing", "runtime_too_old", "2025.4.0"),
    ({"fault": "RuntimeError: no CPU"}, "worker_missing", "probe_failed", "no CPU"),
]


@pytest.mark.parametrize(("change", "reason", "detail", "said"), REFUSALS, ids=[row[3] for row in REFUSALS])
def test_a_machine_below_the_floor_is_refused_with_the_reason(
    change: object, reason: str, detail: str, said: str
) -> None:
    verdict = check_evidence(judge(replace(GOOD, **change)), "cpu")  # type: ignore[arg-type]
    assert (verdict.status, verdict.reason, verdict.reason_detail) == ("refused", reason, detail)
    assert said in str(verdict.message)
    assert verdict.required
    assert verdict.observed["openvino"] == replace(GOOD, **change).openvino  # type: ignore[arg-type]


def test_a_machine_above_the_floor_is_accepted_with_its_facts() -> None:
    verdict = judge(GOOD)
    assert verdict.status == "ok"
    assert verdict.required == {
        "platform": ["linux", "darwin"],
        "isa": "avx2",
        "memory_mb": 1024,
        "openvino": ">=2026.0",
    }
    assert verdict.observed["isa"] == ["avx2", "avx512f", "avx512_bf16"]
    assert verdict.observed["dtypes"] == ["bf16", "f32"]


@pytest.mark.parametrize(
    ("isa", "dtypes"), [({"avx2"}, ("f32",)), ({"amx_bf16"}, ("bf16", "f32")), ({"avx512_bf16"}, ("bf16", "f32"))]
)
def test_bf16_is_offered_only_where_the_processor_multiplies_it(isa: set[str], dtypes: tuple[str, ...]) -> None:
    assert dtypes_of(frozenset(isa)) == dtypes


def test_flags_are_those_of_every_core() -> None:
    text = "processor : 0\nflags\t\t: avx2 avx512f\n\nprocessor : 1\nflags\t\t: avx2\n"
    assert evidence._isa_of_cpuinfo(text) == {"avx2"}
    assert evidence._isa_of_cpuinfo("Features : fp asimd\n") == {"fp", "asimd"}
    assert evidence._isa_of_cpuinfo("") == frozenset()


def test_this_machine_passes_the_probe() -> None:
    verdict = check_evidence(plugin.synapse_probe_capability(), "cpu")
    assert verdict.status == "ok", verdict.message
    (runtime,) = verdict.premises.files
    assert Path(runtime).parent.name == "openvino"


def test_a_runtime_that_cannot_run_is_told_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from synapse_owned_cpu import graph_backend

    def broken(dtype: str) -> None:
        raise RuntimeError(f"no {dtype} kernel")

    monkeypatch.setattr(graph_backend, "run_trial_graph", broken)
    verdict = evidence.probe()
    assert (verdict.reason, verdict.reason_detail) == ("worker_missing", "probe_failed")
    assert "no bf16 kernel" in str(verdict.message) or "no f32 kernel" in str(verdict.message)


def test_the_description_is_sound_and_names_what_moves_bits() -> None:
    description = check_description(plugin.synapse_describe(), "cpu")
    assert (description.engine, description.device_class, description.extra) == ("owned-cpu", "cpu", "cpu")
    assert set(description.build_flags) == {"bucket_policy", "openvino"}
    release = description.build_flags["openvino"]
    assert release == ".".join(str(evidence.openvino_version()).split(".")[:2])
    assert len(str(description.kernel_revision)) == len(str(description.manifest_digest)) == 64


def test_describing_imports_neither_numpy_nor_the_runtime() -> None:
    program = (
        "import sys\nfrom synapse_owned_cpu import plugin\nassert 'synapse_host.owned_engine' not in sys.modules\n"
        "plugin.synapse_describe()\nassert not {'numpy', 'openvino'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
