"""Which machines the backend accepts, with the reason of each refusal, and the shapes of its lanes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synapse_ane import plugin
from synapse_ane.evidence import Machine, judge, read_machine
from synapse_ane.shape_ladder import RUNGS, ShapeLadder

MAC = Machine("darwin", "arm64", (15, 1), "9.0")

#: What the switch makes of this machine: a Mac that can do better keeps its Neural Engine.
DEVICE_OF_DEVELOPERS = ("cpu", "interpreter") if judge(read_machine()).status == "refused" else ("ane", "neural-engine")


@pytest.mark.parametrize(
    ("change", "reason", "detail", "said"),
    [
        ({"platform": "linux", "arch": "x86_64"}, "not_supported_on_platform", "not_supported_on_platform", "linux"),
        ({"arch": "x86_64"}, "not_supported_on_platform", "not_supported_on_platform", "darwin-x86_64"),
        ({"macos": (14, 6)}, "device_below_floor", "device_below_floor", "14.6"),
        ({"macos": ()}, "device_below_floor", "device_below_floor", "15.0"),
        ({"coremltools": None}, "worker_missing", "runtime_missing", "pip install"),
        ({"coremltools": "7.2"}, "worker_missing", "runtime_version", "7.2"),
        ({"coremltools": "8.1"}, "worker_missing", "runtime_version", "8.1 is older than 8.2"),
    ],
)
def test_a_machine_below_the_floor_is_refused(change: dict[str, Any], reason: str, detail: str, said: str) -> None:
    verdict = judge(replace(MAC, **change))
    assert (verdict.status, verdict.reason, verdict.reason_detail) == ("refused", reason, detail)
    assert said in (verdict.message or "")


def test_a_mac_is_accepted_and_this_machine_is_judged_as_it_is() -> None:
    assert judge(MAC).status == "ok"
    here = read_machine()
    assert plugin.synapse_probe_capability({}).status == ("ok" if here.platform == "darwin" else "refused")


def test_the_description_is_of_an_owned_engine_of_half_precision() -> None:
    described = plugin.synapse_describe({})
    assert (described.backend, described.engine, described.device_class) == ("ane", "ane-direct-worker", "ane")
    assert (described.owned, described.dtypes, described.tasks) == (True, ("f16",), ("embed", "rerank"))
    assert described.kernel_revision


def test_the_interpreter_computes_only_where_an_operator_let_it() -> None:
    let = {"allow_interpreter": "true"}
    described = plugin.synapse_describe(let)
    assert (described.device_class, described.build_flags["device"]) == DEVICE_OF_DEVELOPERS
    assert plugin.synapse_describe({}).build_flags["device"] == "neural-engine"
    assert plugin.synapse_probe_capability(let).status == "ok"
    assert judge(replace(MAC, platform="linux", coremltools=None), interpreter=True).reason_detail == "runtime_missing"


def test_a_row_takes_the_smallest_rung_alone() -> None:
    ladder = ShapeLadder(8192)
    assert ladder.buckets() == RUNGS
    assert [ladder.bucket(n) for n in (1, 128, 129, 512, 513, 8191, 8192)] == [128, 128, 256, 512, 1024, 8192, 8192]
    assert ladder.rows_per_call(128) == 1
    assert ShapeLadder(300).buckets() == (128, 256, 512)
    assert ShapeLadder(128).buckets() == (128,)
    with pytest.raises(ValueError, match="301"):
        ShapeLadder(300).bucket(301)
    with pytest.raises(ValueError, match="8193"):
        ShapeLadder(8193).buckets()
