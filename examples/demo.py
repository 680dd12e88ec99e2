"""The demonstration behind ``make demo``: a real model answers questions over this project's own documentation.

It does what a program using the host does, and nothing else: start a host, load a model, certify it, embed passages,
compare vectors. Everything it makes lies in a temporary directory; nothing of yours is touched and nothing is
downloaded.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten

from synapse_host.cli.output import print_text, progress_bar
from synapse_host.cli.passages import Passage, nearest, read_passages
from synapse_host.client.blocking_client import Client
from synapse_host.client.faults import ConnectionLost, HostUnreachable, ReplyMismatch
from synapse_host.client.replies import EmbedReply
from synapse_host.errors import SynapseError
from synapse_host.settings import resolve_paths
from synapse_host.testing.models.minilm import minilm_directory

ROOT = Path(__file__).resolve().parents[1]
MODEL = "minilm"
QUESTIONS = (
    "What happens to a text that is longer than the model's limit?",
    "How can I be sure that two vectors come from the same model?",
    "Why does the host refuse a model that I have just loaded?",
)
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 20.0


class DemoFailed(Exception):
    """Something did not go as it must; the message says what."""


@contextmanager
def running_host(home: Path) -> Iterator[Path]:
    """A host below ``home``; gives its socket, and stops it with SIGTERM at the end."""
    environment = {**os.environ, "SYNAPSE_HOME": str(home)}
    log = home / "host.log"
    with log.open("wb") as errors:
        command = [sys.executable, "-m", "synapse_host", "serve"]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=errors)
    try:
        socket = resolve_paths(environment).host_socket
        wait_until_it_answers(process, socket, log)
        yield socket
        process.send_signal(signal.SIGTERM)
        status = process.wait(STOP_DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    if status != 0:
        raise DemoFailed(f"the host ended with status {status}:\n{log.read_text()[-2000:]}")


def wait_until_it_answers(process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    """Connect until it works; raises ``DemoFailed`` with the host's last words when it never does."""
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            Client.connect(socket).close()
        except HostUnreachable:
            time.sleep(0.05)
        else:
            return
    raise DemoFailed(f"the host did not start:\n{log.read_text()[-2000:]}")


def load_and_certify(client: Client) -> None:
    """Load MiniLM on the cpu backend and measure it against the reference implementation."""
    job = client.model_load(source="file", path=str(minilm_directory()), engine="cpu", model_id=MODEL)
    loaded = client.wait_for_load(job["job_id"])
    print_text(f"   fingerprint {loaded['fingerprint']}")
    print_text("3. Certifying it against the reference implementation (some seconds)")
    probed = client.wait_for_probe(client.probe_start([MODEL])["job_id"])
    (lane,) = probed["lanes"]
    if not lane["certified"]:
        raise DemoFailed(f"{MODEL} was not certified: {lane['blocking_reason']}")
    texts = lane["certification"]["evidence"]["texts"]
    print_text(
        f"   {texts['texts']} texts: mean cosine {texts['mean_cosine']:.7f}, lowest {texts['min_cosine']:.7f}; "
        f"a short query takes {lane['performance']['single_item_latency_p50_ms']:.1f} ms"
    )


def embed_documentation(client: Client) -> tuple[list[Passage], EmbedReply]:
    """The paragraphs of README and docs with their vectors."""
    os.chdir(ROOT)
    passages = read_passages([Path("README.md"), Path("docs")], on_skipped=print)
    print_text(f"4. Embedding the {len(passages)} paragraphs of this project's documentation")
    began = time.perf_counter()
    with progress_bar("   paragraphs") as show:
        reply = client.embed_many(MODEL, [passage.text for passage in passages], on_progress=show)
    seconds = time.perf_counter() - began
    tokens = sum(reply.real_token_counts)
    print_text(f"   {tokens} tokens in {seconds:.2f} s: {tokens / seconds:,.0f} tokens per second")
    return passages, reply


def answer(client: Client, question: str, passages: list[Passage], reply: EmbedReply) -> EmbedReply:
    """Print the two passages nearest to ``question``, under exactly the identity the passages were embedded with."""
    asked = client.embed_query(MODEL, question, required_fingerprint=reply.fingerprint)
    print_text(f"\n   {question}", style="bold")
    truncated = [cut.truncated for cut in reply.truncations]
    for match in nearest(asked.vectors[0], passages, reply.vectors, truncated, top=2):
        place = f"{match.passage.file}:{match.passage.line}"
        print_text(f"   {match.score:.3f}  {place}")
        print_text(f"          {shorten(match.passage.text, 160, placeholder=' …')}", style="dim")
    return asked


def print_envelope(reply: EmbedReply) -> None:
    """The identity that came with an answer."""
    engine = reply.provenance["engine"]
    fields = {
        "fingerprint": reply.fingerprint,
        "engine": f"{engine['engine']} {engine['version']} {json.dumps(engine['build_flags'])}",
        "dims": reply.dims,
        "tokens": f"{reply.real_token_counts[0]}, cut: {'yes' if reply.truncations[0].truncated else 'no'}",
        "content_sha256": reply.content_sha256[0],
        "generation, epoch": f"{reply.module_generation}, {reply.table_epoch}",
    }
    print_text("\n6. What came with the last answer, beside its vector")
    for name, value in fields.items():
        print_text(f"   {name:<18} {value}")


def run() -> None:
    """The whole demonstration."""
    # A short name: a socket's path may have 103 bytes.
    with tempfile.TemporaryDirectory(prefix="synapse-demo-", dir="/tmp") as home:
        print_text(f"1. Starting a host below {home}")
        with running_host(Path(home)) as socket, Client.connect(socket) as client:
            print_text("2. Loading all-MiniLM-L6-v2 on the cpu backend")
            load_and_certify(client)
            passages, reply = embed_documentation(client)
            print_text("5. Asking three questions; below each the nearest paragraphs with their cosine")
            for question in QUESTIONS:
                last = answer(client, question, passages, reply)
            print_envelope(last)
        print_text("7. The host stopped with status 0, and its directory is gone")


def main() -> int:
    """Run; a failure is one message on standard error and status 1."""
    try:
        run()
    except SynapseError as refusal:
        problem = f"{refusal.code}: {refusal.message}"
    except (DemoFailed, HostUnreachable, ConnectionLost, ReplyMismatch, OSError, subprocess.SubprocessError) as fault:
        problem = str(fault)
    else:
        return 0
    sys.stderr.write(f"the demonstration failed: {problem}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
