"""The texts of the bulk benchmarks: docstrings of the standard library, the same ones for everybody who has it.

Docstrings are what a code-search index embeds: a few words to a few hundred, most of them a sentence.
"""

from __future__ import annotations

import ast
import hashlib
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

#: Packages of the standard library that are read beside its top-level modules.
PACKAGES = ("asyncio", "concurrent", "email", "http", "importlib", "json", "logging", "multiprocessing", "unittest")
TEXTS = 1024
#: Shorter docstrings say nothing worth indexing; longer ones are module manuals, which an index would cut up.
LEAST_CHARS, MOST_CHARS = 20, 2000
#: One token each in the vocabularies of BERT models, so that salted texts cost the same whatever the salt.
_SALT_WORDS = (
    "north", "south", "river", "stone", "cloud", "grain", "paper", "copper", "silver", "marble", "winter", "summer",
    "garden", "harbor", "bridge", "market", "window", "castle", "forest", "island", "valley", "desert", "yellow",
)  # fmt: skip
_SALT_LENGTH = 2
_QUERY_WORDS = 4


def docstrings(count: int = TEXTS) -> list[str]:
    """``count`` different docstrings in an order that depends on their content alone.

    Raises:
        ValueError: the standard library on this machine has fewer; it may be installed without its sources.

    """
    found = sorted({text for path in _sources() for text in _docstrings_of(path)}, key=_place)
    if len(found) < count:
        raise ValueError(f"the standard library has {len(found)} docstrings here and {count} are needed; use CPython")
    return found[:count]


def salted(texts: list[str], seed: str) -> list[str]:
    """Every text behind words drawn for ``seed``: never embedded before, and as many tokens for every seed."""
    salt = " ".join(random.Random(seed).choices(_SALT_WORDS, k=_SALT_LENGTH))
    return [f"{salt} {text}" for text in texts]


def short_queries(count: int, seed: str) -> list[str]:
    """``count`` questions of about ten tokens, each of them different from the next."""
    draw = random.Random(seed)
    return [f"how does the {' '.join(draw.choices(_SALT_WORDS, k=_QUERY_WORDS))} work" for _ in range(count)]


def _sources() -> Iterator[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    yield from sorted(library.glob("*.py"))
    for package in PACKAGES:
        yield from sorted((library / package).rglob("*.py"))


def _docstrings_of(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and LEAST_CHARS <= len(text) <= MOST_CHARS:
                yield text


def _place(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
