"""Request fields every inference method shares (wire contract section 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from synapse_host.admission.gate import Budget
from synapse_host.operations.registry import RequestContext

Milliseconds = Annotated[StrictInt, Field(gt=0, le=86_400_000)]
Name = Annotated[StrictStr, Field(min_length=1, max_length=256)]


class Params(BaseModel):
    """Base of every params model: unknown fields are refused (reading 9)."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class Constraints(Params):
    """Acceptance constraints; times are milliseconds from receipt (reading 24)."""

    deadline_ms: Milliseconds | None = None
    max_queue_ms: Annotated[StrictInt, Field(ge=0, le=86_400_000)] | None = None
    target_fingerprint: Name | None = None
    required_fingerprint: Name | None = None
    allow_equivalent: StrictBool = False
    required_epoch: Annotated[StrictInt, Field(ge=0)] | None = None
    accept_declared: StrictBool = False

    @property
    def fingerprint(self) -> str | None:
        """The identity the answer must have; ``required_fingerprint`` wins over ``target_fingerprint``."""
        return self.required_fingerprint or self.target_fingerprint

    @property
    def accepts_equivalent(self) -> bool:
        """Whether an identity declared equivalent may answer.

        ``target_fingerprint`` says into which space an answer has to fit, and an equivalent one does;
        ``required_fingerprint`` names the very identity, unless ``allow_equivalent`` is true (wire contract section 3).
        """
        return self.allow_equivalent or self.required_fingerprint is None


class BudgetRule:
    """Default time limits of inline requests."""

    def __init__(self, *, deadline_ms: int, max_queue_ms: int, clock: Callable[[], float]) -> None:
        self.deadline_ms = deadline_ms
        self.max_queue_ms = max_queue_ms
        self.clock = clock

    def of(self, constraints: Constraints, context: RequestContext) -> Budget:
        """The budget of one request, counted from its receipt."""
        deadline_ms = constraints.deadline_ms or self.deadline_ms
        queue_ms = self.max_queue_ms if constraints.max_queue_ms is None else constraints.max_queue_ms
        named = constraints.deadline_ms is not None
        return Budget(context.received_at + deadline_ms / 1000, deadline_ms, queue_ms, named)
