"""How much work one submission may hold, in seconds a device is expected to take. Pure.

Drivers reset a device that works on one submission for two seconds and more (Windows' watchdog takes two, Linux
drivers up to ten), and a desktop on the same device stands still for as long. Expected times come from speeds that
were measured when the device was opened; where a submission takes far longer all the same, the speeds follow it, and
they come back when it was a moment's trouble: a machine that slept, or another program.
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
#: How far one submission moves a speed down, and up again.
_DOWN, _UP = 0.25, 2.0
#: How far below the measured speed all of them together may move it: tiny submissions cost more than they protect.
_LEAST = 1 / 64
#: A submission shorter than its expectation by this much says that the device is itself again, where it was expected
#: to take long enough to tell.
_MUCH_SHORTER, _TELLING_S = 8.0, 0.02


class Pace:
    """Floating operations a second of products, of attention and of everything else."""

    def __init__(self, products: float = UNMEASURED_SPEED, attention: float | None = None) -> None:
        self._measured = {
            "products": products,
            "attention": products / _ATTENTION_SHARE if attention is None else attention,
            "rest": products / _REST_SHARE,
        }
        self._speeds = dict(self._measured)

    def seconds(self, kernel: str, work: float) -> float:
        """What ``work`` floating operations of ``kernel`` are expected to take."""
        return work / self._speeds[_kind(kernel)]

    def learn(self, kernels: Collection[str], expected: float, took: float) -> bool:
        """Let the speeds of ``kernels`` follow a submission; True where they changed, so that it is to be cut again."""
        if took > LONGEST_S:
            factor = min(1.0, max(_DOWN, expected / took))
        elif expected >= _TELLING_S and took < expected / _MUCH_SHORTER:
            factor = _UP
        else:
            return False
        before = dict(self._speeds)
        for kind in set(map(_kind, kernels)):
            measured = self._measured[kind]
            self._speeds[kind] = min(measured, max(_LEAST * measured, before[kind] * factor))
        return self._speeds != before


def _kind(kernel: str) -> str:
    if kernel.startswith("gemm"):
        return "products"
    return "attention" if kernel == "attention" else "rest"
