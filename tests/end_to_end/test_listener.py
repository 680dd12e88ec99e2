from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from synapse_host.errors import StartRefused
from synapse_host.operations.registry import Registry
from synapse_host.server.listener import serve
from synapse_host.settings import load_settings
from synapse_host.testing.fake_methods import echo_method
from synapse_host.testing.in_process_host import in_process_host
from synapse_host.testing.raw_peer import DEADLINE_S, RawPeer

pytestmark = pytest.mark.anyio

NOBODY = 65534
OTHER_HOST = """
import sys, anyio
from synapse_host.operations.registry import Registry
from synapse_host.server.listener import serve
from synapse_host.settings import load_settings
async def main():
    settings = load_settings({"SYNAPSE_HOME": sys.argv[1]})
    await serve(settings, Registry(), module_generation=1, stop=anyio.Event(), on_ready=lambda: print("up", flush=True))
anyio.run(main)
"""
OTHER_USER = """
import os, socket, struct, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as peer:
    peer.settimeout(30)
    peer.connect(sys.argv[1])
    data = b""
    while chunk := peer.recv(65536):
        data += chunk
sys.stdout.write(data[4:].decode())
"""


@pytest.fixture
def other_host(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OTHER_HOST, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


async def _serve(home: Path) -> None:
    """Serve until refused; a host that starts here would fail the test by its deadline."""
    settings = load_settings({"SYNAPSE_HOME": str(home)})
    with anyio.fail_after(DEADLINE_S):
        await serve(settings, Registry(), module_generation=1, stop=anyio.Event())


async def test_second_host_is_refused_and_told_who_holds_the_lock(
    tmp_path: Path, other_host: subprocess.Popen[str]
) -> None:
    with pytest.raises(StartRefused) as caught:
        await _serve(tmp_path)
    assert f"pid {other_host.pid}" in str(caught.value)
    assert "host.lock" in str(caught.value)
    assert "SYNAPSE_HOME" in str(caught.value)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(tmp_path / "run" / "synapse" / "host.sock"))


async def test_killed_host_leaves_a_socket_that_the_next_one_replaces(
    tmp_path: Path, other_host: subprocess.Popen[str]
) -> None:
    other_host.send_signal(signal.SIGKILL)
    other_host.wait(DEADLINE_S)
    left = tmp_path / "run" / "synapse" / "host.sock"
    assert left.is_socket()
    async with in_process_host(tmp_path, [echo_method()]) as host:
        peer = await host.peer()
        assert (await peer.ask({"id": 1, "method": "fake.echo"}))["id"] == 1


async def test_socket_somebody_answers_on_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "synapse" / "host.sock"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(path))
        stranger.listen()
        with pytest.raises(StartRefused, match="does not hold the lock"):
            await _serve(tmp_path)
        assert path.is_socket()


async def test_file_in_the_sockets_place_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "synapse" / "host.sock"
    path.parent.mkdir(parents=True)
    path.write_text("precious")
    with pytest.raises(StartRefused, match="is no socket"):
        await _serve(tmp_path)
    assert path.read_text() == "precious"


async def test_runtime_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "synapse").write_text("")
    with pytest.raises(StartRefused, match="private directory"):
        await _serve(tmp_path)


async def test_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(StartRefused, match="local file system"):
        await _serve(tmp_path)


async def test_directory_and_files_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "run" / "synapse"
    directory.mkdir(parents=True, mode=0o755)
    async with in_process_host(tmp_path, [echo_method()]) as host:
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.iterdir())}
        assert modes == {directory: 0o700, host.socket: 0o600, host.settings.paths.lock_file: 0o600}


async def test_socket_is_gone_after_the_stop_and_the_lock_is_free(tmp_path: Path) -> None:
    for _ in range(2):
        async with in_process_host(tmp_path, [echo_method()]) as host:
            assert host.socket.is_socket()
        assert not host.socket.exists()


async def test_connections_past_the_limit_are_refused_and_freed_places_are_reused(tmp_path: Path) -> None:
    async with in_process_host(tmp_path, [echo_method()], {"SYNAPSE_SERVER_MAX_CONNECTIONS": "2"}) as host:
        first, second = await host.peer(), await host.peer()
        await second.ask({"id": 1, "method": "fake.echo"})
        third = await host.peer()
        refused = await third.receive()
        assert refused["id"] is None
        assert refused["error"]["code"] == "queue_full"
        assert await third.is_closed()
        await first.close()
        with anyio.fail_after(DEADLINE_S):
            while "error" in await _try_to_ask(await host.peer()):
                await anyio.lowlevel.checkpoint()
        assert (await second.ask({"id": 2, "method": "fake.echo"}))["id"] == 2


async def _try_to_ask(peer: RawPeer) -> dict[str, object]:
    try:
        answer: dict[str, object] = await peer.ask({"id": 1, "method": "fake.echo"})
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return {"error": "closed"}
    await peer.close()
    return answer


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_peer_of_another_user_is_refused() -> None:
    # Not tmp_path: its parents are closed to other users, who would not even reach the socket.
    with tempfile.TemporaryDirectory(prefix="synapse-peer-") as home:
        async with in_process_host(Path(home), [echo_method()]) as host:
            for opened in (Path(home), host.socket.parent.parent, host.socket.parent):
                opened.chmod(0o711)
            host.socket.chmod(0o666)
            command = [sys.executable, "-c", OTHER_USER, str(host.socket)]
            with anyio.fail_after(DEADLINE_S):
                finished = await anyio.run_process(command, check=True)
            answer = finished.stdout.decode()
            assert '"operator_identity_unavailable"' in answer
            assert f"user {NOBODY}" in answer
            peer = await host.peer()
            assert (await peer.ask({"id": 1, "method": "fake.echo"}))["id"] == 1


async def test_peers_user_reaches_the_handler(tmp_path: Path) -> None:
    async with in_process_host(tmp_path, [echo_method()]) as host:
        peer = await host.peer()
        answer = await peer.ask({"id": 1, "method": "fake.echo"})
        assert answer["result"]["peer_uid"] == os.getuid()


async def test_home_with_a_very_long_name_is_served(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30)
    home.mkdir()
    async with in_process_host(home, [echo_method()]) as host:
        assert not host.socket.is_relative_to(home)
        assert stat.S_IMODE(host.socket.parent.stat().st_mode) == 0o700
        peer = await host.peer()
        assert (await peer.ask({"id": 1, "method": "fake.echo"}))["id"] == 1
    assert not host.socket.exists()
