"""``synapse-host embed-file``: any number of texts from files, through durable jobs, into one file of vectors."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from synapse_host.cli.file_items import ItemSource, Survey, survey
from synapse_host.cli.output import Shown, tell, warn
from synapse_host.cli.passages import UnreadableFile
from synapse_host.cli.shell_words import shell_word
from synapse_host.cli.vector_files import vector_file
from synapse_host.client.blocking_client import Client
from synapse_host.client.faults import ConnectionLost
from synapse_host.client.job_parts import job_parts
from synapse_host.identity.digests import sha256_hex
from synapse_host.values import value_object

#: What a person can do when it was interrupted, however.
GO_ON = "run the same command again to go on where it stopped"
#: The host takes 256, of which a part's number needs some: a million parts.
MOST_KEY_CHARS = 248
#: What the host does meanwhile.
HANDED_IN = "the host goes on with the jobs that were handed in"
#: Signals that end it as Ctrl-C does: the part of the output that is written has to be removed.
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@value_object
class Embedded:
    """What came of it."""

    output: Path
    request_key: str
    rows: int
    cut: int
    dims: int
    fingerprint: str

    def to_json(self) -> dict[str, object]:
        """The document of ``--json``."""
        return {
            "output": str(self.output),
            "request_key": self.request_key,
            "rows": self.rows,
            "truncated": self.cut,
            "dims": self.dims,
            "fingerprint": self.fingerprint,
        }


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise ``KeyboardInterrupt`` in the block, unless they are ignored as under ``nohup``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def content_key(model: str, content: Survey) -> str:
    """The request key of the same model and texts: the same command again names the same jobs."""
    return f"embed-file-{sha256_hex(f'{model}/{content.digest}'.encode())[:32]}"


def embed_file(
    client: Client,
    source: ItemSource,
    output: Path,
    *,
    model: str,
    request_key: str | None,
    retries: int,
    max_chars: int,
    show: Shown,
) -> Embedded:
    """Embed everything; ``show`` is told (done, total). ``max_chars`` is what the host takes of one text.

    Raises:
        UnreadableFile: the input cannot be read or sent, is empty, or changed meanwhile.
        UnwritableFile: the output cannot be written.
        ConnectionLost, SynapseError, ReplyMismatch: the host or the connection; what was committed is kept.

    """
    content = survey(source, max_chars)
    if not content.items:
        raise UnreadableFile(f"{source.path} holds no text; name a file or directory with some")
    key = content_key(model, content) if request_key is None else request_key
    cancel = f"synapse-host jobs cancel --key {shell_word(key)}"
    # On a line of its own, for a bar breaks lines at the width of the terminal.
    tell(f"texts: {content.items}; to end their jobs:\n  {cancel}")
    done = cut = read = found = 0

    def count(rows: int) -> None:
        nonlocal done, found
        done += rows
        show(done, content.items, found=found > 0)
        found = 0

    def count_found(rows: int) -> None:
        nonlocal found
        found = rows

    show(0, content.items)
    try:
        with vector_file(output, content.items) as vectors:
            replies = client.embed_jobs(
                model,
                job_parts(source),
                request_key=key,
                on_rows=count,
                on_found=count_found,
                on_wait=_tell_wait,
                retries=retries,
            )
            for reply in replies:
                read += len(reply.ids)
                if read > content.items:
                    raise _changed(source)
                vectors.add(reply)
                cut += sum(told.truncated for told in reply.truncations)
                last = reply
            if read != content.items:
                raise _changed(source)
    except KeyboardInterrupt:
        tell(f"{HANDED_IN}; {GO_ON}, or end them:\n  {cancel}")
        raise
    except ConnectionLost as lost:
        why = str(lost).partition(";")[0]
        raise ConnectionLost(f"connection lost, {why}; start the host if it has ended, and {GO_ON}") from lost
    return Embedded(output, key, read, cut, last.dims, last.fingerprint)


def _tell_wait(error: Exception) -> None:
    warn(f"the host waits, and this command with it: {error}")


def _changed(source: ItemSource) -> UnreadableFile:
    return UnreadableFile(f"{source.path} changed while it was read; run the command again when it is at rest")
