"""The seam to Core ML: every name the real runtime uses exists, and the interpreter obeys the same contract."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from synapse_ane import core_ml_runtime, interpreted
from synapse_ane.core_ml_runtime import CoreMLTools, Placement, _counted, least_share, only_output, together
from synapse_ane.interpreted_runtime import InterpretedRuntime
from synapse_ane.mil import TARGET, Function, Program, ct, mb, types
from synapse_ane.program import MAIN, RecordedProgram, save_package

pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


def test_every_name_of_coremltools_exists() -> None:
    tree = ast.parse(Path(core_ml_runtime.__file__).read_text("utf-8"))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [
        (node.module, alias.name) for node in imported for alias in node.names if "coremltools" in str(node.module)
    ]
    assert len(names) == 3
    for module, name in names:
        assert hasattr(importlib.import_module(str(module)), name)
    chains = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    for chain in (chain for chain in chains if chain.startswith("ct.")):
        held = ct
        for part in chain.split(".")[1:]:
            assert hasattr(held, part), chain
            held = getattr(held, part)


def test_every_call_of_coremltools_fits_its_signature() -> None:
    from coremltools.models import compute_plan
    from coremltools.models.compute_plan import MLComputePlan

    inspect.signature(ct.models.utils.compile_model).bind("package", destination_path="compiled")
    inspect.signature(ct.models.CompiledMLModel).bind(
        "compiled", compute_units=ct.ComputeUnit.CPU_AND_NE, function_name=None
    )
    inspect.signature(ct.models.CompiledMLModel.predict).bind(None, {"x": 0})
    inspect.signature(MLComputePlan.load_from_path).bind("compiled", compute_units=ct.ComputeUnit.CPU_AND_NE)
    inspect.signature(MLComputePlan.get_compute_device_usage_for_mlprogram_operation).bind(None, "operation")
    assert isinstance(inspect.getattr_static(MLComputePlan, "model_structure"), property)
    for holder, fields in {
        "MLModelStructure": {"program"},
        "MLModelStructureProgram": {"functions"},
        "MLModelStructureProgramFunction": {"block"},
        "MLModelStructureProgramBlock": {"operations"},
        "MLModelStructureProgramOperation": {"operator_name"},
        "MLComputePlanDeviceUsage": {"preferred_compute_device"},
    }.items():
        assert fields <= set(getattr(compute_plan, holder).__annotations__), holder


def doubling(path: Path) -> Path:
    program = Program()
    with Function({"x": mb.placeholder((1, 2, 1, 3), dtype=types.fp16)}, opset_version=TARGET) as function:
        function.set_outputs([mb.add(x=function.inputs["x"], y=function.inputs["x"], name="output")])
        program.add_function(MAIN, function)
    save_package({"tokens_3": RecordedProgram(program, ())}, path)
    return path


RUNTIMES = [
    InterpretedRuntime,
    pytest.param(
        CoreMLTools,
        marks=[
            pytest.mark.hardware,
            pytest.mark.skipif(sys.platform != "darwin", reason="Core ML runs on a Mac alone"),
        ],
    ),
]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_runs_a_function_of_a_package(runtime: type, tmp_path: Path) -> None:
    package, compiled = doubling(tmp_path / "doubling.mlpackage"), tmp_path / "doubling.mlmodelc"
    x = np.arange(6, dtype=np.float16).reshape(1, 2, 1, 3)
    runtime().compile(package, compiled)
    with pytest.raises(RuntimeError, match="there already"):
        runtime().compile(package, compiled)
    for name in ("tokens_3", None):
        program = runtime().load(compiled, name)
        assert only_output(program.predict({"x": x}), "output").tolist() == (x + x).tolist()
        share = runtime().placement(compiled, name).share
        assert share is not None
        assert 0.0 <= share <= 1.0
    with pytest.raises(RuntimeError):
        program.predict({"x": x[:, :1]})
    for refused in (runtime().load, runtime().placement):
        with pytest.raises(RuntimeError):
            refused(compiled, "tokens_4")
    (schema,) = json.loads((compiled / "metadata.json").read_text("utf-8"))
    assert schema["inputSchema"][0]["name"] == "x"
    assert json.loads(schema["inputSchema"][0]["shape"]) == [1, 2, 1, 3]


def test_placement_shares() -> None:
    assert Placement(9, 0, 1).share == pytest.approx(0.9)
    # A plan made for another function tells nothing of this one: that is no share of nothing.
    assert Placement(0, 0, 0).share is None
    assert together([Placement(9, 0, 1), Placement(0, 0, 0)]).share is None
    assert least_share([Placement(9, 0, 1), Placement(0, 0, 0)]) is None
    assert least_share([Placement(9, 0, 1), Placement(1, 1, 0)]) == 0.5
    assert least_share([]) is None
    both = together([Placement(9, 0, 1, frozenset({"cast"})), Placement(1, 2, 3, frozenset({"gather"}))])
    assert both == Placement(10, 2, 4, frozenset({"cast", "gather"}))
    with pytest.raises(RuntimeError, match="'output'"):
        only_output({"other": np.zeros(1)}, "output")


def test_operations_of_a_plan_are_counted_by_device_and_constants_by_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from coremltools.models import compute_device

    kinds = {name: type(name, (), {}) for name in ("MLNeuralEngineComputeDevice", "MLGPUComputeDevice", "CPU")}
    for name in ("MLNeuralEngineComputeDevice", "MLGPUComputeDevice"):
        monkeypatch.setattr(compute_device, name, kinds[name])
    told = [("ios18.const", None), ("ios18.conv", "MLNeuralEngineComputeDevice"), ("ios18.cast", "CPU"),
            ("ios18.gather", "MLGPUComputeDevice")]  # fmt: skip
    usages = [
        (SimpleNamespace(operator_name=name), device and SimpleNamespace(preferred_compute_device=kinds[device]()))
        for name, device in told
    ]
    assert _counted(usages) == Placement(1, 1, 1, frozenset({"cast", "gather"}))
    assert _counted([(operation, None) for operation, _ in usages]).share is None


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (lambda x: mb.sin(x=x), "'sin'"),
        (lambda x: mb.conv(x=x, weight=np.ones((1, 2, 1, 3), np.float16)), r"\(1, 2, 1, 3\)"),
        (lambda x: mb.slice_by_index(x=x, begin=[0, 0, 0, 0], end=[1, 2, 1, 3], stride=[1, 1, 1, 2]), "strides"),
    ],
)
def test_the_interpreter_refuses_by_name_what_it_has_no_step_for(operation: Any, said: str) -> None:
    with Function({"x": mb.placeholder((1, 2, 1, 3), dtype=types.fp16)}, opset_version=TARGET) as function:
        function.set_outputs([operation(function.inputs["x"])])
    with pytest.raises(NotImplementedError, match=said):
        interpreted.run(function, {"x": np.zeros((1, 2, 1, 3), np.float16)})
