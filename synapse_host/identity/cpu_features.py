"""Processor model and instruction-set level, read from what the system says about its processor. Pure.

The level is part of the machine profile because libraries choose kernels by it: the same software gives other bits on a
processor with other instructions (reading 35). Only features such kernels ask for are named, so that an
unrelated flag of a new system version does not void a certification.
"""

from __future__ import annotations

from collections.abc import Mapping

#: The x86-64 levels of the psABI, highest first, by the kernel's flag names; each includes those below it.
_X86_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
    ("x86-64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("x86-64-v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
)
#: Features above a level that matrix kernels are chosen by.
_X86_MATRIX = (
    "amx_bf16", "amx_fp16", "amx_int8", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_ne_convert", "avx_vnni",
)  # fmt: skip
_ARM_MATRIX = ("asimddp", "asimdfhm", "asimdhp", "bf16", "i8mm", "sme", "sme2", "sve", "sve2", "svebf16")

#: ``sysctl hw.optional`` names on macOS and the words used here.
_MACOS_FEATURES: Mapping[str, str] = {
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_FHM": "asimdfhm",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_SME": "sme",
    "hw.optional.arm.FEAT_SME2": "sme2",
    "hw.optional.avx1_0": "avx",
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512f": "avx512f",
    "hw.optional.f16c": "f16c",
    "hw.optional.fma": "fma",
}
_X86_NAMES = frozenset({"x86_64", "amd64"})
_ARM_NAMES = frozenset({"aarch64", "arm64"})


def chip_model_of_cpuinfo(cpuinfo: str) -> str:
    """The processor's name in ``/proc/cpuinfo``; ARM kernels give numbers instead, which are joined.

    Raises:
        ValueError: the text has neither.

    """
    names = _values(cpuinfo, "model name")
    if names:
        return sorted(names)[0]
    parts = _values(cpuinfo, "CPU part")
    makers = _values(cpuinfo, "CPU implementer")
    if not parts or not makers:
        raise ValueError("no 'model name' and no 'CPU implementer' and 'CPU part' in it")
    return f"implementer {'+'.join(sorted(makers))} part {'+'.join(sorted(parts))}"


def instruction_set_of_cpuinfo(cpuinfo: str, arch: str) -> str:
    """The level named by ``/proc/cpuinfo``, such as ``x86-64-v4+avx512_bf16``; raises ``ValueError`` without flags."""
    key = "flags" if _is_x86(arch) else "Features"
    lines = [set(line.split()) for line in _values(cpuinfo, key)]
    if not lines:
        raise ValueError(f"no line {key!r} in it")
    # Cores may differ; work may land on any of them.
    return _instruction_set(set.intersection(*lines), arch)


def instruction_set_of_sysctl(report: str, arch: str) -> str:
    """The features named by macOS's ``sysctl hw.optional``; raises ``ValueError`` when it names none that is present.

    macOS reports too few x86 features to name a level, so an Intel Mac shows the features themselves.
    """
    pairs = [line.partition(":")[::2] for line in report.splitlines()]
    present = {name.strip() for name, value in pairs if value.strip() == "1"}
    if not present:
        raise ValueError("it names no feature that is present")
    base = "x86-64" if _is_x86(arch) else "armv8"
    return "+".join([base, *sorted(word for name, word in _MACOS_FEATURES.items() if name in present)])


def _instruction_set(features: set[str], arch: str) -> str:
    if _is_x86(arch):
        return "+".join([_x86_level(features), *sorted(features.intersection(_X86_MATRIX))])
    return "+".join(["armv8", *sorted(features.intersection(_ARM_MATRIX))])


def _is_x86(arch: str) -> bool:
    if arch not in _X86_NAMES | _ARM_NAMES:
        raise ValueError(f"architecture {arch!r} is none of {', '.join(sorted(_X86_NAMES | _ARM_NAMES))}")
    return arch in _X86_NAMES


def _x86_level(found: set[str]) -> str:
    """The highest level whose own features and those of every level below are all present."""
    level = "x86-64"
    for name, needed in reversed(_X86_LEVELS):
        if not needed <= found:
            break
        level = name
    return level


def _values(text: str, key: str) -> set[str]:
    pairs = [line.partition(":")[::2] for line in text.splitlines()]
    return {value.strip() for name, value in pairs if name.strip() == key and value.strip()}
