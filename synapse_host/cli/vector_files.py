"""Vectors into a file as they come, in the order given: ``.npy``, JSON Lines or Parquet.

The file appears under its name when it is whole; until then it is a hidden file beside it, removed when the work ends
early.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import orjson

from synapse_host.cli.appearing_files import appearing
from synapse_host.client.replies import EmbedReply
from synapse_host.values import value_object


class UnwritableFile(Exception):
    """A file of this name cannot be written; the message says what to do."""


class VectorFile(Protocol):
    """A file being written."""

    def add(self, reply: EmbedReply) -> None:
        """Write the rows of a reply behind those before it."""
        ...

    def finish(self) -> None:
        """Write what comes last."""
        ...


@contextmanager
def vector_file(path: Path, rows: int) -> Iterator[VectorFile]:
    """A file for ``rows`` vectors in all, in the form its name asks for; there under ``path`` when the block ends.

    Raises:
        UnwritableFile: the name ends in no known form, the form needs a package that is missing, or the file cannot be
            written. What the block raises, an ``OSError`` too, passes as it is.

    """
    form = require_form(path)
    raised: BaseException | None = None
    try:
        with ExitStack() as files:
            vectors = form(files, path, rows)
            try:
                yield _Explained(vectors, path)
            except BaseException as fault:
                raised = fault
                raise
            vectors.finish()
    except OSError as problem:
        if problem is raised:
            raise
        raise _unwritable(path, problem) from problem


@value_object
class _Explained:
    """A file whose write errors name it; beside those of the block they would be taken for one another."""

    file: VectorFile
    path: Path

    def add(self, reply: EmbedReply) -> None:
        try:
            self.file.add(reply)
        except OSError as problem:
            raise _unwritable(self.path, problem) from problem

    def finish(self) -> None:
        """Left to the one who opened the file."""


def _unwritable(path: Path, problem: OSError) -> UnwritableFile:
    return UnwritableFile(f"{path} cannot be written ({problem.strerror or problem}); name another file")


def require_apart(source: Path, output: Path) -> None:
    """Refuse an output that would take the place of what is read, under whatever name, or of a directory.

    Raises:
        UnwritableFile: that is so.

    """
    if output.is_dir():
        raise UnwritableFile(f"{output} is a directory; name a file in it")
    with suppress(OSError):
        if output.samefile(source):
            raise UnwritableFile(f"{output} is the file of texts {source} itself; name another output")


def require_form(path: Path) -> type[_NpyFile] | type[_JsonLinesFile] | type[_ParquetFile]:
    """The form of file that ``path`` asks for; raises ``UnwritableFile``."""
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise UnwritableFile(f"{path} ends in none of {', '.join(_FORMS)}; name the output so")
    if form is _ParquetFile:
        try:
            import pyarrow.parquet  # noqa: F401 - asked for before any work is done
        except ImportError:
            raise UnwritableFile(
                f"{path} needs pyarrow to be written, which is not installed; install synapse-host[parquet], or name "
                "an output that ends in .npy or .jsonl"
            ) from None
    return form


def identity_of(reply: EmbedReply) -> dict[str, Any]:
    """What has to be kept with vectors: the identity of what computed them."""
    return {
        "fingerprint": reply.fingerprint,
        "table_epoch": reply.table_epoch,
        "dims": reply.dims,
        "provenance": dict(reply.provenance),
    }


class _NpyFile:
    """float32 [rows, dims] for ``numpy.load``; a JSON file beside it has the identity and the ids in order."""

    def __init__(self, files: ExitStack, path: Path, rows: int) -> None:
        # Closed in reverse: the vectors appear last, when what belongs to them is there.
        self._vectors = files.enter_context(appearing(path))
        self._facts = files.enter_context(appearing(path.with_name(f"{path.name}.json")))
        self._rows = rows
        self._last: EmbedReply | None = None

    def add(self, reply: EmbedReply) -> None:
        if self._last is None:
            from numpy.lib.format import write_array_header_1_0

            shape = (self._rows, reply.dims)
            write_array_header_1_0(self._vectors, {"descr": "<f4", "fortran_order": False, "shape": shape})
        self._vectors.write(reply.vectors.astype("<f4", copy=False).tobytes())
        ids = orjson.dumps(list(reply.ids))[1:-1]
        self._facts.write((b'{"ids":[' if self._last is None else b",") + ids)
        self._last = reply

    def finish(self) -> None:
        assert self._last is not None, "there is a row"
        rest = json.dumps({"rows": self._rows, **identity_of(self._last)}, ensure_ascii=False)
        self._facts.write(b"]," + rest.encode()[1:] + b"\n")


class _JsonLinesFile:
    """An object a line: id, vector, tokens, whether it was cut, the digests, and the identity."""

    def __init__(self, files: ExitStack, path: Path, rows: int) -> None:
        self._lines = files.enter_context(appearing(path))

    def add(self, reply: EmbedReply) -> None:
        for at, item in enumerate(reply.ids):
            row = {"id": item, "vector": reply.vectors[at], **_columns_of(reply, at), "fingerprint": reply.fingerprint}
            self._lines.write(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))

    def finish(self) -> None:
        """Nothing comes last."""


class _ParquetFile:
    """A column of ids, one of float32 lists of one size, and the small columns; the identity is in the schema."""

    def __init__(self, files: ExitStack, path: Path, rows: int) -> None:
        self._files = files
        self._file = files.enter_context(appearing(path))
        self._writer: Any = None

    def add(self, reply: EmbedReply) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        small = [_columns_of(reply, at) for at in range(len(reply.ids))]
        flat = pa.array(reply.vectors.reshape(-1), type=pa.float32())
        columns = {
            "id": pa.array(reply.ids, type=pa.string()),
            "vector": pa.FixedSizeListArray.from_arrays(flat, reply.dims),
            **{name: pa.array([row[name] for row in small]) for name in small[0]},
        }
        table = pa.table(columns)
        if self._writer is None:
            identity = {name: json.dumps(value) for name, value in identity_of(reply).items()}
            table = table.replace_schema_metadata(identity)
            self._schema = table.schema
            self._writer = self._files.enter_context(pq.ParquetWriter(self._file, self._schema))
        self._writer.write_table(table.cast(self._schema))

    def finish(self) -> None:
        """The writer closes its file before that appears."""


def _columns_of(reply: EmbedReply, at: int) -> dict[str, Any]:
    cut = reply.truncations[at]
    return {
        "tokens": reply.real_token_counts[at],
        "submitted_tokens": cut.submitted_tokens,
        "truncated": cut.truncated,
        "content_sha256": reply.content_sha256[at],
        "submitted_sha256": reply.submitted_sha256[at],
    }


_FORMS: dict[str, type[_NpyFile] | type[_JsonLinesFile] | type[_ParquetFile]] = {
    ".npy": _NpyFile,
    ".jsonl": _JsonLinesFile,
    ".parquet": _ParquetFile,
}
