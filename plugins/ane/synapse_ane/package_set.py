"""Package sets made elsewhere: one zipped ``.mlmodelc`` for each padded length, each held against its digest.

LOAD names them in ``artifact_paths`` and ``artifact_digests``, two JSON lists in strings; the first is the model's main
file, the others follow in order. A row goes to the smallest length that holds it, and one that no length holds is
refused, never cut.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from synapse_ane.package_archive import extract
from synapse_host.hookspecs import PluginError

_HASHED_AT_ONCE = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHAPE = re.compile(r"\[1, ([1-9][0-9]{0,5})\]")


@dataclass(frozen=True, slots=True)
class Member:
    """One archive of a set and the digest it must have."""

    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Package:
    """One compiled model on disk: rows of ``length`` positions in, vectors of ``dims`` numbers out."""

    length: int
    dims: int
    directory: Path


def members_of(runtime_config: Mapping[str, str]) -> list[Member]:
    """The archives LOAD names.

    Raises:
        PluginError: config_invalid, where the two lists are missing, malformed or of different lengths.

    """
    paths, digests = (_strings(runtime_config, key) for key in ("artifact_paths", "artifact_digests"))
    if len(paths) != len(digests) or not paths:
        raise _bad_config(f"artifact_paths has {len(paths)} entries and artifact_digests {len(digests)}")
    for digest in digests:
        if not _DIGEST.fullmatch(digest):
            raise _bad_config(f"artifact_digests holds {digest!r}, which is no SHA-256 in lowercase hexadecimal")
    return [Member(Path(path), digest) for path, digest in zip(paths, digests, strict=True)]


def composite_digest(members: Sequence[Member]) -> str:
    """One digest for the whole set, in its order."""
    return hashlib.sha256("\n".join(member.sha256 for member in members).encode()).hexdigest()


def open_set(members: Sequence[Member], folder: Path) -> list[Package]:
    """Verify and unpack every archive below ``folder``; the packages by length.

    Raises:
        PluginError: artifact_invalid: a file is missing or not what its digest says, an archive lies, two packages have
            one length, or they are not of one model.

    """
    packages = []
    for place, member in enumerate(members):
        target = folder / str(place)
        target.mkdir()
        packages.append(_open_member(member, target))
    packages.sort(key=lambda package: package.length)
    lengths = [package.length for package in packages]
    if len(set(lengths)) != len(lengths):
        raise _invalid(f"the set has two packages for one length: {lengths}")
    if len({package.dims for package in packages}) != 1:
        raise _invalid(
            f"the packages of {lengths} positions make vectors of {[each.dims for each in packages]} numbers"
        )
    return packages


def package_for(packages: Sequence[Package], tokens: int) -> Package:
    """The smallest package that holds a row of ``tokens`` tokens; raises ``PluginError`` where none does."""
    for package in packages:
        if tokens <= package.length:
            return package
    longest = packages[-1].length if packages else 0
    raise PluginError(
        "invalid_request", f"a row of {tokens} tokens passes the longest package, {longest}; split the text"
    )


def _open_member(member: Member, folder: Path) -> Package:
    try:
        with member.path.open("rb") as file:
            # The bytes that are hashed are those that are unpacked: one descriptor for both.
            found = _digest(file)
            if found != member.sha256:
                raise _invalid(f"{member.path.name} has the digest {found} and should have {member.sha256}")
            file.seek(0)
            directory = extract(file, member.path.name, folder)
    except OSError as fault:
        raise _invalid(f"{member.path.name} cannot be read: {fault}") from fault
    return _described(directory, member.path.name)


def _described(directory: Path, name: str) -> Package:
    """What the compiled model's own description says of its input and output."""
    try:
        described = json.loads((directory / "metadata.json").read_text("utf-8"))
        (model,) = described
        length = _second(_only(model["inputSchema"], "input_ids")["shape"])
        dims = _second(model["outputSchema"][0]["shape"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as fault:
        raise _invalid(f"{name} has no metadata.json that describes one row of input_ids: {fault!r}") from fault
    return Package(length, dims, directory)


def _only(schema: Any, name: str) -> Any:
    (found,) = [entry for entry in schema if entry["name"] == name]
    return found


def _second(shape: str) -> int:
    matched = _SHAPE.fullmatch(shape)
    if matched is None:
        raise ValueError(f"shape {shape!r} is not one row")
    return int(matched.group(1))


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while part := file.read(_HASHED_AT_ONCE):
        digest.update(part)
    return digest.hexdigest()


def _strings(config: Mapping[str, str], key: str) -> list[str]:
    try:
        found = json.loads(config.get(key, "[]"))
    except ValueError as fault:
        raise _bad_config(f"{key} is no JSON list: {fault}") from fault
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise _bad_config(f"{key} is no JSON list of strings")
    return found


def _bad_config(message: str) -> PluginError:
    return PluginError("config_invalid", f"{message}; give a path and a digest for each package of the set")


def _invalid(message: str) -> PluginError:
    return PluginError("artifact_invalid", f"{message}; fetch the package set again from where it was published")
