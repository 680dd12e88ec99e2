"""The kernels by name: what the source must hold, and where it is."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.cu")
#: One kernel each for float32 and float16 rows.
KERNELS = (
    "embedding",
    "combined",
    "layer_norm",
    "rms_norm",
    "bias_act",
    "gated_halves",
    "gated_pair",
    "rotated",
    "attention32",
    "attention64",
    "attention128",
    "one_row",
    "mean_rows",
    "result",
    "chosen_logits",
)
ENTRY_POINTS = tuple(f"{kernel}_{suffix}" for suffix in ("f32", "f16") for kernel in KERNELS)
#: What the kernels are compiled for: Turing, Ampere, Hopper. The first is the oldest device the backend takes.
ARCHITECTURES = ("sm_75", "sm_80", "sm_90")
