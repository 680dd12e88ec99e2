"""The verdict on a machine names the floor that failed, and the best device is taken."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from synapse_vulkan import evidence, plugin
from synapse_vulkan.device_facts import DeviceFacts, DeviceKind, Limits, choose, identity_flags
from synapse_vulkan.evidence import Machine, judge

from synapse_host.backends.description_check import check_description, check_evidence

LIMITS = Limits(1024, 32768, 2**30, 128, 64, 65535, 2**27)
CARD = DeviceFacts("Card", "discrete", 0x10DE, "driver 1", (1, 3), True, 8192, LIMITS)
ALLOWED = {"allow_software_device": "true"}
GOOD = Machine("linux", "1.3.275.1", devices=(CARD,))


def machine_of(**changes: Any) -> Machine:
    return replace(GOOD, devices=(replace(CARD, **changes),))


REFUSALS = [
    (replace(GOOD, platform="darwin"), "not_supported_on_platform", "not_supported_on_platform", "'darwin'"),
    (replace(GOOD, binding=None, missing="x"), "worker_missing", "runtime_missing", "package vulkan"),
    (replace(GOOD, devices=(), missing="no loader"), "device_missing", "driver_missing", "no loader"),
    (replace(GOOD, devices=()), "device_missing", "driver_missing", "knows no device"),
    (machine_of(api=(1, 0)), "device_below_floor", "vulkan_api_too_old", "1.0 is older than 1.1"),
    (machine_of(computes=False), "device_below_floor", "vulkan_missing_feature", "no queue"),
    (
        machine_of(limits=replace(LIMITS, invocations=64)),
        "device_below_floor",
        "vulkan_missing_feature",
        "invocations is 64",
    ),
    (
        machine_of(limits=replace(LIMITS, storage_alignment=512)),
        "device_below_floor",
        "vulkan_missing_feature",
        "storage_alignment is 512",
    ),
    (
        machine_of(limits=replace(LIMITS, storage_buffers=4)),
        "device_below_floor",
        "vulkan_missing_feature",
        "storage_buffers is 4",
    ),
    *(
        (machine_of(**odd), "device_below_floor", "vulkan_driver_failed", said)
        for odd, said in (
            ({"api": (129, 0)}, "version of Vulkan is 129.0, which cannot be"),
            ({"memory_mb": -1}, "has -1 MB of memory"),
            ({"memory_mb": 2**44}, f"has {2**44} MB of memory"),
            ({"limits": replace(LIMITS, storage_alignment=0)}, "aligned to 0 bytes"),
            ({"limits": replace(LIMITS, allocation_bytes=4096)}, "largest allocation is 4096 bytes"),
        )
    ),
    (machine_of(memory_mb=256), "device_below_floor", "vulkan_insufficient_memory", "256 MB"),
    (machine_of(kind="software"), "device_below_floor", "software_device", "vulkan.allow_software_device"),
    (replace(GOOD, fault="VulkanFault: wrong"), "worker_missing", "probe_failed", "wrong"),
    (replace(GOOD, devices=(), damaged="copy.spv is another"), "worker_missing", "runtime_missing", "copy.spv"),
]


@pytest.mark.parametrize(("machine", "reason", "detail", "said"), REFUSALS, ids=[row[3] for row in REFUSALS])
def test_a_machine_below_the_floor_is_refused_with_the_reason(
    machine: Machine, reason: str, detail: str, said: str
) -> None:
    verdict = check_evidence(judge(machine), "vulkan")
    assert (verdict.status, verdict.reason, verdict.reason_detail) == ("refused", reason, detail)
    assert said in str(verdict.message)
    assert set(verdict.required) <= set(verdict.observed)


def test_a_machine_above_the_floor_is_accepted_with_its_facts() -> None:
    verdict = judge(replace(GOOD, measured={"product": "direct-8x8"}))
    assert verdict.status == "ok"
    assert verdict.observed["device"] == "Card"
    assert verdict.observed["product"] == "direct-8x8"
    assert set(verdict.required) <= set(verdict.observed)


def test_a_software_device_is_accepted_where_the_operator_allows_it() -> None:
    verdict = judge(replace(machine_of(kind="software"), software=True))
    assert verdict.status == "ok"
    assert verdict.observed["device_kind"] == "software"


def test_a_software_device_below_the_floor_is_refused_for_the_floor() -> None:
    verdict = judge(machine_of(kind="software", memory_mb=1))
    assert verdict.reason_detail == "vulkan_insufficient_memory"


@pytest.mark.parametrize(
    ("kinds", "place"),
    [
        (("software", "integrated", "discrete"), 2),
        (("software", "integrated"), 1),
        (("virtual", "other", "software"), 0),
        (("discrete", "discrete"), 0),
        (("software",), 0),
        ((), None),
    ],
)
def test_a_discrete_device_comes_before_any_other(kinds: tuple[DeviceKind, ...], place: int | None) -> None:
    assert choose([replace(CARD, kind=kind) for kind in kinds]) == place


def test_a_device_that_meets_the_floor_comes_before_one_of_a_better_kind() -> None:
    assert choose([replace(CARD, memory_mb=100), replace(CARD, kind="integrated")]) == 1


def test_the_identity_names_device_driver_and_software() -> None:
    assert identity_flags(None) == {"device": "none"}
    assert identity_flags(CARD) == {"device": "Card", "driver": "driver 1"}
    assert identity_flags(replace(CARD, kind="software"))["software_device"] == "true"


@pytest.mark.usefixtures("vulkan_device")
def test_the_probe_of_this_machine_measures_every_variant_of_the_product() -> None:
    verdict = check_evidence(plugin.synapse_probe_capability(ALLOWED), "vulkan")
    assert verdict.status == "ok", verdict.message
    assert verdict.observed["product"] in verdict.observed["product_gflops"]


@pytest.mark.usefixtures("vulkan_device")
def test_a_device_that_computes_wrongly_is_told_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from synapse_vulkan import measuring
    from synapse_vulkan.binding import VulkanFault

    def wrong() -> None:
        raise VulkanFault("a product came out wrong")

    monkeypatch.setattr(measuring, "exercise", wrong)
    verdict = evidence.probe(software=True)
    assert (verdict.reason, verdict.reason_detail) == ("worker_missing", "probe_failed")
    assert "a product came out wrong" in str(verdict.message)


def test_without_a_loader_the_plugin_still_describes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from synapse_vulkan import binding

    def missing() -> None:
        raise binding.NoBinding("the Vulkan loader is not installed")

    monkeypatch.setattr(binding, "open_binding", missing)
    assert check_description(plugin.synapse_describe(), "vulkan").build_flags["device"] == "none"
    verdict = plugin.synapse_probe_capability({})
    assert (verdict.reason, verdict.reason_detail) == ("device_missing", "driver_missing")


def test_the_description_is_sound_and_names_what_moves_bits() -> None:
    description = check_description(plugin.synapse_describe(), "vulkan")
    assert (description.engine, description.device_class, description.extra) == ("owned-vulkan", "vulkan", "vulkan")
    assert {"bucket_policy", "device"} <= set(description.build_flags)
    assert len(str(description.kernel_revision)) == len(str(description.manifest_digest)) == 64


def test_describing_imports_no_numpy() -> None:
    program = (
        "import sys\nfrom synapse_vulkan import plugin\nassert 'vulkan' not in sys.modules\n"
        "plugin.synapse_describe()\nassert 'numpy' not in sys.modules, 'heavy'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
