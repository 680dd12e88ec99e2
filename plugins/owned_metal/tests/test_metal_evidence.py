"""What the Metal backends ask of a machine, and how they refuse one."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synapse_owned_metal import decode_plugin, device, evidence, lane, plugin
from synapse_owned_metal.device import Device, chosen_device
from synapse_owned_metal.evidence import CPU_NOTE, Machine, judge
from synapse_owned_metal.memory_plan import CallSize, memory_plan

from synapse_host.backends.description_check import check_description, check_evidence
from synapse_host.hookspecs import PluginError
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import TinyBert, write_model

METAL, CPU = Device("metal"), Device("cpu")
ALLOWED = {"allow_cpu": "true"}
MAC = Machine("darwin-arm64", "15.1", True, 16_384, "0.32.4")
LINUX = Machine("linux-x86_64", "", False, 16_384, "0.32.4")


@pytest.mark.parametrize(
    ("machine", "reason", "detail", "word"),
    [
        (replace(MAC, platform="darwin-x86_64"), "not_supported_on_platform", "not_supported_on_platform", "x86_64"),
        (LINUX, "not_supported_on_platform", "not_supported_on_platform", "linux"),
        (replace(MAC, macos="13.6"), "device_below_floor", "os_too_old", "macOS 13.6 is older than 14.0"),
        (replace(MAC, macos=""), "device_below_floor", "os_too_old", "macOS is '', which is none"),
        (replace(MAC, macos="-14.1"), "device_below_floor", "os_too_old", "macOS is '-14.1', which is none"),
        (replace(MAC, macos="99999999.0"), "device_below_floor", "os_too_old", "'99999999.0', which is none"),
        (replace(MAC, memory_mb=-1), "device_below_floor", "insufficient_memory", "has -1 MB of memory"),
        (replace(MAC, memory_mb=2**44), "device_below_floor", "insufficient_memory", "which cannot be"),
        (replace(MAC, mlx="newest"), "worker_missing", "runtime_too_old", "MLX 'newest' is of no version"),
        (replace(MAC, metal=False), "device_missing", "metal_no_device", "no Metal device"),
        (replace(MAC, memory_mb=2048), "device_below_floor", "insufficient_memory", "2048 MB"),
        (replace(MAC, mlx=None, metal=False), "worker_missing", "runtime_missing", "synapse-host[metal]"),
        (replace(MAC, mlx="0.9.1"), "worker_missing", "runtime_too_old", "MLX '0.9.1' is older than 0.30"),
        (replace(MAC, fault="RuntimeError: no"), "worker_missing", "probe_failed", "RuntimeError: no"),
    ],
)
def test_a_machine_below_the_floor_is_refused_with_its_reason(
    machine: Machine, reason: str, detail: str, word: str
) -> None:
    found = check_evidence(judge(machine, METAL), "metal")
    assert (found.status, found.reason, found.reason_detail) == ("refused", reason, detail)
    assert word in str(found.message)
    assert set(found.required) <= set(found.observed)


@pytest.mark.parametrize("macos", ["14.0", "14.7.1", "15.1", "26.0"])
def test_a_mac_above_the_floor_runs(macos: str) -> None:
    found = judge(replace(MAC, macos=macos), METAL)
    assert (found.status, found.message, found.observed["device"]) == ("ok", None, "metal")


def test_the_cpu_device_runs_where_a_developer_let_it_and_says_so() -> None:
    found = check_evidence(judge(LINUX, CPU), "metal")
    assert (found.status, found.message, found.observed["device"]) == ("ok", CPU_NOTE, "cpu")


@pytest.mark.parametrize(
    ("settings", "mac", "metal", "kind"),
    [
        ({}, False, False, "metal"),
        ({}, True, True, "metal"),
        (ALLOWED, False, False, "cpu"),
        (ALLOWED, True, True, "metal"),
        (ALLOWED, True, False, "cpu"),
        ({"allow_cpu": "false"}, False, False, "metal"),
    ],
)
def test_the_switch_lets_the_cpu_through_only_where_there_is_no_metal(
    settings: dict[str, str], mac: bool, metal: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "is_metal_platform", lambda: mac)
    monkeypatch.setattr(device, "metal_is_available", lambda: metal)
    assert chosen_device(settings).kind == kind


@pytest.mark.parametrize(("backend", "module"), [("metal", plugin), ("metal-decode", decode_plugin)])
def test_the_device_is_in_every_part_of_the_identity(backend: str, module: Any) -> None:
    real = check_description(module.synapse_describe({}), backend)
    let_through = check_description(module.synapse_describe(ALLOWED), backend)
    assert (real.device_class, let_through.device_class) == ("metal", "cpu")
    assert (real.build_flags["device"], let_through.build_flags["device"]) == ("metal", "cpu")
    assert (real.build_flags["graphs"], let_through.build_flags["graphs"]) == ("compiled", "as-written")
    assert (real.dtypes[0], let_through.dtypes[0]) == ("f16", "f32")
    assert real.platforms == ("darwin-arm64",)
    assert (real.batch_invariant, let_through.batch_invariant) == (False, True)
    assert real.kernel_revision == let_through.kernel_revision


def test_the_two_engines_are_named_as_the_contract_names_them() -> None:
    described = plugin.synapse_describe({}), decode_plugin.synapse_describe({})
    assert [(one.engine, one.tasks) for one in described] == [
        ("owned-metal", ("embed", "rerank")),
        ("owned-metal-decode", ("generate",)),
    ]
    assert described[1].families == ("qwen3",)


def test_the_environment_is_the_hosts_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNAPSE_METAL_ALLOW_CPU", "1")
    assert chosen_device({}).kind == "metal"


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has what is missed here")
def test_a_load_without_the_switch_is_refused_before_the_file_is_read() -> None:
    with pytest.raises(PluginError, match="linux") as refused:
        lane.lane_on(METAL)
    assert refused.value.code == "backend_missing"


def test_the_probe_computes_on_the_device() -> None:
    assert evidence.probe(CPU).status == "ok"


def test_a_device_that_computes_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from synapse_owned_metal import trial

    monkeypatch.setattr(trial.mx, "array_equal", lambda a, b: trial.mx.array(False))
    found = evidence.probe(CPU)
    assert (found.status, found.reason_detail) == ("refused", "probe_failed")
    assert "came out wrong" in str(found.message)


def test_describing_imports_neither_library() -> None:
    code = (
        "import sys\nfrom synapse_owned_metal import plugin, decode_plugin\n"
        "plugin.synapse_describe({})\ndecode_plugin.synapse_describe({})\n"
        "assert not {'numpy', 'mlx'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_thread_may_not_use_the_device(tmp_path: Path) -> None:
    write_model(tmp_path, TinyBert(7, 16, 1, 2, 20, 60, 64))
    caught: list[BaseException] = []
    with loaded_model(plugin, tmp_path, max_tokens=64, settings=ALLOWED) as model:

        def embed() -> None:
            try:
                plugin.synapse_embed(model, batch_of(seeded_rows([3], 60)), ignore_progress)
            except RuntimeError as refusal:
                caught.append(refusal)

        thread = threading.Thread(target=embed)
        thread.start()
        thread.join()
    assert "another thread" in str(caught[0])


def test_the_memory_of_mlx_is_held_to_the_lanes_budget(tmp_path: Path) -> None:
    from synapse_owned_metal.runtime import mx

    write_model(tmp_path, TinyBert(7, 16, 1, 2, 20, 60, 64))
    with loaded_model(plugin, tmp_path, max_tokens=64, settings=ALLOWED):
        small = mx.set_memory_limit(2**40)
    write_model(tmp_path, TinyBert(7, 64, 1, 2, 20, 6000, 512))
    with loaded_model(plugin, tmp_path, max_tokens=512, settings=ALLOWED):
        large = mx.set_memory_limit(2**40)
    assert 2**28 < small < large < 2**31


def test_a_lane_past_the_working_set_is_refused_with_both_numbers() -> None:
    call = CallSize(tokens=3072, hidden=768, intermediate=1152, tile_scores=2**20)
    fitting = memory_plan(600 << 20, call, device_limit=8 << 30)
    assert fitting.limit < 8 << 30
    assert fitting.cache < fitting.limit
    with pytest.raises(MemoryError, match=r"needs 7\d\d MiB and the device should be asked for no more than 512"):
        memory_plan(600 << 20, call, device_limit=512 << 20)


@pytest.mark.parametrize(
    ("failure", "code", "told"),
    [
        ("[metal::Device] Unable to load kernel steel_gemm\nno symbol", "backend_missing", "steel_gemm no symbol"),
        ("[Compile::eval_cpu] Failed to compile function Add", "backend_missing", "Failed to compile function Add"),
        ("[malloc] Unable to allocate 99 bytes.", "oom", "99 bytes.*; send shorter rows"),
    ],
)
def test_what_mlx_cannot_do_is_named_with_a_remedy(failure: str, code: str, told: str) -> None:
    from synapse_owned_metal.mlx_backend import DeviceOwner

    with pytest.raises(PluginError, match=told) as refused, DeviceOwner().turn():
        raise RuntimeError(failure)
    assert refused.value.code == code
    if code == "backend_missing":
        assert "MLX 0." in str(refused.value)
        assert "; update the system, or reinstall it" in str(refused.value)
