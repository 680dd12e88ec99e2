"""Installed content in a real cache: damaged, repaired, removed, held, pinned, shared by two hosts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from synapse_host.downloads.manifest import WantedFile
from synapse_host.downloads.seams import Holder
from synapse_host.errors import ArtifactInvalid, ModelInUse, StoreFailure
from synapse_host.store.tables import SelfCheckTableRow
from synapse_host.testing.download_room import RunningRoom, manifest_of, running_room

pytestmark = pytest.mark.anyio

MODEL, TOKENIZER, CONFIG = b"model" * 20_000, b"tokenizer" * 300, b"config" * 10
FILES = {"model": MODEL, "tokenizer": TOKENIZER}
CONTENTS = [MODEL, TOKENIZER, CONFIG]
MANIFEST = manifest_of(FILES)
SHAS = sorted(file.sha256 for file in MANIFEST.files)
WEIGHTS = MANIFEST.files[0].sha256


@pytest.mark.parametrize("damage", ["zeros", "truncated", "swapped", "gone"])
async def test_damaged_content_is_found_and_a_download_repairs_that_file_alone(tmp_path: Path, damage: str) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        first = await running.download(MANIFEST)
        spoil(running, damage)
        with pytest.raises(ArtifactInvalid) as refused:
            await running.room.verifier.require("model.bin", WEIGHTS, len(MODEL))
        details = refused.value.details or {}
        assert details["recovery_op"] == "models.download"
        assert (details["expected_sha256"], details["expected_size"]) == (WEIGHTS, len(MODEL))
        assert (details["actual_sha256"] is None) == (damage == "gone")
        install = running.room.installs.current("tiny", MANIFEST.manifest_digest)
        assert install is not None
        assert not install.valid
        kept = [path.name for path in running.room.cache.layout.quarantine.iterdir()]
        assert kept == ([] if damage == "gone" else [f"{WEIGHTS}.1"])

        running.source.fetched.clear()
        again = await running.download(MANIFEST)
        assert again["state"] == "committed"
        assert again["job_id"] != first["job_id"]
        assert running.source.fetched == ["model.bin"]
        assert running.room.cache.path(WEIGHTS).read_bytes() == MODEL
        install = running.room.installs.current("tiny", MANIFEST.manifest_digest)
        assert install is not None
        assert install.valid
        await running.room.verifier.require("model.bin", WEIGHTS, len(MODEL))


def spoil(running: RunningRoom, damage: str) -> None:
    path = running.room.cache.path(WEIGHTS)
    if damage == "gone":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(MODEL[:-1])
    elif damage == "zeros":
        path.write_bytes(b"\0" * len(MODEL))
    else:
        other = path.with_name("other")
        other.write_bytes(b"x" * len(MODEL))
        other.replace(path)


async def test_damage_found_only_by_hashing_is_repaired_by_the_download_that_meets_it(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST)
        spoil(running, "zeros")
        running.source.fetched.clear()
        other = manifest_of({"model": MODEL}, catalog_id="other")
        assert (await running.download(other))["state"] == "committed"
        assert running.source.fetched == ["model.bin"]
        assert running.room.cache.path(WEIGHTS).read_bytes() == MODEL


async def test_content_is_hashed_once_while_its_file_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST)
        audited: list[str] = []
        real = type(running.room.cache).audit
        monkeypatch.setattr(
            type(running.room.cache), "audit", lambda cache, digest: (audited.append(digest), real(cache, digest))[1]
        )
        for _ in range(2):
            await running.room.verifier.require("model.bin", WEIGHTS, len(MODEL))
        assert audited == []
        path = running.room.cache.path(WEIGHTS)
        path.write_bytes(MODEL)
        for _ in range(2):
            await running.room.verifier.require("model.bin", WEIGHTS, len(MODEL))
        assert audited == [WEIGHTS]


async def test_only_the_installs_of_damaged_content_are_hit(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        config = manifest_of({"config": CONFIG}, catalog_id="other")
        await running.download(MANIFEST)
        await running.download(config)
        spoil(running, "zeros")
        with pytest.raises(ArtifactInvalid):
            await running.room.verifier.require("model.bin", WEIGHTS, len(MODEL))
        valid = {install.catalog_id: install.valid for install in running.room.installs.all()}
        assert valid == {"tiny": False, "other": True}
    async with running_room(tmp_path, CONTENTS) as after:
        assert {each.catalog_id: each.valid for each in after.room.installs.all()} == valid


async def test_more_files_for_another_backend_join_the_install(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST, "k")
        wider = manifest_of({**FILES, "config": CONFIG})
        running.source.fetched.clear()
        assert (await running.download(wider, "k"))["state"] == "committed"
        assert running.source.fetched == ["config.bin"]
        assert (await running.download(MANIFEST, "k2"))["state"] == "committed"
        install = running.room.installs.current("tiny", MANIFEST.manifest_digest)
        assert install is not None
        assert set(install.members) == {"model.bin", "tokenizer.bin", "config.bin"}


async def test_files_of_one_role_for_several_backends_are_all_installed(tmp_path: Path) -> None:
    """One backend wants a model as another file than the next does."""
    other = WantedFile("model", "other.bin", hashlib.sha256(CONFIG).hexdigest(), len(CONFIG), "/tiny/other.bin")
    both = replace(MANIFEST, files=(*MANIFEST.files, other))
    async with running_room(tmp_path, CONTENTS) as running:
        assert (await running.download(both))["state"] == "committed"
    async with running_room(tmp_path, CONTENTS) as after:
        (install,) = after.room.installs.all()
        assert {member.sha256 for member in install.members.values()} == {*SHAS, other.sha256}
        again = await after.download(both, "again")
        assert (again["state"], after.source.fetched) == ("committed", [])
        await after.room.removal([]).remove("tiny")
        assert after.digests() == []


async def test_removing_takes_every_install_and_only_content_nobody_else_needs(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST, "1")
        await running.download(manifest_of(FILES, version=2), "2")
        await running.download(manifest_of({"tokenizer": TOKENIZER}, catalog_id="other"), "3")
        await running.store.run(lambda session: session.add(check_row("tiny")))
        await running.store.run(lambda session: session.add(check_row("other")))
        removed = await running.room.removal([]).remove("tiny")
        assert removed.manifests == (f"{1:064x}", f"{2:064x}")
        assert removed.freed_bytes == len(MODEL)
        assert running.digests() == [MANIFEST.files[1].sha256]
        assert [install.catalog_id for install in running.room.installs.all()] == ["other"]
        left = await running.store.run(lambda session: session.get(SelfCheckTableRow, check_row("tiny").check_id))
        kept = await running.store.run(lambda session: session.get(SelfCheckTableRow, check_row("other").check_id))
        assert (left is None, kept is None) == (True, False)
        assert await running.room.removal([]).remove("tiny") == type(removed)((), 0)


def check_row(catalog_id: str) -> SelfCheckTableRow:
    return SelfCheckTableRow(
        check_id=catalog_id.encode().hex().ljust(64, "0"),
        catalog_id=catalog_id,
        backend="metal",
        state="passed",
        reason=None,
        key_json="{}",
        figures_json="{}",
        checked_at_ms=1,
    )


class Held:
    def holders(self, catalog_id: str) -> list[Holder]:
        return [Holder("loaded", f"{catalog_id}-metal"), Holder("self_check", "c"), Holder("request", "r")]


async def test_a_held_entry_is_not_removed_and_every_holder_is_named(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        running.source.hold = anyio.Event()
        job = await running.room.jobs.submit(MANIFEST, None)
        with pytest.raises(ModelInUse) as refused:
            await running.room.removal([Held()]).remove("tiny")
        assert refused.value.details == {
            "catalog_id": "tiny",
            "holders": [
                {"kind": "loaded", "model_id": "tiny-metal"},
                {"kind": "self_check", "check_id": "c"},
                {"kind": "request", "lease_id": "r"},
                {"kind": "job", "job_id": job["job_id"]},
            ],
        }
        running.source.hold.set()
        await running.ended(job["job_id"])
        await running.room.removal([]).remove("tiny")


async def test_a_removal_the_store_refuses_leaves_the_install_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST)

        async def refuse(store: object, catalog_id: str) -> list[str]:
            raise StoreFailure("full")

        monkeypatch.setattr("synapse_host.store.download_store.DownloadStore.remove_installs", refuse)
        with pytest.raises(StoreFailure):
            await running.room.removal([]).remove("tiny")
        assert running.room.installs.current("tiny", MANIFEST.manifest_digest) is not None
        assert running.digests() == SHAS


async def test_content_a_reader_holds_outlives_its_removal_until_a_collection(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST)
        with running.room.cache.lease(WEIGHTS):
            removed = await running.room.removal([]).remove("tiny")
            assert removed.freed_bytes == len(TOKENIZER)
            assert running.digests() == [WEIGHTS]
        for now_ms in (1, 2, 3):
            running.room.cache.collect(now_ms=now_ms, grace_ms=0)
        assert running.digests() == []


async def test_a_boot_makes_the_pins_what_the_store_says(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as before:
        await before.download(MANIFEST)
        cache = before.room.cache
        host = cache.owner
        for owner in (f"{host}/operator", f"{host}/install/gone/{'0' * 64}", f"{host}/model/kept", "host-other/x"):
            cache.pin(WEIGHTS, owner)
        cache.unpin(MANIFEST.files[1].sha256, f"{host}/install/tiny/{MANIFEST.manifest_digest}")
    async with running_room(tmp_path, CONTENTS) as after:
        assert after.pins() == [("install", "tiny"), ("model", "kept"), ("operator",), ("x",)]
        owners = [owner for digest, owner in after.room.cache.pins() if digest == MANIFEST.files[1].sha256]
        assert owners == [f"{host}/install/tiny/{MANIFEST.manifest_digest}"]


async def until(done: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not done():
            await anyio.lowlevel.checkpoint()


async def test_a_cache_over_its_limit_gives_up_what_nobody_pins(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS, max_bytes=len(TOKENIZER) + 10) as running:
        config = manifest_of({"config": CONFIG}, catalog_id="other")
        await running.download(MANIFEST, "1")
        with running.room.cache.lease(WEIGHTS):
            await running.room.removal([]).remove("tiny")
        cache = running.room.cache
        await running.download(manifest_of({"tokenizer": TOKENIZER}, version=3), "2")
        await until(lambda: (found := cache.find(WEIGHTS)) is not None and found.tombstone is not None)
        running.clock_ms[0] += 60_000
        await running.download(manifest_of({"tokenizer": TOKENIZER}, version=4), "3")
        await until(lambda: WEIGHTS not in running.digests())
        assert (await running.download(config, "c"))["state"] == "committed"


async def test_a_cache_that_cannot_be_used_stops_no_boot_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with running_room(tmp_path / "home", CONTENTS, cache_root=tmp_path / "file" / "models") as running:
        with pytest.raises(StoreFailure, match="model cache"):
            await running.room.require_cache()
        (tmp_path / "file").unlink()
        await running.room.require_cache()
        assert (await running.download(MANIFEST))["state"] == "committed"


async def test_two_hosts_share_a_cache_and_each_keeps_what_it_needs(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    async with (
        running_room(tmp_path / "a", CONTENTS, cache_root=shared) as first,
        running_room(tmp_path / "b", CONTENTS, cache_root=shared) as second,
    ):
        await first.download(MANIFEST)
        await second.download(MANIFEST)
        assert second.source.fetched == []
        assert (await first.room.removal([]).remove("tiny")).freed_bytes == 0
        assert second.digests() == SHAS
        kept = first.room.cache.collect(now_ms=1, grace_ms=0)
        assert {str(outcome.verdict) for outcome in kept} == {"Keep(reason='pinned_by_foreign_module')"}
        assert (await second.room.removal([]).remove("tiny")).freed_bytes == len(MODEL) + len(TOKENIZER)
        assert first.digests() == []
