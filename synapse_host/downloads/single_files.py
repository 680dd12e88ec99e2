"""Single files for the cache, outside the catalog: from a pinned address or from this machine."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import anyio.to_thread

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.metadata import BlobMetadata
from synapse_host.downloads.manifest import WantedFile
from synapse_host.downloads.room import DownloadRoom
from synapse_host.downloads.sources import address_fault, is_web_address, names_branch
from synapse_host.errors import ArtifactInvalid, InvalidRequest
from synapse_host.model_files.source_files import open_regular, read_file
from synapse_host.tokenization.library_tokenizer import sanitized_digest

_BLOCK_BYTES = 4 * 1024 * 1024
#: Larger than any published tokenizer.json.
_TOKENIZER_BYTES = 256 * 1024 * 1024


def is_pinned_address(source: str, expected_sha256: str | None) -> bool:
    """Whether ``source`` is on the network; refused before any of it is asked unless the content is pinned.

    Raises:
        InvalidRequest: an address without a digest, of a branch or of no server, neither an address nor an absolute
            path, or one with a NUL; details ``source_url``.

    """
    if "\0" in unquote(source):
        raise _refused(source, "holds a NUL character, which no path or address can; correct it")
    if is_web_address(source):
        if expected_sha256 is None:
            raise _refused(source, "has no digest to be held against; give expected_digest")
        if (fault := address_fault(source)) is not None:
            raise _refused(source, fault)
        if names_branch(source):
            raise _refused(source, "names a branch, which moves; name a revision")
        return True
    if not source.startswith(("/", "file:///")):
        raise _refused(source, "is neither an http(s) address nor an absolute path; correct it")
    if source.startswith("file:") and (set("?#") & set(source)):
        raise _refused(source, "has a query or a fragment, and no file has one; write ? as %3F and # as %23")
    if not _path_of(source).name:
        raise _refused(source, "names no file; name one")
    return False


async def fetch_pinned(room: DownloadRoom, source: str, sha256: str, owner: str) -> BlobMetadata:
    """The content of an address in the cache, pinned by ``owner``; not asked for where it is here and whole.

    Raises as ``Fetcher.fetch``.
    """
    name = PurePosixPath(urlsplit(source).path).name or "file"
    cache = room.cache
    if await anyio.to_thread.run_sync(cache.find, sha256) is None or not await _is_whole(room, name, sha256):
        await room.source.fetch(WantedFile("file", name, sha256, None, source), owner=owner, on_bytes=lambda _: None)
        await room.verifier.note(sha256)
    return await anyio.to_thread.run_sync(cache.pin, sha256, owner)


def read_in(cache: BlobCache, source: str, expected_sha256: str | None, owner: str) -> BlobMetadata:
    """The content of a file of this machine in the cache, pinned by ``owner``. Blocks.

    Raises:
        ArtifactInvalid: it cannot be read, or is not what is expected.
        StoreFailure: the cache cannot be written.

    """
    path = _path_of(source)
    with open_regular(path) as descriptor, open(descriptor, "rb", closefd=False) as file, cache.ingest() as ingest:
        while block := file.read(_BLOCK_BYTES):
            ingest.write(block)
        return ingest.commit(name=path.name, source_url=path.as_uri(), owner=owner, expected_sha256=expected_sha256)


def _path_of(source: str) -> Path:
    """The file of this machine that a path or a file address names."""
    return Path(unquote(urlsplit(source).path) if source.startswith("file:") else source)


def tokenizer_digest(path: Path) -> str:
    """The identity of a tokenizer.json of this machine; raises ``ArtifactInvalid``, ``InvalidRequest``. Blocks."""
    if "\0" in str(path):
        raise _bad_tokenizer(path, "holds a NUL character, which no path can; correct it")
    data = read_file(path, limit=_TOKENIZER_BYTES)
    try:
        return sanitized_digest(data)
    except InvalidRequest as fault:
        # Which calls every file by the name it has among a model's.
        raise _bad_tokenizer(path, f"is not the file it should be: {fault.message}") from fault


def _bad_tokenizer(path: Path, fault: str) -> InvalidRequest:
    shown = str(path)[:200]
    return InvalidRequest(f"tokenizer_path {shown!r} {fault}", details={"tokenizer_path": shown})


async def _is_whole(room: DownloadRoom, name: str, sha256: str) -> bool:
    try:
        await room.verifier.require(name, sha256, None)
    except ArtifactInvalid:
        return False
    return True


def _refused(source: str, fault: str) -> InvalidRequest:
    return InvalidRequest(f"source_url {source[:200]!r} {fault}", details={"source_url": source[:200]})
