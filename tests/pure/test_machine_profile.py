"""The machine profile from made-up machines: what is in it, what moves its hash, and probes that fail."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from synapse_host.identity.machine_profile import (
    MachineProbeFailed,
    MachineProfile,
    MachineSource,
    ram_class,
    read_machine_profile,
)
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.identity.nvidia_gpus import NvidiaGpu

VECTORS = json.loads((Path(__file__).parents[1] / "fixtures" / "identity_vectors.json").read_text(encoding="utf-8"))
CPUINFO = """processor\t: 0
model name\t: Example CPU @ 2.00GHz
flags\t\t: cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave
"""
MAC = {
    "sw_vers -buildVersion": "25A354\n",
    "sysctl -n machdep.cpu.brand_string": "Apple M5 Max\n",
    "sysctl -n hw.model": "Mac17,1\n",
    "sysctl hw.optional": "hw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_SME: 0\nhw.optional.arm.FEAT_FP16: 1\n",
}
CPU = EngineIdentity("owned-cpu", "1", {"openvino": "2025.3"})
REFERENCE = EngineIdentity("reference", "1")
CARD = NvidiaGpu("NVIDIA GeForce RTX 4090", 24564, "550.54.15")


class FakeMachine(MachineSource):
    def __init__(self, system: str = "Linux", arch: str = "x86_64", **changes: Any) -> None:
        self.names = (system, "6.1.0", arch)
        self.memory: int | Exception = changes.get("memory", 31 * 2**30)
        self.cpuinfo: str | Exception = changes.get("cpuinfo", CPUINFO)
        self.commands: dict[str, str | Exception] = MAC | changes.get("commands", {})
        self.cards: tuple[NvidiaGpu, ...] = changes.get("gpus", ())

    def uname(self) -> tuple[str, str, str]:
        return self.names

    def memory_bytes(self) -> int:
        if isinstance(self.memory, Exception):
            raise self.memory
        return self.memory

    def read_text(self, path: str) -> str:
        assert path == "/proc/cpuinfo"
        if isinstance(self.cpuinfo, Exception):
            raise self.cpuinfo
        return self.cpuinfo

    def run(self, *command: str) -> str:
        answer = self.commands[" ".join(command)]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def gpus(self) -> tuple[NvidiaGpu, ...]:
        return self.cards


def read(source: FakeMachine, *engines: EngineIdentity, override: str | None = None) -> MachineProfile:
    return read_machine_profile(engines, os_build_override=override, source=source)


def test_a_linux_machine() -> None:
    assert read(FakeMachine(), CPU) == MachineProfile(
        "Linux 6.1.0", "x86_64", "Example CPU @ 2.00GHz", "le_32_gib", "x86-64-v3", (CPU,)
    )


def test_a_mac() -> None:
    assert read(FakeMachine("Darwin", "arm64"), CPU) == MachineProfile(
        "25A354", "arm64", "Apple M5 Max", "le_32_gib", "armv8+asimdhp+bf16", (CPU,)
    )


def test_a_mac_without_a_brand_string_gives_its_model() -> None:
    failure = subprocess.CalledProcessError(1, "sysctl")
    machine = FakeMachine("Darwin", "arm64", commands={"sysctl -n machdep.cpu.brand_string": failure})
    assert read(machine).chip_model == "Mac17,1"


def test_the_override_takes_the_place_of_the_system_build_unprobed() -> None:
    machine = FakeMachine("Darwin", "arm64", commands={"sw_vers -buildVersion": OSError("no sw_vers")})
    assert read(machine, override="pinned").os_build == "pinned"
    with pytest.raises(MachineProbeFailed, match="system build ' ' is blank"):
        read(machine, override=" ")


def test_engines_are_sorted_and_counted_once_whatever_their_order() -> None:
    other = EngineIdentity("owned-cpu", "1", {"openvino": "2025.2"})
    profile = read(FakeMachine(), REFERENCE, CPU, other, CPU)
    assert profile.engine_identities == (other, CPU, REFERENCE)
    assert profile.hash == read(FakeMachine(), CPU, other, REFERENCE).hash


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(MachineProfile)])
def test_changing_a_single_part_changes_the_hash(field: str) -> None:
    base = read(FakeMachine(), CPU)
    value: Any = {"engine_identities": (REFERENCE,), "gpus": (CARD,)}.get(field, "other")
    assert dataclasses.replace(base, **{field: value}).hash != base.hash


@pytest.mark.parametrize("fact", [each.name for each in dataclasses.fields(NvidiaGpu)])
def test_every_fact_of_a_gpu_changes_the_hash(fact: str) -> None:
    other = dataclasses.replace(CARD, **{fact: 1 if fact == "memory_mib" else "other"})
    hashes = {read(FakeMachine(gpus=cards), CPU).hash for cards in ((), (CARD,), (other,), (CARD, CARD))}
    assert len(hashes) == 4


def test_a_machine_without_a_gpu_says_nothing_of_one() -> None:
    assert "gpus" not in json.loads(read(FakeMachine(), CPU).as_json())
    assert json.loads(read(FakeMachine(gpus=(CARD,)), CPU).as_json())["gpus"] == [
        {"name": "NVIDIA GeForce RTX 4090", "memory_mib": 24564, "driver": "550.54.15"}
    ]


@pytest.mark.parametrize("vector", VECTORS["machine_profiles"], ids=lambda vector: vector["name"])
def test_frozen_machine_profiles(vector: dict[str, Any]) -> None:
    engines = tuple(EngineIdentity(**engine) for engine in vector["engine_identities"])
    parts = {name: vector[name] for name in ("os_build", "arch", "chip_model", "ram_class", "isa")}
    profile = MachineProfile(**parts, engine_identities=engines)
    assert profile.as_json() == vector["json"]
    assert profile.hash == vector["hash"] == hashlib.sha256(vector["json"].encode()).hexdigest()


GIB = 2**30


@pytest.mark.parametrize(
    ("memory", "word"),
    [
        (1, "le_4_gib"),
        (4 * GIB, "le_4_gib"),
        (4 * GIB + 1, "le_8_gib"),
        (16 * GIB, "le_16_gib"),
        (129 * GIB, "le_256_gib"),
        (256 * GIB, "le_256_gib"),
        (256 * GIB + 1, "gt_256_gib"),
    ],
)
def test_memory_classes(memory: int, word: str) -> None:
    assert ram_class(memory) == word


SLOW = subprocess.TimeoutExpired(["sysctl", "hw.optional"], 2.0)
FAILURES = [
    (FakeMachine(cpuinfo=FileNotFoundError(2, "No such file", "/proc/cpuinfo")), "processor model", "/proc/cpuinfo"),
    (FakeMachine(cpuinfo=""), "processor model", "/proc/cpuinfo: no 'model name'"),
    (FakeMachine(cpuinfo="model name: x\n"), "instruction set", "no line 'flags'"),
    (FakeMachine(arch="riscv64", cpuinfo="model name: x\nFeatures: y\n"), "instruction set", "'riscv64' is none of"),
    (FakeMachine(memory=OSError("no pages")), "memory size", "sysconf: no pages"),
    (FakeMachine("Darwin", commands={"sw_vers -buildVersion": "\n"}), "system build", "sw_vers -buildVersion: it prin"),
    (FakeMachine("Darwin", commands={"sysctl hw.optional": SLOW}), "instruction set", "timed out after 2.0 seconds"),
    (FakeMachine("Darwin", commands={"sysctl hw.optional": "hw.optional.x: 0"}), "instruction set", "names no feature"),
    (FakeMachine("Plan9"), "'Plan9'", "is none of Linux, Darwin"),
]


@pytest.mark.parametrize(
    ("machine", "part", "cause"), FAILURES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_failed_probe_says_what_failed_why_and_what_to_do(machine: FakeMachine, part: str, cause: str) -> None:
    with pytest.raises(MachineProbeFailed) as caught:
        read(machine)
    message = str(caught.value)
    assert message.startswith("machine profile: ")
    assert part in message
    assert cause in message
    assert "; make " in message or "; run the host there" in message
