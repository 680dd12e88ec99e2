"""What a zipped ``.mlmodelc``, one package of a set for the Neural Engine, says of itself: read with distrust.

Core ML puts a description of inputs and outputs beside the program (``metadata.json``). A package takes one row of a
fixed length: its ids and its mask, and for models that tell the texts of a pair apart the kind of every token.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import zipfile

#: Name of the format in LOAD (original facts 1.6).
MODEL_FORMAT = "mlmodelc"
#: Kind of the folder an archive holds.
SUFFIX = ".mlmodelc"
#: Family of a set that comes without a config.json.
NAMELESS_FAMILY = "core-ml"
IDS, MASK, KINDS = "input_ids", "attention_mask", "token_type_ids"
#: Files an archive may hold. A compiled model has about ten.
MOST_FILES = 10_000
#: How members may be packed: stored or deflated. Other methods want as much memory as the archive says.
METHODS = (0, 8)
#: Positions a row may have. The longest of the catalog has 8,192, and a worker sets this many aside before it asks.
MOST_POSITIONS = 131_072

#: Bytes a metadata.json (a few kilobytes) may have.
_LARGEST_METADATA = 1 << 20
#: Bytes the list of files at the end of an archive may have for each of them: names of a few dozen characters.
_LARGEST_ENTRY = 1024
#: Where the end of an archive is looked for: a record of 22 bytes and a comment of up to 65,535, and before it the 20
#: bytes that lead to a larger form of the end.
_END_BYTES = 20 + 22 + 65_535
#: How a file in the list begins, the end, and the way to its larger form.
_LISTED, _END, _LARGER_END = b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x07"
#: Names shown of many, and characters of one.
_NAMES_SHOWN, _NAME_SHOWN = 8, 60
_SHAPE = re.compile(r"\[([0-9]{1,9}(?:, ?[0-9]{1,9})*)?\]")


class PackageFault(ValueError):
    """An archive or a description that is not what a package of a set has; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class PackageShape:
    """One package: rows of ``length`` positions in, and what its only output is called and how it is shaped.

    ``output_shape`` is empty where the description leaves it open. ``kinds`` says that it wants ``token_type_ids``.
    """

    length: int
    kinds: bool
    output: str
    output_shape: tuple[int, ...]


def read_package_shape(file: IO[bytes]) -> PackageShape:
    """The shape of the package zipped in ``file``, without unpacking it; raises ``PackageFault``."""
    import zipfile

    check_entry_count(file)
    unreadable: tuple[type[Exception], ...] = (*archive_faults(), OSError)
    try:
        with zipfile.ZipFile(file) as archive:
            named = [entry for entry in archive.infolist() if _is_description(entry)]
            if len(named) != 1:
                raise PackageFault(f"it holds {len(named)} files <model>{SUFFIX}/metadata.json and should hold one")
            if named[0].file_size > _LARGEST_METADATA:
                raise PackageFault(f"its metadata.json has {named[0].file_size} bytes, past {_LARGEST_METADATA}")
            if named[0].compress_type not in METHODS:
                raise PackageFault(
                    f"its metadata.json is packed by method {named[0].compress_type}; store or deflate it"
                )
            with archive.open(named[0]) as description:
                return package_shape(description.read(_LARGEST_METADATA + 1))
    except PackageFault:
        raise
    except unreadable as fault:
        raise PackageFault(f"it is no zip archive this program reads: {fault}") from fault


def archive_faults() -> tuple[type[Exception], ...]:
    """What the reader of archives trips over where one is spoiled; what a disk says is not among them."""
    import zipfile
    import zlib

    return (
        zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, IndexError,
        OverflowError, struct.error, zlib.error,
    )  # fmt: skip


