"""The revision moves with the code and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.owned_engine.kernel_revision import manifest_digest, token_digest

SOURCE = '''"""Module."""
import math

LIMIT = 3  # rows


def scale(x: int) -> str:
    """Scale it."""
    if x > LIMIT:
        raise ValueError(f"row {x:>{LIMIT}} of {x!r} is too many")
    return (
        str(x * 2)
    )
'''

SAME = [
    SOURCE.replace("  # rows", ""),
    SOURCE.replace('"""Module."""\n', "# a comment instead\n"),
    SOURCE.replace('    """Scale it."""\n', ""),
    SOURCE.replace("\n\n\ndef", "\n\n\n\n\ndef"),
    SOURCE.replace("    ", "  "),
    SOURCE.replace("(\n        str(x * 2)\n    )", "(str(x * 2))"),
    SOURCE.rstrip("\n"),
]
OTHER = [
    SOURCE.replace("LIMIT = 3", "LIMIT = 4"),
    SOURCE.replace("x * 2", "x + 2"),
    SOURCE.replace("x:>", "x:<"),
    SOURCE.replace("of {x!r}", "of {x!s}"),
    SOURCE.replace("is too many", "are too many"),
    SOURCE.replace("    return (", "return ("),
]


@pytest.mark.parametrize("source", SAME)
def test_comments_docstrings_and_layout_do_not_move_it(source: str) -> None:
    assert source != SOURCE
    assert token_digest(source) == token_digest(SOURCE)


@pytest.mark.parametrize("source", OTHER)
def test_code_moves_it(source: str) -> None:
    assert source != SOURCE
    assert token_digest(source) != token_digest(SOURCE)


def test_a_string_that_is_used_is_not_a_docstring() -> None:
    assert token_digest('x = "a"\n') != token_digest('x = "b"\n')
    assert token_digest('f("a")\n') != token_digest('f("b")\n')


def test_every_interpreter_makes_the_same_digest() -> None:
    """Frozen: Python 3.12 began to cut f-strings into tokens, which must not show."""
    assert token_digest(SOURCE) == "2684c3d1e24f84a394f3fd701361660a518fb877443c35036533e05cf2c9fd10"


def test_manifest_digest_is_of_canonical_bytes() -> None:
    """sha256 of {"engine":"e","families":["a","b"],"kernels":["a/y.py","b/x.py"],"tolerances":{"f32":"0.9"}}."""
    kernels = [Path("/somewhere/b/x.py"), Path("a/y.py")]
    digest = manifest_digest(engine="e", families=("b", "a"), kernels=kernels, tolerances={"f32": "0.9"})
    assert digest == "4261041e80b649bf738ce41614f3f73e402588e8ffbdde254a63378483907d47"
