"""Text files as passages to embed, and the nearest of them to a question. Pure but for reading the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from synapse_host.values import value_object

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vectors = npt.NDArray[np.float32]

#: Names taken when a directory is given.
TEXT_SUFFIXES = (".md", ".txt", ".rst")
#: A passage shorter than this many characters says too little to be an answer.
MIN_CHARS = 40


class UnreadableFile(Exception):
    """A file cannot be read as text; the message names it and says what to do."""


@value_object
class Passage:
    """One paragraph and where it stands; ``line`` counts from 1."""

    file: str
    line: int
    text: str


@value_object
class Match:
    """A passage with its cosine to the question; ``truncated`` when the model read only the start of it."""

    score: float
    passage: Passage
    truncated: bool


def read_passages(paths: Iterable[Path], on_skipped: Callable[[UnreadableFile], None]) -> list[Passage]:
    """The paragraphs of files, and of the text files below directories, in the order of names and lines.

    A file merely found below a directory may be unreadable: ``on_skipped`` is told, and the others are read.

    Raises:
        UnreadableFile: a file that was named cannot be read or is not UTF-8.

    """
    passages: list[Passage] = []
    for path in paths:
        for file in text_files(path):
            try:
                text = text_of(file)
            except UnreadableFile as problem:
                if file == path:
                    raise
                on_skipped(problem)
                continue
            passages += split_passages(str(file), text)
    return passages


def split_passages(file: str, text: str) -> list[Passage]:
    """Paragraphs of ``text``, separated by blank lines, that are long enough to mean something."""
    passages: list[Passage] = []
    lines: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        if line.strip():
            lines.append(line)
            continue
        paragraph = "\n".join(lines).strip()
        if len(paragraph) >= MIN_CHARS:
            passages.append(Passage(file, number - len(lines), paragraph))
        lines = []
    return passages


def nearest(
    question: Vectors, passages: Sequence[Passage], vectors: Vectors, truncated: Sequence[bool], top: int
) -> list[Match]:
    """The ``top`` passages by cosine, best first; equal ones in the order given.

    ``question`` is float32 [dims], ``vectors`` float32 [passages, dims]; neither needs unit length, none may be zero.
    ``truncated`` says of each passage whether the model read only its start.
    """
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(question)
    scores = vectors @ question / lengths
    order = (-scores).argsort(kind="stable")[:top]
    return [Match(float(scores[index]), passages[index], truncated[index]) for index in order]


def text_files(path: Path) -> list[Path]:
    """The file itself, or the text files below a directory, those of hidden directories left out."""
    if not path.is_dir():
        return [path]
    return sorted(
        file
        for file in path.rglob("*")
        if file.suffix in TEXT_SUFFIXES
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
        and file.is_file()
    )


def text_of(file: Path) -> str:
    """The text of one file; raises ``UnreadableFile``."""
    try:
        # A mark that editors put before a text is no part of it.
        return file.read_text("utf-8-sig")
    except OSError as problem:
        raise UnreadableFile(f"{file} cannot be read ({problem.strerror}); correct the name or leave it out") from None
    except UnicodeDecodeError as problem:
        raise UnreadableFile(f"{file} is not UTF-8 text (byte {problem.start}); convert it or leave it out") from None
