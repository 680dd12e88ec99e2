"""What the Vulkan backend needs of a machine, what this machine has, and the verdict.

Reading the machine and judging it are apart: ``judge`` is pure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from synapse_host.hookspecs import CapabilityEvidence, Premises, RefusalReason
from synapse_vulkan.device_facts import (
    DeviceFacts,
    as_evidence,
    choose,
    required_evidence,
    shortfall,
)
from synapse_vulkan.drivers import premises
from synapse_vulkan.kernel_files import SPIRV, KernelDamaged, read_kernels

PLATFORMS = ("linux", "win32")


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts a verdict rests on.

    ``missing`` is why there is no Vulkan to ask; ``damaged`` why our kernels are not those of the package; ``fault``
    why the device could not run, None when it did or was not tried. ``measured`` are what the trial run measured,
    ``software`` that the operator allows a software device, ``premises`` what all of it rests on.
    """

    platform: str
    binding: str | None
    missing: str | None = None
    devices: tuple[DeviceFacts, ...] = ()
    damaged: str | None = None
    fault: str | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    software: bool = False
    premises: Premises = field(default_factory=Premises)

    @property
    def chosen(self) -> DeviceFacts | None:
        """The device the backend takes."""
        place = choose(self.devices)
        return None if place is None else self.devices[place]


Refusal = tuple[RefusalReason, str, str]


def read_machine() -> Machine:
    """List the devices of this machine and open none."""
    from synapse_vulkan.binding import VulkanFault, binding_version, open_binding

    machine = Machine(sys.platform, binding_version())
    try:
        open_binding()
        return replace(machine, devices=_list_devices())
    except (ImportError, VulkanFault) as missing:
        return replace(machine, missing=str(missing))


def judge(machine: Machine) -> CapabilityEvidence:
    """Hold the facts against the floor; the first that fails is the reason (reading 3).

    A software device is refused last of all, so that the reason of one below the floor is the floor.
    """
    verdicts = (_judge_platform, _judge_package, _judge_devices, _judge_run, _judge_kind)
    refusal = next((found for verdict in verdicts if (found := verdict(machine)) is not None), None)
    if refusal is None:
        return CapabilityEvidence("ok", _required(), _observed(machine), premises=machine.premises)
    reason, detail, message = refusal
    return CapabilityEvidence("refused", _required(), _observed(machine), reason, detail, message, machine.premises)


def probe(*, software: bool) -> CapabilityEvidence:
    """Read the machine and, when nothing refuses it already, run kernels on it and time them."""
    machine = replace(read_machine(), software=software, premises=premises(os.environ, SPIRV), damaged=_damaged())
    verdict = judge(machine)
    if verdict.status == "refused":
        return verdict
    try:
        from synapse_vulkan.measuring import exercise

        return judge(replace(machine, measured=exercise()))
    except Exception as failure:
        return judge(replace(machine, fault=f"{type(failure).__name__}: {failure}"))


def _damaged() -> str | None:
    try:
        read_kernels()
    except KernelDamaged as damaged:
        return str(damaged)
    return None


def _list_devices() -> tuple[DeviceFacts, ...]:
    from synapse_vulkan.instance import opened_instance, physical_devices, read_facts

    with opened_instance() as instance:
        return tuple(map(read_facts, physical_devices(instance)))


def _judge_platform(machine: Machine) -> Refusal | None:
    if machine.platform in PLATFORMS:
        return None
    message = f"platform {machine.platform!r} is not one of {', '.join(PLATFORMS)}; use another backend"
    return "not_supported_on_platform", "not_supported_on_platform", message


def _judge_package(machine: Machine) -> Refusal | None:
    return None if machine.damaged is None else ("worker_missing", "runtime_missing", machine.damaged)


def _judge_devices(machine: Machine) -> Refusal | None:
    chosen = machine.chosen
    if machine.binding is None:
        message = "the package vulkan is not installed; install it with: pip install 'synapse-host[vulkan]'"
        return "worker_missing", "runtime_missing", message
    if machine.missing is not None or chosen is None:
        found = machine.missing or "the loader knows no device"
        message = f"no Vulkan device can be asked: {found}; install the driver of your GPU"
        return "device_missing", "driver_missing", message
    missed = shortfall(chosen)
    if missed is not None:
        message = f"device {chosen.name!r} is below the floor: {missed.problem}; update its driver or use another one"
        return "device_below_floor", missed.detail, message
    return None


def _judge_run(machine: Machine) -> Refusal | None:
    if machine.fault is None:
        return None
    assert machine.chosen is not None
    message = f"device {machine.chosen.name!r} could not run a kernel ({machine.fault}); update its driver"
    return "worker_missing", "probe_failed", message


def _judge_kind(machine: Machine) -> Refusal | None:
    chosen = machine.chosen
    if chosen is None or chosen.kind != "software" or machine.software:
        return None
    message = (
        f"device {chosen.name!r} is software on the processor, slower than the cpu backend; "
        "install the driver of your GPU, or start the host with vulkan.allow_software_device set "
        "(SYNAPSE_VULKAN_ALLOW_SOFTWARE_DEVICE=1) to test on it"
    )
    return "device_below_floor", "software_device", message


def _required() -> dict[str, Any]:
    return {"platform": list(PLATFORMS), **required_evidence()}


def _observed(machine: Machine) -> dict[str, Any]:
    chosen = machine.chosen
    facts = dict.fromkeys(required_evidence()) if chosen is None else as_evidence(chosen)
    return {
        "platform": machine.platform,
        "binding": machine.binding,
        "devices": [f"{device.name} ({device.kind})" for device in machine.devices],
        **facts,
        **machine.measured,
    }
