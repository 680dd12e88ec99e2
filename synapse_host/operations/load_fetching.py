"""The files of a load that come from elsewhere: fetched into the model cache, then laid out as a directory.

The directory holds links to the content of the cache under the names the files were published with, so that loading
finds what it would find in anybody's download.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from synapse_host.cache.pin_owners import model_owner, operator_owner
from synapse_host.downloads.manifest import WantedFile
from synapse_host.downloads.room import DownloadRoom
from synapse_host.errors import ArtifactInvalid, InvalidRequest, StoreFailure
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_hex
from synapse_host.models.load_request import LoadRequest
from synapse_host.operations.load_manifest import LoadPlan

#: Told how many bytes of all files are here; of how many is not known before they are.
OnBytes = Callable[[int], None]


class LoadFetching:
    """Brings the files of loads into directories below ``folder``."""

    def __init__(self, room: DownloadRoom, folder: Path) -> None:
        self._room = room
        self._folder = folder

    async def bring(self, plan: LoadPlan, on_bytes: OnBytes) -> LoadRequest:
        """The request with the directory its files lie in by then.

        Raises:
            DownloadFailed: the network, the server or a full disk.
            ArtifactInvalid: what came is not what is wanted, or a local file cannot be read.
            InvalidRequest: a local name leads out of its directory.
            StoreFailure: the cache cannot be written.

        """
        await self._room.require_cache(to_write=plan.pin)
        owner = model_owner(self._room.cache.owner, plan.request.model_id or "")
        here: dict[str, int] = {}
        for file in plan.fetched:

            def told(count: int, name: str = file.name) -> None:
                here[name] = count
                on_bytes(sum(here.values()))

            await self._fetch(file, owner, told)
            if plan.pin:
                await anyio.to_thread.run_sync(
                    self._room.cache.pin, file.sha256, operator_owner(self._room.cache.owner)
                )
        directory = await anyio.to_thread.run_sync(self._laid_out, plan)
        return replace(plan.request, directory=str(directory))

    async def give_up(self, plan: LoadPlan) -> None:
        """Take the pins of a load back that registered nothing."""
        owner = model_owner(self._room.cache.owner, plan.request.model_id or "")
        for file in plan.fetched:
            await anyio.to_thread.run_sync(self._room.cache.unpin, file.sha256, owner)

    def forget_others(self, model_paths: Iterable[str]) -> None:
        """Remove the directories no registered model is loaded from. Blocks."""
        kept = {Path(path).parent for path in model_paths}
        if self._folder.is_dir():
            for directory in self._folder.iterdir():
                if directory not in kept:
                    shutil.rmtree(directory, ignore_errors=True)

    async def _fetch(self, file: WantedFile, owner: str, on_bytes: Callable[[int], None]) -> None:
        room = self._room
        if not await self._is_here(file):
            await room.source.fetch(file, owner=owner, on_bytes=on_bytes)
            await room.verifier.note(file.sha256)
        await anyio.to_thread.run_sync(room.cache.pin, file.sha256, owner)

    async def _is_here(self, file: WantedFile) -> bool:
        try:
            await self._room.verifier.require(file.name, file.sha256, None)
        except ArtifactInvalid:
            return False
        return True

    def _laid_out(self, plan: LoadPlan) -> Path:
        request = plan.request
        fetched = {file.name: file.sha256 for file in plan.fetched}
        local = [] if not request.directory else _local_names(request, fetched)
        name = sha256_hex(canonical_json([sorted(fetched.items()), request.directory, local]))[:32]
        directory, staged = self._folder / name, self._folder / f"{name}.{os.getpid()}.new"
        try:
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir(mode=0o700, parents=True)
            for file, sha256 in fetched.items():
                _link(self._room.cache.path(sha256), _inside(staged, file))
            for file in local:
                _link(_inside(Path(request.directory), file).resolve(), _inside(staged, file))
            shutil.rmtree(directory, ignore_errors=True)
            staged.rename(directory)
        except OSError as problem:
            raise StoreFailure(
                f"{self._folder} cannot take the files of the model: {problem}; free disk space there or repair it"
            ) from problem
        return directory


def _local_names(request: LoadRequest, fetched: Collection[str]) -> Sequence[str]:
    """Files of the request's own directory that go beside those fetched; what is not there is missed when loading."""
    names = [file[0] for file in (request.model, request.tokenizer, request.config, *request.extra)]
    return [name for name in names if name not in fetched and (Path(request.directory) / name).is_file()]


def _inside(root: Path, name: str) -> Path:
    path = Path(os.path.normpath(root / name))
    if root not in path.parents:
        raise InvalidRequest(f"file {name!r} is no name inside its directory; correct it", details={"file": name})
    return path


def _link(content: Path, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        path.hardlink_to(content)
    except OSError:
        # Another file system, or one without links.
        shutil.copyfile(content, path)
