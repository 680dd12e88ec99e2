"""One name for the code that decides a vector's bits, and one for the package that ships it.

The kernel revision is a digest of the tokens of those sources. Comments, docstrings and layout are left out, and the
tokens are the same for every supported interpreter, so the name moves when the code does and at no other time. It may
move without the bits moving; the other way round is a defect, which the golden-bits test catches.
"""

from __future__ import annotations

import hashlib
import io
import json
import token
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from synapse_host import families, ops, owned_engine

#: Tokens that say nothing about what the code does.
_LAYOUT = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, token.ENDMARKER})
#: Tokens whose text is layout while their presence is not.
_BARE = frozenset({token.NEWLINE, token.INDENT, token.DEDENT})

#: Modules of the engine that decide bits: padded lengths, cutting, how stored weights become numbers, what a decoder
#: reads at once.
_ENGINE_SOURCES = ("decoder.py", "greedy.py", "segments.py", "shape_policy.py", "weights.py")

Token = tuple[str, str]


def token_digest(source: str) -> str:
    """SHA-256 over the tokens of a Python source, without comments, docstrings and layout."""
    digest = hashlib.sha256()
    for statement in _statements(_tokens(source)):
        if all(kind == "STRING" for kind, _ in statement[:-1]) and len(statement) > 1:
            continue
        for kind, text in statement:
            digest.update(f"{kind}\0{text}\0".encode())
    return digest.hexdigest()


def kernel_revision(sources: Sequence[Path]) -> str:
    """SHA-256 over the named sources, each known by its folder and file name, whatever order they come in."""
    digest = hashlib.sha256()
    for name, path in sorted((_name(path), path) for path in sources):
        digest.update(f"{name}\0{token_digest(path.read_text(encoding='utf-8'))}\0".encode())
    return digest.hexdigest()


def shared_sources() -> list[Path]:
    """The sources every owned engine's numbers come from: families, the operations' contract, the engine's rules."""
    contract = [path for package in ops.__path__ for path in Path(package).glob("tensor_ops.py")]
    engine = [path for package in owned_engine.__path__ for path in map(Path(package).joinpath, _ENGINE_SOURCES)]
    return [*_modules_of(families.__path__), *contract, *engine]


def reference_sources() -> list[Path]:
    """The sources of the numpy definition of the operations."""
    return [path for package in ops.__path__ for path in sorted(Path(package).glob("reference_*.py"))]


def manifest_digest(
    *, engine: str, families: Sequence[str], kernels: Sequence[Path], tolerances: Mapping[str, str]
) -> str:
    """SHA-256 of the canonical description of a package.

    ``kernels`` are the sources its kernel revision covers. They stand here by name alone: what they hold is the
    revision's affair, or every change of a kernel would be called another package, which is looked at first.
    ``tolerances`` are decimal strings, since canonical JSON refuses floats.
    """
    description = {
        "engine": engine,
        "families": sorted(families),
        "kernels": sorted(map(_name, kernels)),
        "tolerances": dict(tolerances),
    }
    canonical = json.dumps(description, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _name(source: Path) -> str:
    return f"{source.parent.name}/{source.name}"


def _modules_of(folders: Sequence[str]) -> list[Path]:
    return [path for folder in folders for path in sorted(Path(folder).glob("*.py"))]


def _statements(tokens: Iterator[Token]) -> Iterator[list[Token]]:
    """Logical lines; the token that ends one is its last."""
    statement: list[Token] = []
    for kind, text in tokens:
        statement.append((kind, text))
        if not text and kind in ("NEWLINE", "INDENT", "DEDENT"):
            yield statement
            statement = []
    if statement:
        yield [*statement, ("NEWLINE", "")]


def _tokens(source: str) -> Iterator[Token]:
    """Kind and text of every token that matters; an f-string is one STRING, as before Python 3.12."""
    lines = source.split("\n")
    depth = 0
    begin = (0, 0)
    for item in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = token.tok_name[item.type]
        if kind in ("FSTRING_START", "TSTRING_START"):
            begin = begin if depth else item.start
            depth += 1
        elif kind in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
            if not depth:
                yield "STRING", _between(lines, begin, item.end)
        elif not depth and item.type not in _LAYOUT:
            yield kind, "" if item.type in _BARE else item.string


def _between(lines: Sequence[str], begin: tuple[int, int], end: tuple[int, int]) -> str:
    (first, left), (last, right) = begin, end
    if first == last:
        return lines[first - 1][left:right]
    return "\n".join([lines[first - 1][left:], *lines[first : last - 1], lines[last - 1][:right]])
