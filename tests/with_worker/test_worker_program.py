"""The worker program against a host made by hand: ends of the host, frames no host would send, what it imports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from synapse_host.framing import FrameDecoder, frame_header
from synapse_host.testing.fake_distributions import install_backend
from synapse_host.testing.process_watch import wait_until_gone
from synapse_host.testing.workers.fake_engine import FAKE_ENGINE, TRICKS, load_request
from synapse_host.testing.workers.running_worker import PATIENCE_S
from synapse_host.worker.hang_up import EXIT_ORPHANED
from synapse_host.worker_protocol.messages import EmbedBatchRequest, Message

TOKEN = {trick: token for token, trick in TRICKS.items()}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    install_backend(folder, "fake", FAKE_ENGINE)
    return folder


class HandmadeHost:
    """A listener and one accepted worker; speaks frames and nothing else."""

    def __init__(self, folder: Path, site: Path) -> None:
        path = str(folder / "host.sock")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(PATIENCE_S)
            command = [sys.executable, "-P", "-m", "synapse_host.worker", "fake", "--socket", path, "--nonce", "n"]
            env = {**os.environ, "PYTHONPATH": str(site)}
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
            self.socket, _ = listener.accept()
        self.socket.settimeout(PATIENCE_S)
        self._decoder = FrameDecoder(1 << 26)

    def receive(self) -> bytes | None:
        while (frame := self._decoder.next_frame()) is None:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._decoder.feed(data)
        return frame

    def send(self, *payloads: bytes) -> None:
        self.socket.sendall(b"".join(frame_header(len(p), 1 << 26) + p for p in payloads))

    def tell(self, message: Message, *raw: bytes) -> None:
        self.send(json.dumps(message.to_wire()).encode(), *raw)

    def greet(self) -> None:
        assert json.loads(self.receive() or b"{}")["v"] == 3
        self.send(b'{"v":3,"accept":true,"max_frame":67108864}')

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def host(tmp_path: Path, site: Path) -> Iterator[HandmadeHost]:
    handmade = HandmadeHost(tmp_path, site)
    yield handmade
    handmade.close()


def test_the_end_of_the_host_while_idle_is_an_orderly_exit(host: HandmadeHost) -> None:
    host.greet()
    host.socket.close()
    assert host.wait() == 0


def test_a_host_that_closes_instead_of_accepting_ends_the_worker(host: HandmadeHost) -> None:
    host.receive()
    host.socket.close()
    assert host.wait() == 72


def test_shutdown_ends_the_worker_even_when_the_host_is_gone_at_once(host: HandmadeHost) -> None:
    host.greet()
    host.send(b'{"type":"SHUTDOWN"}')
    host.socket.close()
    assert host.wait() == 0


def test_the_end_of_the_host_in_a_request_leaves_no_orphan(host: HandmadeHost, tmp_path: Path) -> None:
    host.greet()
    host.tell(load_request(tmp_path))
    model_ref = json.loads(host.receive() or b"{}")["model_ref"]
    token = TOKEN["never returns, without holding the interpreter"]
    message = EmbedBatchRequest("embed-1", model_ref, "mean", True, [{"id": "a", "n_tokens": 1}])
    host.tell(message, token.to_bytes(4, "little"))
    assert host.process.stderr is not None
    assert host.process.stderr.readline() == b"stuck\n"
    host.socket.close()
    assert host.wait() == EXIT_ORPHANED


@pytest.mark.parametrize("payload", [b"{", b'{"type":"RERANK_EVERYTHING","req_id":"r"}', b'{"type":"PING"}'])
def test_a_request_it_cannot_read_is_answered_without_id_and_ends_the_worker(
    host: HandmadeHost, payload: bytes
) -> None:
    host.greet()
    host.send(payload)
    answer = json.loads(host.receive() or b"{}")
    assert (answer["type"], answer["code"], "req_id" in answer) == ("ERR", "invalid_request", False)
    assert host.receive() is None
    assert host.wait() == 71


def test_a_worker_without_a_host_says_so(tmp_path: Path, site: Path) -> None:
    command = [sys.executable, "-P", "-m", "synapse_host.worker", "fake", "--socket", "/nonexistent", "--nonce", "n"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 74
    assert "/nonexistent" in done.stderr


def test_a_probe_answers_one_line_whatever_the_plugin_prints(site: Path) -> None:
    noisy = FAKE_ENGINE.replace("import mmap", "print('loading kernels')\nimport mmap")
    (site / "fake_backend.py").write_text(noisy)
    command = [sys.executable, "-P", "-m", "synapse_host.worker", "fake", "--probe-capability"]
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True, env=env)
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["description"]["engine"] == "fake-engine"
    assert "loading kernels" in done.stderr


def test_neither_numpy_nor_the_hosts_libraries_are_needed_before_hello() -> None:
    heavy = "{'numpy', 'anyio', 'asyncio', 'pydantic', 'sqlmodel', 'tokenizers'}"
    program = (
        "import sys, synapse_host.worker.__main__, synapse_host.backends.loaded_plugin; "
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == b"[]\n"


KILLED_HOST = """
import anyio, sys
from pathlib import Path
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec

async def main():
    async with anyio.create_task_group() as tasks:
        spec = WorkerSpec("fake", "w", Path(sys.argv[1]), accept_deadline_s=30, hello_deadline_s=30)
        worker = await Worker.start(spec, tasks)
        print(worker.pid, flush=True)
        await worker.closed.wait()

anyio.run(main)
"""


def test_a_killed_host_takes_a_worker_along_that_never_looks_at_its_socket(tmp_path: Path, site: Path) -> None:
    """The kernel's signal alone: the worker is stopped, so it cannot notice the end of the connection."""
    env = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", KILLED_HOST, str(tmp_path / "s.sock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        host.kill()
    if sys.platform != "linux":
        os.kill(pid, signal.SIGCONT)
    assert wait_until_gone(pid)
