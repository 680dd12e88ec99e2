"""Processor facts out of texts of real and odd machines."""

from __future__ import annotations

import pytest

from synapse_host.identity.cpu_features import (
    chip_model_of_cpuinfo,
    instruction_set_of_cpuinfo,
    instruction_set_of_sysctl,
)

V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("fpu sse sse2", "x86-64"),
        (V2, "x86-64-v2"),
        (V3, "x86-64-v3"),
        (V4, "x86-64-v4"),
        (f"{V4} avx512_bf16 avx512_vnni amx_bf16 unrelated", "x86-64-v4+amx_bf16+avx512_bf16+avx512_vnni"),
        (f"{V3} avx_vnni", "x86-64-v3+avx_vnni"),
        (V4.replace("ssse3", ""), "x86-64"),
        (V4.replace("fma", ""), "x86-64-v2"),
    ],
    ids=["v1", "v2", "v3", "v4", "v4 and matrix", "v3 and vnni", "v4 without ssse3", "v4 without fma"],
)
def test_the_level_of_an_x86_processor(flags: str, level: str) -> None:
    assert instruction_set_of_cpuinfo(f"processor : 0\nflags\t\t: {flags}\n", "x86_64") == level


def test_an_unrelated_flag_does_not_show() -> None:
    plain = instruction_set_of_cpuinfo(f"flags: {V4}\n", "x86_64")
    assert instruction_set_of_cpuinfo(f"flags: {V4} ibrs fsrm rdpid\n", "x86_64") == plain


def test_only_what_every_core_has_counts() -> None:
    assert instruction_set_of_cpuinfo(f"flags: {V4}\n\nflags: {V3}\n", "x86_64") == "x86-64-v3"


def test_an_arm_processor_is_named_by_numbers_and_features() -> None:
    cpuinfo = (
        "processor : 0\nFeatures : fp asimd sve bf16 i8mm\nCPU implementer : 0x41\nCPU part : 0xd40\n\n"
        "processor : 1\nFeatures : fp asimd bf16 i8mm\nCPU implementer : 0x41\nCPU part : 0xd0c\n"
    )
    assert chip_model_of_cpuinfo(cpuinfo) == "implementer 0x41 part 0xd0c+0xd40"
    assert instruction_set_of_cpuinfo(cpuinfo, "aarch64") == "armv8+bf16+i8mm"


def test_an_intel_mac_shows_its_features() -> None:
    report = "hw.optional.floatingpoint: 1\nhw.optional.avx2_0: 1\nhw.optional.fma: 1\nhw.optional.avx512f: 0\n"
    assert instruction_set_of_sysctl(report, "x86_64") == "x86-64+avx2+fma"
