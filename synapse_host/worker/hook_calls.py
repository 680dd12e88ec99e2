"""From a request to a hook and from what the hook does to the reply; no request ends without one."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

from synapse_host.hookspecs import BackendDescription, PluginError
from synapse_host.worker.loading import ResidentModels
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker.progress_sender import ProgressSender
from synapse_host.worker.resident_memory import resident_mebibytes
from synapse_host.worker_protocol.messages import (
    EmbedBatchRequest,
    Err,
    Load,
    Loaded,
    Message,
    Ping,
    Pong,
    Unload,
    Unloaded,
    VectorsHeader,
)

Reply = tuple[Message, memoryview | None]


class HookCalls:
    """Answers requests with the hooks of ``plugin``; ``send`` carries PROGRESS frames while a hook runs."""

    def __init__(
        self, plugin: Plugin, description: BackendDescription, max_frame: int, send: Callable[[Message], None]
    ) -> None:
        self._plugin = plugin
        self._backend = description.backend
        self._max_frame = max_frame
        self._send = send
        self._models = ResidentModels(plugin, description)

    def answer(self, request: Message, raw: bytes | None) -> Reply:
        """The reply to ``request``: what it asked for, or ERR with the code and text of what stopped it."""
        req_id = str(getattr(request, "req_id", ""))
        try:
            return self._answer(request, raw)
        except PluginError as refusal:
            return Err(refusal.code, str(refusal), req_id), None
        except MemoryError as problem:
            return Err("oom", f"{request.TYPE} ran out of memory: {problem}", req_id), None
        except Exception as problem:  # a plugin may raise anything; the host wants a typed answer
            traceback.print_exc()
            code = "load_failed" if isinstance(request, Load) else "inference_failed"
            return Err(code, f"{type(problem).__name__}: {problem}", req_id), None

    def _answer(self, request: Message, raw: bytes | None) -> Reply:
        if isinstance(request, EmbedBatchRequest):
            return self._embed(request, raw or b"")
        if isinstance(request, Load):
            return self._load(request), None
        if isinstance(request, Unload):
            self._models.unload(request.model_ref)
            return Unloaded(request.req_id), None
        if isinstance(request, Ping):
            return Pong(request.req_id, resident_mebibytes(), len(self._models)), None
        raise PluginError("unsupported_request", f"backend {self._backend!r} does not answer {request.TYPE}")

    def _load(self, request: Load) -> Loaded:
        started = time.monotonic()
        progress = ProgressSender(self._send, request.req_id, "load")
        model_ref, resident = self._models.load(request, progress)
        cold_load_ms = round((time.monotonic() - started) * 1000)
        return Loaded(request.req_id, model_ref, resident.dims, cold_load_ms, resident.buckets)

    def _embed(self, request: EmbedBatchRequest, raw: bytes) -> Reply:
        if "synapse_embed" not in self._plugin.operations:
            raise PluginError("unsupported_request", f"backend {self._backend!r} does not answer {request.TYPE}")
        from synapse_host.worker.embedding import embed  # numpy is paid for by the first batch, not by HELLO

        resident = self._models.get(request.model_ref)
        progress = ProgressSender(self._send, request.req_id, "embed")
        vectors = embed(self._plugin, resident, request, raw, self._max_frame, progress)
        return VectorsHeader(request.req_id, resident.dims, len(request.items)), vectors
