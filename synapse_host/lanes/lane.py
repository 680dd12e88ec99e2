"""One lane: a registered model on one backend, and everything that holds it.

The lane loads when first asked, serves rows in groups, survives its worker's death and unloads on request. What it
computes is said by ``model.fingerprint``; nothing here may change that.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from itertools import count

from synapse_host.admission.estimates import Costs
from synapse_host.admission.gate import Budget
from synapse_host.admission.work_class import WorkClass
from synapse_host.errors import EngineCrashed, ModelLoading, SynapseError
from synapse_host.lanes.batching import group_rows, padded_length
from synapse_host.lanes.group_messages import token_bytes
from synapse_host.lanes.group_run import GroupPlan, GroupRun
from synapse_host.lanes.grouped_rows import Grouped, GroupedRows
from synapse_host.lanes.lane_health import LaneHealth
from synapse_host.lanes.lane_holders import Holders
from synapse_host.lanes.lane_pace import LanePace
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.load_wait import LoadWait
from synapse_host.lanes.residency import LaneRuntime, Residency, Serving
from synapse_host.lanes.strikes import Strikes
from synapse_host.lanes.upkeep import Upkeep
from synapse_host.lanes.worker_errors import shape_compiling
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.exchange import Exchange
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error
from synapse_host.tokenization.model_tokenizer import ModelTokenizer
from synapse_host.tokenization.pairs import PairTokenizer
from synapse_host.worker_protocol.messages import Generate, Text

__all__ = ["Lane", "LaneRuntime"]

#: Longest wait of a request that finds its lane loading (wire contract section 2, model_loading).
LOAD_WAIT_MS = 5000
FLOAT_BYTES = 4


class Lane:
    """A lane and everything that holds it."""

    def __init__(self, model: RegisteredModel, runtime: LaneRuntime) -> None:
        self.model = model
        self.rows_computed = 0
        self.turns = runtime.turns
        #: What its exchanges are expected to take.
        self.costs = Costs(runtime.estimate_ms)
        #: Milliseconds its exchanges have held their device, all together.
        self.executed_ms = 0.0
        self.pace = LanePace()
        self._residency = Residency(model, runtime)
        self._clock = runtime.clock
        self._compiling = runtime.compiling
        self._holders = Holders(model, self._freed)
        self._upkeep = Upkeep(self._residency, runtime, held=lambda: bool(self._holders))
        self._numbers = count(1)
        self._leaving = False

    @property
    def state(self) -> LaneState:
        """Where the lane stands."""
        return self._residency.state

    @property
    def strikes(self) -> Strikes:
        """Its consecutive faults."""
        return self._residency.strikes

    @property
    def cold_load_ms(self) -> int | None:
        """What the last load took, once there was one."""
        return self._residency.cold_load_ms

    @property
    def dims(self) -> int | None:
        """Vector width, while a worker has said it."""
        serving = self._residency.serving
        return serving.dims if serving else None

    @property
    def buckets(self) -> tuple[int, ...] | None:
        """Padded lengths of the loaded engine, where it has a ladder."""
        serving = self._residency.serving
        return serving.buckets if serving else None

    @property
    def serving(self) -> Serving:
        """The worker of a ready lane and what is loaded there; raises ``EngineCrashed`` where it ended."""
        return self._require_serving()

    @property
    def tokenizer(self) -> ModelTokenizer:
        """The tokenizer of a ready lane."""
        tokenizer = self._require_serving().tokenizer
        assert isinstance(tokenizer, ModelTokenizer), f"{self.model.model_id} is for {self.model.task}"
        return tokenizer

    @property
    def pairs(self) -> PairTokenizer:
        """What composes the pairs of a ready lane that reranks."""
        tokenizer = self._require_serving().tokenizer
        assert isinstance(tokenizer, PairTokenizer), f"{self.model.model_id} is for {self.model.task}"
        return tokenizer

    @property
    def health(self) -> LaneHealth:
        """What is known of the lane now; asks nobody."""
        serving, model = self._residency.serving, self.model
        return LaneHealth(
            model_id=model.model_id,
            state=str(self.state),
            backend=model.backend,
            device_class=model.device_class,
            strikes=self.strikes.count,
            quarantined=self.strikes.quarantined,
            rows_computed=self.rows_computed,
            recycled=self._residency.recycled,
            worker_pid=serving.worker.pid if serving else None,
            dims=self.dims,
            pulse=self._upkeep.pulse,
            resident_shapes=serving.shapes.resident if serving and serving.shapes else None,
        )

    @property
    def holders(self) -> list[dict[str, str]]:
        """Who holds it now, as ``model_in_use`` names them."""
        return self._holders.named()

    def refresh_health(self) -> None:
        """Take the worker's pulse in the background, once it has nothing else to do."""
        self._upkeep.refresh()

    # --- loading -----------------------------------------------------------------------------------------------

    def refuse_quarantined(self) -> None:
        """Raise the lane's refusal while it is not to be tried (reading 28)."""
        refusal = self.strikes.refusal(self.model.model_id)
        if refusal is not None:
            raise refusal

    async def ensure_ready(self, budget: Budget) -> None:
        """Load if needed and wait for it, at most until the deadline or five seconds.

        Raises:
            SynapseError: what ``LoadWait.over`` raises, or what the load failed with.

        """
        if self.state is LaneState.READY:
            return
        loading = self._residency.start_loading()
        # The caller found a ready lane that we took away: it waits for the next worker as it would for a busy one.
        cap_ms = math.inf if self._residency.recycling else LOAD_WAIT_MS
        wait = LoadWait(self.model.model_id, budget, cap_ms, self._clock, partial(self._compiling, self.model))
        await wait.over(loading.finished)
        loading.raise_error()

    async def load(self) -> None:
        """Load and wait to the end; raises what the load failed with."""
        if self.state is not LaneState.READY:
            await self._residency.start_loading().outcome()

    # --- serving -----------------------------------------------------------------------------------------------

    def lease(self, holder: Mapping[str, str] | None = None) -> AbstractContextManager[None]:
        """Hold the lane for the length of the block; ``holder`` is shown to whoever wants to unload it."""
        return self._holders.lease(holder)

    async def embed(
        self, rows: Sequence[Sequence[int]], item_ids: Sequence[str], work: WorkClass | GroupPlan = WorkClass.BULK
    ) -> tuple[int, bytes]:
        """Vectors of token ``rows`` as little-endian float32 in the order given, and their width.

        ``work`` is the plan of just these rows, or the class to make one for. A durable job gives some of its rows at a
        time as ``WorkClass.JOB``: each group's turn is one of bulk work, and everyone else's comes in between.

        Raises:
            EngineCrashed: the worker died, broke its protocol, or computed something that is no vector.

        """
        dims = self._require_serving().dims
        plan = self._planned("embed", rows, work)
        return dims, await self._grouped(rows, item_ids, plan, "embed", dims * FLOAT_BYTES)

    async def rerank(
        self, sequences: Sequence[Sequence[int]], item_ids: Sequence[str], work: WorkClass | GroupPlan = WorkClass.BULK
    ) -> bytes:
        """Raw scores of composed ``sequences`` as little-endian float32 in the order given; ``work`` as for ``embed``.

        Raises:
            EngineCrashed: the worker died, broke its protocol, or computed something that is no number.

        """
        plan = self._planned("rerank", sequences, work)
        return await self._grouped(sequences, item_ids, plan, "rerank", FLOAT_BYTES)

    async def checked(self, row: Sequence[int], case_id: str) -> bytes:
        """What ``embed`` or ``rerank`` gives for one row of the check at load: no strike is cleared by it.

        Raises:
            EngineCrashed: the worker died, broke its protocol, or computed no numbers.

        """
        operation: Grouped = "embed" if self.model.task == "embed" else "rerank"
        plan = self.plan(operation, [len(row)], WorkClass.CONTROL, admitted=False)
        width = FLOAT_BYTES * (self._require_serving().dims if operation == "embed" else 1)
        return await self._grouped([row], [case_id], plan, operation, width, serves=False)

    def plan(
        self, operation: Grouped, counts: Sequence[int], work_class: WorkClass, *, admitted: bool = True
    ) -> GroupPlan:
        """How rows of ``counts`` tokens are computed, and what that is expected to take.

        What is not ``admitted``, a probe or a check, has no shape compiled for it in a pause.

        Raises:
            EngineCrashed: the worker ended.

        """
        serving = self._require_serving()
        buckets, alike = serving.buckets, serving.shapes is not None
        groups = [[0]] if len(counts) == 1 else group_rows(counts, self.model.batch, buckets, alike=alike)
        tokens = [sum(padded_length(counts[index], buckets) for index in group) for group in groups]
        costs = self.costs
        estimates = [costs.ms(operation, number) for number in tokens]
        known = costs.known(operation, tokens)
        return GroupPlan(operation, work_class, groups, tokens, estimates, known=known, admitted=admitted)

    def compiling(self, plan: GroupPlan) -> SynapseError | None:
        """``shape_compiling`` where the wait the request of ``plan`` is in met a compilation; None where it did not."""
        serving, wait = self._residency.serving, plan.wait
        if serving is None or serving.shapes is None or not wait.waiting:
            return None
        shape = serving.shapes.blocking(wait.tokens, wait.since)
        return None if shape is None else shape_compiling(self.model.model_id, shape)

    def generation_plan(self, max_tokens: int) -> GroupPlan:
        """The one turn a generation of at most ``max_tokens`` takes, and for how long it is expected to."""
        tokens = self.costs.generation_tokens(max_tokens)
        estimate, known = self.costs.ms("generate", tokens), self.costs.known("generate", [tokens])
        return GroupPlan("generate", WorkClass.BULK, [[0]], [tokens], [estimate], known=known)

    def _planned(self, operation: Grouped, rows: Sequence[Sequence[int]], work: WorkClass | GroupPlan) -> GroupPlan:
        return work if isinstance(work, GroupPlan) else self.plan(operation, [len(row) for row in rows], work)

    async def _grouped(
        self,
        rows: Sequence[Sequence[int]],
        item_ids: Sequence[str],
        plan: GroupPlan,
        operation: Grouped,
        width: int,
        *,
        serves: bool = True,
    ) -> bytes:
        """``width`` bytes of answer for each row, in the order given."""
        serving = self._require_serving()

        def over(place: int, exchange: Exchange, took_ms: float) -> None:
            self.executed_ms += took_ms
            plan.told(len(plan.groups[place]))
            if self._account(serving, exchange, len(plan.groups[place]) if serves else 0):
                self.costs.learn(operation, plan.tokens[place], took_ms)

        grouped = GroupedRows(self.model, serving, self.turns, self.pace, self._numbers, over, operation, width)
        return await grouped.computed(rows, item_ids, plan)

    async def generate(self, prompt: Sequence[int], max_tokens: int, plan: GroupPlan | None = None) -> Text:
        """What the model says after the token ids of ``prompt``, at most ``max_tokens`` of it.

        Raises:
            EngineCrashed: the worker died, broke its protocol, or computed no numbers.

        """
        serving = self._require_serving()
        message = Generate(f"generate-{next(self._numbers)}", serving.model_ref, max_tokens)

        def over(place: int, exchange: Exchange, took_ms: float) -> None:
            if self._account(serving, exchange, 1):
                reply, _ = exchange.outcome()
                assert isinstance(reply, Text)
                self.costs.learn_generation(reply.n_gen, took_ms)

        run = GroupRun(
            self.turns,
            serving.worker,
            plan or self.generation_plan(max_tokens),
            [(message, token_bytes([prompt]))],
            over,
            self.pace,
        )
        run.begin()
        try:
            reply, _ = (await run.wait(0)).outcome()
        except WorkerRefusal as refusal:
            raise to_synapse_error(refusal) from refusal
        assert isinstance(reply, Text)
        return reply

    def _account(self, serving: Serving, exchange: Exchange, rows: int) -> bool:
        """Count the ``rows`` a worker served, whether or not the caller still waits; False where it did not do it."""
        try:
            exchange.outcome()
        except EngineCrashed:
            self._residency.notice_death(serving.worker)
            return False
        except Exception:
            return False
        if rows:
            self.strikes.served()
            self.rows_computed += rows
        return True

    def _require_serving(self) -> Serving:
        serving = self._residency.serving
        if serving is None:
            raise EngineCrashed(f"the worker of model {self.model.model_id!r} ended before the request could run")
        return serving

    # --- leaving -----------------------------------------------------------------------------------------------

    async def unload(self) -> None:
        """Stop the worker; the model stays registered. It goes on when the caller stops waiting.

        Raises:
            ModelInUse: requests or a probe hold the lane; details name them.
            ModelLoading: a load is in progress.

        """
        await self._residency.recycling_over()
        self._holders.refuse()
        await self._residency.start_unloading().outcome()

    def unload_when_free(self) -> None:
        """Stop the worker as soon as nobody holds the lane; a request that comes first only makes it later."""
        self._leaving = True
        if not self._holders:
            self._freed()

    async def emptied(self) -> None:
        """Wait until nobody holds the lane, then unload it; a lane without a worker is empty. Raises as ``unload``."""
        await self._residency.settled()
        while self._holders:
            await self._holders.gone()
            await self._residency.settled()
        if self._residency.serving is not None:
            await self._residency.start_unloading().outcome()

    def _freed(self) -> None:
        if not self._leaving:
            self._upkeep.released()
            return
        self._leaving = False
        with suppress(ModelLoading):
            self._residency.start_unloading()

    @asynccontextmanager
    async def replaced(self) -> AsyncIterator[None]:
        """Unload, and load no more from here on unless the block raises: another lane takes the id in it.

        Raises what ``unload`` raises; nothing has changed then.
        """
        await self._residency.recycling_over()
        self._holders.refuse()
        self._residency.retire()
        try:
            await self._residency.start_unloading().outcome()
            yield
        except BaseException:
            self._residency.retire(retired=False)
            raise

    async def close(self) -> None:
        """End the lane for good: stop its worker."""
        await self._residency.close()
