"""How much work one submission may hold, in seconds a device is expected to take. Pure.

Drivers reset a device that works on one submission for two seconds and more (Windows' watchdog takes two, Linux
drivers up to ten), and a desktop on the same device stands still for as long. Expected times come from speeds that
were measured when the device was opened; where a submission takes far longer all the same, the speeds follow it.
"""

from __future__ import annotations

from collections.abc import Collection

#: Seconds one submission is expected to take at most.
SUBMISSION_S = 0.25
#: A submission that took longer than this was cut by a wrong speed.
LONGEST_S = 0.5
#: Floating operations a second of products taken of a device nobody measured.
UNMEASURED_SPEED = 20e9
#: What attention makes of a device where nobody measured it: this many times less than products make.
_ATTENTION_SHARE = 4.0
#: The rest waits for memory and not for arithmetic: llvmpipe and a card of 10 TFLOP/s and 500 GB/s both come out here.
_REST_SHARE = 16.0


class Pace:
    """Floating operations a second of products, of attention and of everything else."""

    def __init__(self, products: float = UNMEASURED_SPEED, attention: float | None = None) -> None:
        self._speeds = {
            "products": products,
            "attention": products / _ATTENTION_SHARE if attention is None else attention,
            "rest": products / _REST_SHARE,
        }

    def seconds(self, kernel: str, work: float) -> float:
        """What ``work`` floating operations of ``kernel`` are expected to take."""
        return work / self._speeds[_kind(kernel)]

    def too_slow(self, kernels: Collection[str], expected: float, took: float) -> bool:
        """Whether a submission of ``kernels`` took so long that it must be cut again; their speeds then follow it."""
        if took <= LONGEST_S:
            return False
        factor = min(1.0, expected / took)
        for kind in set(map(_kind, kernels)):
            self._speeds[kind] *= factor
        return True


def _kind(kernel: str) -> str:
    if kernel.startswith("gemm"):
        return "products"
    return "attention" if kernel == "attention" else "rest"
