"""From a request to a hook and from what the hook does to the reply; no request ends without one."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from synapse_host.hookspecs import BackendDescription, DeviceGone, PluginError
from synapse_host.worker.compiled_programs import admit_packed, admit_shape, evict_packed, evict_shape
from synapse_host.worker.loading import Resident, ResidentModels
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker.progress_sender import ProgressSender
from synapse_host.worker.refusal_frame import refusal_frame
from synapse_host.worker.vital_signs import pong
from synapse_host.worker_protocol.codec import check_outgoing
from synapse_host.worker_protocol.frame_budget import misfit
from synapse_host.worker_protocol.messages import (
    AdmitShape,
    Admitted,
    EmbedBatchRequest,
    Err,
    Evicted,
    EvictShape,
    Generate,
    Load,
    Loaded,
    Message,
    PackedAdmit,
    PackedEvict,
    Ping,
    Rerank,
    RerankSequences,
    Scores,
    SelfCheck,
    SelfChecked,
    Unload,
    Unloaded,
    VectorsHeader,
)

Reply = tuple[Message, memoryview | None]

#: Request -> the hook without which a backend does not answer it.
HOOKS: Mapping[type[Message], str] = {
    EmbedBatchRequest: "synapse_embed",
    Rerank: "synapse_rerank_pairs",
    RerankSequences: "synapse_rerank",
    Generate: "synapse_generate",
    AdmitShape: "synapse_admit_shape",
    EvictShape: "synapse_evict_shape",
    PackedAdmit: "synapse_admit_packed",
    PackedEvict: "synapse_evict_packed",
    SelfCheck: "synapse_self_check",
}
#: Operations that need a model loaded for them.
_MODEL_OPERATIONS = frozenset({"embed", "rerank", "generate"})


class HookCalls:
    """Answers requests with the hooks of ``plugin``; ``send`` carries PROGRESS frames while a hook runs."""

    def __init__(
        self, plugin: Plugin, description: BackendDescription, max_frame: int, send: Callable[[Message], None]
    ) -> None:
        self._plugin = plugin
        self._description = description
        self._max_frame = max_frame
        self._send = send
        self._models = ResidentModels(plugin, description)
        #: Set once the device is lost: nothing can be computed in this process any more.
        self.device_gone = False

    def answer(self, request: Message, raw: bytes | None) -> Reply:
        """The reply to ``request``: what it asked for, or ERR with the code and text of what stopped it."""
        try:
            reply, payload = self._answer(request, raw or b"")
            check_outgoing(reply)
        except PluginError as refusal:
            self.device_gone |= isinstance(refusal, DeviceGone)
            return self._refuse(request, refusal.code, str(refusal)), None
        except MemoryError as problem:
            return self._refuse(request, "oom", f"{request.TYPE} ran out of memory: {problem}"), None
        except Exception as problem:  # a plugin may raise anything; the host wants a typed answer
            traceback.print_exc()
            code = "load_failed" if isinstance(request, Load) else "inference_failed"
            return self._refuse(request, code, f"{type(problem).__name__}: {problem}"), None
        return reply, payload

    def too_large(self, request: Message, problem: Exception) -> Err:
        """The refusal in place of a reply that turned out larger than a frame."""
        return self._refuse(request, "invalid_request", f"the answer to {request.TYPE} does not fit: {problem}")

    def _refuse(self, request: Message, code: str, text: str) -> Err:
        return refusal_frame(code, text, str(getattr(request, "req_id", "")), self._max_frame)

    def _answer(self, request: Message, raw: bytes) -> Reply:
        self._require_hook(request)
        if isinstance(request, Load):
            return self._load(request), None
        if isinstance(request, Ping):
            return pong(self._plugin, self._models, request), None
        if isinstance(request, Unload):
            self._models.unload(request.model_ref)
            return Unloaded(request.req_id), None
        return self._answer_for_model(request, raw)

    def _require_hook(self, request: Message) -> None:
        hook = HOOKS.get(type(request))
        if hook is not None and hook not in self._plugin.operations:
            backend = self._description.backend
            raise PluginError("unsupported_request", f"backend {backend!r} does not answer {request.TYPE}")

    def _load(self, request: Load) -> Loaded:
        started = time.monotonic()
        model_ref, resident = self._models.load(request, self._progress(request))
        cold_load_ms = round((time.monotonic() - started) * 1000)
        return Loaded(request.req_id, model_ref, resident.dims, cold_load_ms, resident.buckets)

    def _answer_for_model(self, request: Any, raw: bytes) -> Reply:
        resident = self._models.get(request.model_ref)
        if request.OPERATION in _MODEL_OPERATIONS:
            _check_operation(request, resident)
            problem = misfit(request, dims=resident.dims, max_frame=self._max_frame)
            if problem is not None:
                raise PluginError("invalid_request", problem)
            return self._compute(request, resident, raw)
        if isinstance(request, SelfCheck):
            return self._self_check(request, resident)
        return self._change_residency(request, resident), None

    def _self_check(self, request: SelfCheck, resident: Resident) -> Reply:
        from synapse_host.worker.self_checking import self_check

        checks, raw = self_check(self._plugin, resident, self._progress(request))
        return SelfChecked(request.req_id, checks), raw

    def _compute(self, request: Message, resident: Resident, raw: bytes) -> Reply:
        # Each of these needs numpy, which is paid for by the first request, not by HELLO.
        progress = self._progress(request)
        if isinstance(request, EmbedBatchRequest):
            from synapse_host.worker.embedding import embed

            vectors = embed(self._plugin, resident, request, raw, progress)
            return VectorsHeader(request.req_id, resident.dims, len(request.items)), vectors
        if isinstance(request, Rerank | RerankSequences):
            from synapse_host.worker.reranking import rerank

            return Scores(request.req_id), rerank(self._plugin, resident, request, raw, progress)
        assert isinstance(request, Generate)
        from synapse_host.worker.generation import generate

        return generate(self._plugin, resident, request, raw, progress), None

    def _change_residency(self, request: Message, resident: Resident) -> Message:
        plugin, progress = self._plugin, self._progress(request)
        if isinstance(request, AdmitShape):
            return Admitted(request.req_id, admit_shape(plugin, resident, request, progress))
        if isinstance(request, PackedAdmit):
            return Admitted(request.req_id, admit_packed(plugin, self._description, resident, request, progress))
        if isinstance(request, EvictShape):
            evict_shape(plugin, resident, request, progress)
            return Evicted(request.req_id)
        assert isinstance(request, PackedEvict)
        evict_packed(plugin, resident, request, progress)
        return Evicted(request.req_id)

    def _progress(self, request: Any) -> ProgressSender:
        return ProgressSender(self._send, request.req_id, request.OPERATION)


def _check_operation(request: Any, resident: Resident) -> None:
    if resident.operation != request.OPERATION:
        raise PluginError(
            "operation_mismatch",
            f"{request.TYPE} is {request.OPERATION!r} and {request.model_ref!r} was loaded for {resident.operation!r}",
        )