def package_shape(description: bytes) -> PackageShape:
    """What the bytes of a metadata.json say; raises ``PackageFault`` naming what is missing or of another shape."""
    if len(description) > _LARGEST_METADATA:
        raise PackageFault(f"its metadata.json passes {_LARGEST_METADATA} bytes")
    try:
        (model,) = json.loads(description)
        inputs = {str(entry["name"]): _shape(entry) for entry in model["inputSchema"]}
        outputs = {str(entry["name"]): _shape(entry) for entry in model["outputSchema"]}
    except (ValueError, KeyError, TypeError, RecursionError) as fault:
        raise PackageFault(f"its metadata.json describes no inputs and outputs: {fault!r}") from fault
    if len(outputs) != 1:
        raise PackageFault(f"it gives {_shown(outputs)} and should give one output")
    ((output, shape),) = outputs.items()
    return PackageShape(_length(inputs), KINDS in inputs, output, shape)


def check_entry_count(file: IO[bytes]) -> None:
    """Refuse an archive that lists more files than a package has, before the list is read; raises ``PackageFault``.

    A reader of archives makes an object for every file that is listed: a few megabytes of list would become gigabytes.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END_BYTES))
    end = file.read(_END_BYTES)
    at = end.rfind(_END)
    if at < 0 or len(end) - at < 22:
        raise PackageFault("it is no zip archive this program reads: it has no end")
    if end[max(0, at - 20) : at].startswith(_LARGER_END):
        # It would be believed before the record that is looked at here.
        raise PackageFault("it has the end of an archive past 4 GiB or 65,535 files; zip the package without zip64")
    files, listed = struct.unpack_from("<HI", end, at + 10)
    if files <= MOST_FILES and listed <= MOST_FILES * _LARGEST_ENTRY:
        # What is read is as many as there are, whatever is said.
        file.seek(max(0, size - len(end) + at - listed))
        files = max(files, file.read(listed).count(_LISTED))
    file.seek(0)
    if files > MOST_FILES or listed > MOST_FILES * _LARGEST_ENTRY:
        raise PackageFault(f"it lists {files} files in {listed} bytes and may list {MOST_FILES}")


def _is_description(entry: zipfile.ZipInfo) -> bool:
    folder, _, name = entry.filename.partition("/")
    return folder.endswith(SUFFIX) and name == "metadata.json"


def _length(inputs: Mapping[str, tuple[int, ...]]) -> int:
    """The positions of a row, which every input must agree on."""
    strange = sorted(set(inputs) - {IDS, MASK, KINDS})
    missing = sorted({IDS, MASK} - set(inputs))
    if strange or missing:
        raise PackageFault(
            f"it takes {_shown(inputs)}; a package takes {IDS} and {MASK}, and {KINDS} where it tells texts apart"
        )
    shape = inputs[IDS]
    if len(shape) != 2 or shape[0] != 1 or shape[1] < 1:
        raise PackageFault(f"its {IDS} are {list(shape[:8])}, which is not one row")
    if shape[1] > MOST_POSITIONS:
        raise PackageFault(f"its {IDS} are {list(shape)}, and a row has at most {MOST_POSITIONS} positions")
    others = {name: list(each[:8]) for name, each in inputs.items() if each != shape}
    if others:
        raise PackageFault(f"its {IDS} are {list(shape)} and the rest of its inputs {others}")
    return shape[1]


def _shown(names: Mapping[str, object]) -> str:
    """Names out of a package, which may hold anything, as a message can have them."""
    shown = [name if name.isidentifier() and name.isascii() else ascii(name) for name in sorted(names)]
    more = f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    return (", ".join(f"{name:.{_NAME_SHOWN}}" for name in shown[:_NAMES_SHOWN]) or "nothing") + more


def _shape(entry: Mapping[str, Any]) -> tuple[int, ...]:
    matched = _SHAPE.fullmatch(entry["shape"])
    if matched is None:
        raise ValueError(f"shape {entry['shape']!r:.80}")
    return tuple(int(size) for size in re.findall("[0-9]+", matched.group(1) or ""))
