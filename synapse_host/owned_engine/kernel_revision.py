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
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from synapse_host import families, model_files, ops, owned_engine

#: Tokens that say nothing about what the code does.
_LAYOUT = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, token.ENDMARKER})
#: Tokens whose text is layout while their presence is not.
_BARE = frozenset({token.NEWLINE, token.INDENT, token.DEDENT})

#: What a family computes with beside its backend's operations, and what finds a tensor's bytes in its file.
_CONTRACT_SOURCES = ("rope_table.py", "tensor_ops.py")
_FILE_SOURCES = ("safetensors_header.py", "shard_index.py")
#: Modules of the engine that decide no bits: names, sizes, refusals, checks; the reference is a backend itself.
_ENGINE_ASIDE = (
    "checkpoint_shapes",
    "kernel_revision",
    "reference_backend",
    "reference_plugin",
    "row_refusal",
    "self_check",
    "unread_tensors",
)

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
    """The sources every owned engine's numbers come from: families, the engine itself, how it reads a checkpoint."""
    contract = [Path(folder) / name for folder in ops.__path__ for name in _CONTRACT_SOURCES]
    files = [Path(folder) / name for folder in model_files.__path__ for name in _FILE_SOURCES]
    return [*package_sources(families), *contract, *files, *package_sources(owned_engine, _ENGINE_ASIDE)]


def package_sources(package: ModuleType, aside: Collection[str] = ()) -> list[Path]:
    """Every module of ``package`` but those named ``aside``, which decide no bits.

    What is forgotten then moves the revision without need; a list of what counts would, once something is forgotten,
    leave a fingerprint standing over other numbers.

    Raises:
        ValueError: a name is no module of the package.

    """
    modules = {path.stem: path for folder in package.__path__ for path in sorted(Path(folder).glob("*.py"))}
    if strange := sorted(set(aside) - set(modules)):
        raise ValueError(f"{package.__name__} has no module {', '.join(strange)}; take the name off the list")
    return [path for name, path in modules.items() if name not in aside]


def reference_sources() -> list[Path]:
    """The sources of the numpy definition of the operations, and of the backend that runs it."""
    definition = [path for package in ops.__path__ for path in sorted(Path(package).glob("reference_*.py"))]
    return [*definition, *(Path(folder) / "reference_backend.py" for folder in owned_engine.__path__)]


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
