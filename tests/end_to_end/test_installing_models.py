"""Installing models of a catalog from a hub, by the command line and by a client, on real host processes."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.layout import CacheLayout
from synapse_host.cli.exit_codes import Exit
from synapse_host.client.blocking_client import Client
from synapse_host.errors import EXCEPTIONS, ArtifactInvalid, SynapseError
from synapse_host.testing.catalog_hub import host_of, hub_of, path_on
from synapse_host.testing.command_runs import environment_of, run_opctl, run_synapse, synapse_command
from synapse_host.testing.file_server import FileServer, Plan
from synapse_host.testing.models.tiny_catalog import EMBED, OTHER, SHY, TinyCatalog, write_tiny_catalog
from synapse_host.testing.running_host import RunningHost
from synapse_host.testing.small_disk import only_root

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> TinyCatalog:
    return write_tiny_catalog(tmp_path_factory.mktemp("catalog"))


@pytest.fixture
def hub(catalog: TinyCatalog) -> Iterator[FileServer]:
    with hub_of(catalog) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, catalog: TinyCatalog) -> Iterator[tuple[RunningHost, FileServer]]:
    with hub_of(catalog) as hub, host_of(tmp_path_factory.mktemp("home"), catalog, hub) as host:
        yield host, hub


@pytest.fixture
def shared_hub(shared: tuple[RunningHost, FileServer]) -> FileServer:
    return shared[1]


@pytest.fixture
def running(shared: tuple[RunningHost, FileServer]) -> RunningHost:
    """The host of these tests with nothing installed, whatever ran before."""
    host, hub = shared
    hub.stalled.clear()
    with host.client() as client:
        with suppress(SynapseError):
            client.model_unload(f"{EMBED}-reference")
        client.models_remove(EMBED)
    return host


def cache_of(home: Path) -> BlobCache:
    return BlobCache(CacheLayout(home / "cache" / "models"), "test")


def weights_of(catalog: TinyCatalog, catalog_id: str = EMBED) -> str:
    entry = catalog.catalog().entry(catalog_id)
    assert entry is not None
    return next(file.sha256 for file in entry.files if file.role == "model")


def shown(done: subprocess.CompletedProcess[str], status: Exit = Exit.OK) -> Any:
    assert (done.returncode, done.stderr) == (status, "")
    return json.loads(done.stdout)


def test_a_model_is_installed_served_repaired_and_removed_by_commands(
    running: RunningHost, catalog: TinyCatalog, shared_hub: FileServer
) -> None:
    home = running.home
    done = run_synapse("models", "download", EMBED, home=home)
    assert (done.returncode, done.stdout, done.stderr) == (Exit.OK, f"{EMBED} is installed\n", "")
    again = shown(run_synapse("models", "download", EMBED, "--json", home=home))
    assert (again["state"], again["kind"]) == ("committed", "models.download")
    with running.client() as client:
        first = client.embed_query(EMBED, "ab ba", retries=20)

    weights = cache_of(home).path(weights_of(catalog))
    assert shown(run_opctl("cache", "verify", "--json", home=home))["content"][0]["state"] == "whole"
    weights.write_bytes(b"\0" * weights.stat().st_size)
    assert run_opctl("unload", f"{EMBED}-reference", home=home).returncode == Exit.OK
    with running.client() as client, pytest.raises(ArtifactInvalid) as refused:
        client.embed_query(EMBED, "ab ba", retries=20)
    assert refused.value.details is not None
    assert refused.value.details["recovery_op"] == "models.download"
    asked = len(shared_hub.seen)
    assert run_synapse("models", "download", EMBED, home=home).returncode == Exit.OK
    assert [seen.path for seen in shared_hub.seen[asked:]] == [path_on(catalog, EMBED, WEIGHTS)]
    with running.client() as client:
        assert client.embed_query(EMBED, "ab ba", retries=20).fingerprint == first.fingerprint

    held = run_synapse("models", "remove", EMBED, home=home)
    assert held.returncode == Exit.REFUSED
    assert held.stderr.startswith("error: model_in_use: ")
    assert run_opctl("unload", f"{EMBED}-reference", home=home).returncode == Exit.OK
    removed = shown(run_synapse("models", "remove", EMBED, "--json", home=home))
    assert removed["freed_bytes"] > 0
    assert run_synapse("models", "remove", EMBED, home=home).stdout == f"{EMBED} was not installed\n"
    with running.client() as client, pytest.raises(EXCEPTIONS["model_not_installed"]):
        client.embed_query(EMBED, "ab ba")


def test_serving_never_asks_the_network(tmp_path: Path, catalog: TinyCatalog) -> None:
    with hub_of(catalog) as hub, host_of(tmp_path / "home", catalog, hub) as host:
        assert run_synapse("models", "download", EMBED, home=host.home).returncode == Exit.OK
    with host_of(tmp_path / "home", catalog, hub) as host, host.client() as client:
        assert len(client.embed_query(EMBED, "ab", retries=20).vectors) == 1
        with pytest.raises(EXCEPTIONS["model_not_installed"]):
            client.embed_query(OTHER, "ab")
        job = client.models_download(OTHER)
        with pytest.raises(EXCEPTIONS["download_failed"]) as cut:
            client.wait_for_download(job["job_id"])
        assert cut.value.details is not None
        assert cut.value.details["reason"] == "network"


def test_a_refusing_hub_is_told_with_its_status(
    running: RunningHost, catalog: TinyCatalog, shared_hub: FileServer
) -> None:
    shared_hub.plan(path_on(catalog, EMBED, "tokenizer.json"), Plan(403))
    done = run_synapse("models", "download", EMBED, home=running.home)
    assert done.returncode == Exit.REFUSED
    assert done.stderr.startswith("error: download_failed: ")
    assert "403" in done.stderr
    assert cache_of(running.home).layout.digests() == []
    unknown = run_synapse("models", "download", "no-such-model", home=running.home)
    assert unknown.stderr.startswith("error: unknown_model: ")
    nowhere = run_synapse("models", "download", SHY, home=running.home)
    assert nowhere.stderr.startswith("error: backend_unavailable: ")


def test_a_stalled_download_is_shared_and_cancelled(
    running: RunningHost, catalog: TinyCatalog, shared_hub: FileServer
) -> None:
    shared_hub.plan(path_on(catalog, EMBED, WEIGHTS), Plan(stall_after=100))
    with running.client() as client, running.client() as other:
        job = client.models_download(EMBED)
        assert shared_hub.stalled.wait(60)
        assert other.models_download(EMBED, request_key="mine")["job_id"] == job["job_id"]
        # Sent is not yet received.
        while (status := client.model_status(job_id=job["job_id"])).get("bytes_done") != 100:
            assert status["state"] in ("queued", "downloading")
        assert status["state"] == "downloading"
        with pytest.raises(EXCEPTIONS["model_not_installed"]) as refused:
            other.embed_query(EMBED, "ab")
        assert refused.value.details is not None
        assert refused.value.details["download_job_id"] == job["job_id"]
        done = run_synapse("models", "cancel", job["job_id"], home=running.home)
        assert done.stdout == f"download {job['job_id']}: cancelled\n"
        assert client.wait_for_download(job["job_id"])["state"] == "cancelled"
        assert cache_of(running.home).layout.digests() == []


def test_a_killed_host_fails_what_it_was_doing_and_starts_anew(
    tmp_path: Path, catalog: TinyCatalog, hub: FileServer
) -> None:
    home = tmp_path / "home"
    hub.plan(path_on(catalog, EMBED, "tokenizer.json"), Plan(stall_after=10))
    host = host_of(home, catalog, hub).start()
    with host.client() as client:
        job = client.models_download(EMBED)
        assert hub.stalled.wait(60)
    assert cache_of(home).find(weights_of(catalog)) is not None
    host.kill()
    with host_of(home, catalog, hub) as again, again.client() as client:
        status = client.model_status(job_id=job["job_id"])
        assert (status["state"], status["error"]["code"]) == ("failed", "module_restarted")
        assert cache_of(home).layout.digests() == []
        assert not list(cache_of(home).layout.incoming.iterdir())
        fresh = client.models_download(EMBED)
        assert fresh["job_id"] != job["job_id"]
        assert client.wait_for_download(fresh["job_id"])["state"] == "committed"


def test_a_host_that_ends_during_a_download_is_told_with_what_to_type(
    tmp_path: Path, catalog: TinyCatalog, hub: FileServer
) -> None:
    home = tmp_path / "home"
    hub.plan(path_on(catalog, EMBED, "tokenizer.json"), Plan(stall_after=10))
    host = host_of(home, catalog, hub).start()
    waiting = subprocess.Popen(
        synapse_command("models", "download", EMBED), stderr=subprocess.PIPE, env=environment_of(home), text=True
    )
    assert hub.stalled.wait(60)
    host.kill()
    _, said = waiting.communicate(timeout=100)
    assert waiting.returncode == Exit.NO_HOST
    assert said.startswith(f"error: {EMBED} is not known to be installed, the host closed the connection (")
    assert said.endswith(f"synapse-host serve), then: synapse-host models download {EMBED}\n")


def test_two_homes_share_a_cache_and_fetch_once(tmp_path: Path, catalog: TinyCatalog, hub: FileServer) -> None:
    shared = {"SYNAPSE_CACHE_DIRECTORY": str(tmp_path / "shared")}
    with (
        host_of(tmp_path / "a", catalog, hub, shared) as first,
        host_of(tmp_path / "b", catalog, hub, shared) as second,
    ):
        for host in (first, second):
            assert run_synapse("models", "download", EMBED, home=host.home).returncode == Exit.OK
        assert len(hub.seen) == 3
        with second.client() as client:
            client.embed_query(EMBED, "ab", retries=20)
            removed = run_synapse("models", "remove", EMBED, "--json", home=first.home)
            assert json.loads(removed.stdout)["freed_bytes"] == 0
            with first.client() as other:
                for outcome in other.call("cache.gc", {"grace_ms": 0})["outcomes"]:
                    assert outcome["reason"] in ("pinned_by_foreign_module", "shared_reader_or_gc_active")
            client.embed_query(EMBED, "ba")


@only_root
def test_a_cache_mounted_read_only_serves(tmp_path: Path, catalog: TinyCatalog, hub: FileServer) -> None:
    shared, view = tmp_path / "shared", tmp_path / "view"
    for folder in (shared, view):
        folder.mkdir()
    with host_of(tmp_path / "a", catalog, hub, {"SYNAPSE_CACHE_DIRECTORY": str(shared)}) as writer:
        assert run_synapse("models", "download", EMBED, home=writer.home).returncode == Exit.OK
    subprocess.run(["mount", "--bind", str(shared), str(view)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(view)], check=True)
        asked = len(hub.seen)
        with host_of(tmp_path / "b", catalog, hub, {"SYNAPSE_CACHE_DIRECTORY": str(view)}) as reader:
            assert run_synapse("models", "download", EMBED, home=reader.home).returncode == Exit.OK
            with reader.client() as client:
                assert len(client.embed_query(EMBED, "ab", retries=20).vectors) == 1
            other = run_synapse("models", "download", OTHER, home=reader.home)
            assert (other.returncode, "right to write there" in other.stderr) == (Exit.REFUSED, True)
            pinned = run_opctl("cache", "pin", weights_of(catalog), home=reader.home)
            assert (pinned.returncode, "right to write there" in pinned.stderr) == (Exit.REFUSED, True)
        assert len(hub.seen) - asked <= 1
    finally:
        subprocess.run(["umount", "-l", str(view)], check=True)


def test_a_terminal_sees_bytes_rate_and_time_left(
    running: RunningHost, catalog: TinyCatalog, shared_hub: FileServer
) -> None:
    pauses = Plan(cut_after=100), Plan(503, {"Retry-After": "1"}), Plan(cut_after=20_000)
    shared_hub.plan(path_on(catalog, EMBED, WEIGHTS), *pauses, Plan(503, {"Retry-After": "1"}))
    master, slave = pty.openpty()
    process = subprocess.Popen(
        synapse_command("models", "download", EMBED), stderr=slave, stdout=slave, env=environment_of(running.home)
    )
    os.close(slave)
    seen = b""
    try:
        while data := os.read(master, 65_536):
            seen += data
    except OSError:
        pass  # the terminal's other end is closed
    os.close(master)
    assert process.wait(60) == 0
    assert b"bytes" in seen or b"kB" in seen
    assert b"/s" in seen
    assert b"is installed" in seen


def test_the_token_goes_to_the_hub_and_into_no_log(tmp_path: Path, catalog: TinyCatalog, hub: FileServer) -> None:
    environment = {"HF_TOKEN": "hf_very_secret", "SYNAPSE_LOG_LEVEL": "debug"}
    hub.plan(path_on(catalog, EMBED, "config.json"), Plan(503))
    host = host_of(tmp_path / "home", catalog, hub, environment)
    with host:
        assert run_synapse("models", "download", EMBED, home=host.home).returncode == Exit.OK
        with host.client() as client:
            client.embed_query(EMBED, "ab", retries=20)
            (lane,) = client.call("admission.status")["health"]["lanes"]
        surroundings = Path(f"/proc/{lane['worker_pid']}/environ")
        if surroundings.exists():
            assert b"SYNAPSE_WORKER_ID" in surroundings.read_bytes()
            assert b"hf_very_secret" not in surroundings.read_bytes()
    assert {seen.headers["authorization"] for seen in hub.seen} == {"Bearer hf_very_secret"}
    assert "hf_very_secret" not in "".join(host.output)


def test_pins_and_collection_by_commands(running: RunningHost, tmp_path: Path) -> None:
    home = running.home
    (tmp_path / "notes").write_text("mine")
    pinned = shown(run_opctl("cache", "pin", str(tmp_path / "notes"), "--json", home=home))
    digest = pinned["artifact"]["digest"]
    kept = run_opctl("cache", "gc", home=home)
    assert kept.stdout.splitlines()[1] == f"{digest}\tkept\tpinned by this host; see cache pins"
    listed = [line.split("\t") for line in run_opctl("cache", "pins", home=home).stdout.splitlines()]
    (mine,) = [row for row in listed if row[0] == digest]
    assert mine[1:4] == ["4", "operator", "-"]
    content = shown(run_opctl("cache", "pins", "--json", home=home))["content"]
    assert [each["pins"] for each in content if each["digest"] == digest] == [[f"{mine[4]}/operator"]]
    assert run_opctl("cache", "pin", digest, "--remove", home=home).returncode == Exit.OK
    assert (
        "\tmarked\tnothing needs it; a collection after "
        in run_opctl("cache", "gc", "--grace-ms", "0", home=home).stdout
    )
    assert "\tdeleted\t4 bytes freed\n" in run_opctl("cache", "gc", "--grace-ms", "0", home=home).stdout
    assert run_opctl("cache", "pin", digest, home=home).returncode == Exit.REFUSED


def test_the_doctor_finds_what_is_wrong_and_says_what_to_do(tmp_path: Path, catalog: TinyCatalog) -> None:
    home = tmp_path / "home"
    healthy = shown(run_opctl("doctor", "--json", home=home))
    assert all(finding["ok"] for finding in healthy["findings"])
    with hub_of(catalog) as hub, host_of(home, catalog, hub) as host:
        assert run_synapse("models", "download", EMBED, home=home).returncode == Exit.OK
        subjects = {each["subject"]: each for each in shown(run_opctl("doctor", "--json", home=home))["findings"]}
        assert "a host answers" in subjects["socket"]["seen"]
        assert subjects["store"]["seen"].endswith("is whole")
        assert subjects["cached content"]["ok"]
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(host.socket))
    weights = cache_of(home).path(weights_of(catalog))
    weights.write_bytes(b"x")
    layout = cache_of(home).layout
    record = layout.metadata_file(next(digest for digest in layout.digests() if digest != weights.name))
    record.write_text("{")
    store = home / "data" / "synapse.sqlite3"
    data = bytearray(store.read_bytes())
    data[4096:12288] = b"\xff" * 8192
    store.write_bytes(data)
    done = run_opctl("doctor", "--json", home=home)
    found = {each["subject"]: each for each in shown(done, Exit.REFUSED)["findings"] if not each["ok"]}
    assert set(found) - {"installed models"} == {"store", "socket", "cached content", "cache record", "quarantine"}
    assert str(record) in found["cache record"]["seen"]
    assert subjects["installed models"]["seen"] == f"every file of {EMBED} is here"
    assert all(each["remedy"] for each in found.values())
    assert weights.name in found["cached content"]["seen"]
    (home / "synapse.toml").write_text("[log]\nlevel = 7\n")
    wrong = run_opctl("doctor", home=home)
    assert wrong.returncode == Exit.REFUSED
    assert "settings\tPROBLEM" in wrong.stdout
    assert "log.level" in wrong.stdout


def test_a_client_is_refused_as_the_commands_are(running: RunningHost) -> None:
    with running.client() as client:
        assert isinstance(client, Client)
        with pytest.raises(SynapseError) as refused:
            client.models_remove(f"{EMBED}-reference")
        assert refused.value.details == {"model_id": f"{EMBED}-reference", "catalog_id": EMBED}
