"""GGUF models through a backend's hooks in this process, or through a real worker; for tests of such backends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synapse_host.hookspecs import LoadSpec, Phase
from synapse_host.identity.digests import sha256_file
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.workers.running_worker import PATIENCE_S
from synapse_host.worker_protocol.messages import Load, Loaded


@dataclass(slots=True)
class Reports:
    """A progress callable that keeps what it was told."""

    heard: list[tuple[int, Phase]] = field(default_factory=list)

    def __call__(self, completed: int, phase: Phase, token_ids: Any = ()) -> None:
        """Take one report; it must grow."""
        assert not self.heard or completed > self.heard[-1][0], f"{completed} after {self.heard[-1]}"
        self.heard.append((completed, phase))


@contextmanager
def loaded_gguf(plugin: Any, file: Path, family: str, operation: str, max_tokens: int, **pairs: str) -> Iterator[Any]:
    """The model of ``file`` in ``plugin``, in this process; unloaded at the end."""
    with file.open("rb") as opened:
        spec = LoadSpec(
            artifact_path=str(file),
            artifact_fd=opened.fileno(),
            artifact_digest="",
            format="gguf",
            family=family,
            config={},
            dtype="f16",
            max_tokens=max_tokens,
            runtime_config={"operation": operation, "threads": "1", **pairs},
        )
        model = plugin.synapse_load(spec, Reports())
        try:
            yield model
        finally:
            assert plugin.synapse_unload(model) is True


def gguf_spec(folder: Path, backend: str, *, engine: str = "", env: Mapping[str, str] | None = None) -> WorkerSpec:
    """A real worker of ``backend`` with its socket below ``folder``; ``engine`` as the host would expect it."""
    return WorkerSpec(
        backend,
        f"synapse-{backend}-m",
        folder / "w" / "s.sock",
        engine=engine or backend,
        extra_env=dict(env or {}),
        accept_deadline_s=PATIENCE_S,
        hello_deadline_s=PATIENCE_S,
    )


async def load_gguf(worker: Worker, file: Path, family: str, operation: str, max_tokens: int, threads: int = 1) -> str:
    """Load ``file`` into ``worker``; returns the model reference."""
    pairs = {
        "family": family,
        "dtype": "f16",
        "max_tokens": str(max_tokens),
        "operation": operation,
        "threads": str(threads),
    }
    reply, _ = await worker.request(Load("load-1", str(file), sha256_file(file), "gguf", pairs), operation="load")
    assert isinstance(reply, Loaded)
    return reply.model_ref
