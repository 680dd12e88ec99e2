from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.supervision.socket_path import LONGEST_SOCKET_PATH, worker_socket_path


def test_a_short_id_is_the_file_name() -> None:
    path = worker_socket_path(Path("/run/user/1"), "synapse-owned-cpu-minilm")
    assert path == Path("/run/user/1/synapse/workers/synapse-owned-cpu-minilm.sock")


def test_the_limit_itself_still_fits() -> None:
    folder = "/run/synapse/workers/"
    fitting = "a" * (LONGEST_SOCKET_PATH - len(folder) - len(".sock"))
    assert worker_socket_path(Path("/run"), fitting).name == f"{fitting}.sock"
    assert worker_socket_path(Path("/run"), fitting + "a").name.startswith("wk-")


@pytest.mark.parametrize("worker_id", ["../../etc/passwd", "a/b", ".hidden", "", "mo del", "ä", "x\x00y", "x" * 200])
def test_an_id_that_is_no_file_name_takes_the_short_form(worker_id: str) -> None:
    path = worker_socket_path(Path("/run"), worker_id)
    assert path.parent == Path("/run/synapse/workers")
    assert len(path.name) == len("wk-0123456789abcdef.sock")


def test_short_forms_differ_with_the_id() -> None:
    assert worker_socket_path(Path("/run"), "x" * 200) != worker_socket_path(Path("/run"), "x" * 201)


def test_a_hopeless_directory_is_named_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"/ddd.*103.*SYNAPSE_HOME"):
        worker_socket_path(Path("/" + "d" * 100), "w")
