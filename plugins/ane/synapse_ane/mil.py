"""The one place that imports coremltools, and the words of its builder that the recordings use.

On a machine that is not a Mac the package imports with warnings about native parts it lacks; building, converting and
saving programs needs none of them.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt


def _quietly_imported() -> Any:
    # Its missing native parts are told through the root logger, and its own dependencies deprecate things at import.
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import coremltools
    return coremltools


ct = _quietly_imported()
from coremltools.converters.mil import Builder  # noqa: E402
from coremltools.converters.mil.mil import Function, Program, types  # noqa: E402

mb = Builder

__all__ = ["TARGET", "Function", "Program", "Var", "constant", "ct", "half", "mb", "types"]

#: A value of a recorded program.
Var: TypeAlias = Any

#: Multi-function packages and half-precision inputs need it: macOS 15.
TARGET = ct.target.iOS18


def half(array: npt.ArrayLike, what: str = "a constant") -> npt.NDArray[np.float16]:
    """``array`` in half precision.

    Raises:
        ValueError: a number passes what half precision holds; it names ``what``.

    """
    wide = np.asarray(array)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16)
    if not np.isfinite(narrow).all() and np.isfinite(wide).all():
        largest = float(np.abs(wide).max())
        raise ValueError(f"{what} holds {largest:.4g}, and the Neural Engine computes in half precision, up to 65504")
    return narrow


def constant(array: npt.ArrayLike, what: str = "a constant") -> Var:
    """``array`` as a constant in half precision; raises what ``half`` raises."""
    return mb.const(val=half(array, what))
