from __future__ import annotations

import os
from pathlib import Path

import pytest

from synapse_host.socket_paths import MAX_SOCKET_PATH_BYTES, worker_socket_path


def test_a_short_id_is_the_file_name() -> None:
    path = worker_socket_path(Path("/run/user/1"), "synapse-owned-cpu-minilm")
    assert path == Path("/run/user/1/synapse/workers/synapse-owned-cpu-minilm.sock")


def test_the_limit_itself_still_fits() -> None:
    folder = "/run/synapse/workers/"
    fitting = "a" * (MAX_SOCKET_PATH_BYTES - len(folder) - len(".sock"))
    assert worker_socket_path(Path("/run"), fitting).name == f"{fitting}.sock"
    assert worker_socket_path(Path("/run"), fitting + "a").name.startswith("wk-")


@pytest.mark.parametrize("worker_id", ["../../etc/passwd", "a/b", ".hidden", "", "mo del", "ä", "x\x00y", "x" * 200])
def test_an_id_that_is_no_file_name_takes_the_short_form(worker_id: str) -> None:
    path = worker_socket_path(Path("/run"), worker_id)
    assert path.parent == Path("/run/synapse/workers")
    assert len(path.name) == len("wk-0123456789abcdef.sock")


def test_short_forms_differ_with_the_id() -> None:
    assert worker_socket_path(Path("/run"), "x" * 200) != worker_socket_path(Path("/run"), "x" * 201)


def test_a_folder_that_is_too_deep_gives_way_to_one_below_tmp() -> None:
    deep = Path("/" + "d" * 100)
    path = worker_socket_path(deep, "w")
    assert path.parent == Path("/tmp") / f"synapse-{os.getuid()}"
    assert path != worker_socket_path(deep, "v")
    assert path != worker_socket_path(Path("/" + "e" * 100), "w")
