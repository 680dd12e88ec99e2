"""Arguments that name files. An empty one is refused: as a path it would be the current directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def named_path(text: str) -> Path:
    """The path of an argument; raises ``typer.BadParameter`` for an empty one."""
    if not text:
        raise typer.BadParameter("the name is empty; name a file or directory, the current one as '.'")
    return Path(text)


def existing_path(text: str) -> Path:
    """The same, of something that is there."""
    path = named_path(text)
    if not path.exists():
        raise typer.BadParameter(f"{text!r} does not exist; correct the name")
    return path


Source = Annotated[
    Path,
    typer.Argument(help="A .jsonl or .csv file of texts, or a directory of text files.", parser=named_path),
]
VectorFile = Annotated[
    Path, typer.Argument(help="Where the vectors go: a .npy, .jsonl or .parquet file.", parser=named_path)
]
Passages = Annotated[
    list[Path], typer.Argument(help="Text files, or directories of .md, .txt and .rst files.", parser=existing_path)
]
