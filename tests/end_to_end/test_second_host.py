"""A second host on the directories of a running one is refused before it has touched anything of it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from synapse_host.cli.exit_codes import Exit
from synapse_host.testing.running_host import RunningHost


def serve_again(home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "synapse_host", "serve"],
        env={**os.environ, "SYNAPSE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=100,
    )


def stored_generation(home: Path) -> int:
    store = sqlite3.connect(f"file:{home}/data/synapse.sqlite3?mode=ro", uri=True)
    try:
        return int(store.execute("SELECT module_generation FROM module_meta").fetchone()[0])
    finally:
        store.close()


def test_a_second_host_says_who_holds_the_lock_and_leaves_the_store_alone(tmp_path: Path) -> None:
    host = RunningHost(tmp_path)
    with host, host.client() as client:
        generation = client.models_list()["module_generation"]
        for _ in range(2):
            refused = serve_again(tmp_path)
            assert refused.returncode == Exit.NOT_STARTED
            assert f"pid {host.process.pid}" in refused.stderr
            assert "host.lock" in refused.stderr
            assert "Traceback" not in refused.stderr
        assert stored_generation(tmp_path) == generation
        assert client.models_list()["module_generation"] == generation
        with host.client() as other:
            assert other.models_list()["models"] == []
    with host, host.client() as client:
        assert client.models_list()["module_generation"] == generation + 1


def test_the_lock_of_a_killed_host_is_free(tmp_path: Path) -> None:
    host = RunningHost(tmp_path)
    for expected in (1, 2, 3):
        with host:
            with host.client() as client:
                assert client.models_list()["module_generation"] == expected
            host.kill()
