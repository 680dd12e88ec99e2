"""A whole host in this process, from loading to unloading, with every lock watched; and the page that lists them."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import anyio
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.host import run_host
from synapse_host.settings import load_settings
from synapse_host.testing.lock_watch import ORDER, watched_locks
from synapse_host.testing.running_host import load_model

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "locks.md"
#: What makes something of the standard library or anyio that can be waited for and held.
LOCKS = re.compile(r"\b(Lock|RLock|Semaphore|BoundedSemaphore|CapacityLimiter|Condition)\(")


def use(socket: Path, directory: Path) -> None:
    with Client.connect(socket) as client:
        load_model(client, directory, engine="reference", model_id="tiny")
        for _ in range(2):
            client.embed_query("tiny", "the tide came in")
            client.model_unload("tiny")


@pytest.mark.anyio
async def test_nobody_takes_a_lock_out_of_order(tmp_path: Path, tiny_directory: Path) -> None:
    settings, stop, ready = (
        load_settings({"SYNAPSE_HOME": str(tmp_path), "SYNAPSE_TEST_HARDWARE_DIR": str(tmp_path)}),
        anyio.Event(),
        anyio.Event(),
    )
    with watched_locks() as watch:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(run_host, settings, stop=stop, on_ready=ready.set))
            await ready.wait()
            await anyio.to_thread.run_sync(use, settings.paths.host_socket, tiny_directory)
            stop.set()
    assert {name: count for name, count in watch.taken.items() if not count} == {}


def test_the_page_lists_the_locks_in_their_order() -> None:
    listed = re.findall(r"^\d+\. \*\*(.+?)\*\*", PAGE.read_text(), re.MULTILINE)
    assert listed == list(ORDER)


def test_the_page_names_every_file_with_a_lock_in_it() -> None:
    page = PAGE.read_text()
    modules = [path for path in (ROOT / "synapse_host").rglob("*.py") if "testing" not in path.parts]
    locking = {str(path.relative_to(ROOT / "synapse_host")) for path in modules if LOCKS.search(path.read_text())}
    assert {name for name in locking if f"`{name}`" not in page} == set()
    assert "direct_stream.py" in locking
