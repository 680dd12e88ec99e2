"""What is known about each lane's certification on this machine, in memory; the store keeps the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from synapse_host.errors import NotCertified, ProbeRequired
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.values import value_object

Status = Literal["certified", "uncertified"]


@value_object
class Certification:
    """The outcome of the last probe of one identity on one machine profile."""

    fingerprint: str
    machine_profile_hash: str
    status: Status
    reason: str | None
    evidence: dict[str, Any]
    os_build: str
    module_generation: int
    measured_at_ms: int


@value_object
class Performance:
    """Measured speed of one identity on one machine profile."""

    fingerprint: str
    machine_profile_hash: str
    throughput_tok_s: float
    cold_load_ms: float
    single_item_latency_p50_ms: float
    measured_at_ms: int


class CertificationLedger:
    """Answers whether a lane may serve; ``profile_hash`` gives the machine profile a model is certified under."""

    def __init__(self, profile_hash: Callable[[RegisteredModel], str]) -> None:
        self._profile_hash = profile_hash
        self._keys: dict[str, tuple[str, str]] = {}
        self._certifications: dict[tuple[str, str], Certification] = {}
        self._performance: dict[tuple[str, str], Performance] = {}
        self._outdated: set[str] = set()

    def record(self, certification: Certification, performance: Performance | None) -> None:
        """Take the outcome of a probe; it replaces the former one."""
        key = (certification.machine_profile_hash, certification.fingerprint)
        self._certifications[key] = certification
        self._outdated.discard(certification.fingerprint)
        if performance is not None:
            self._performance[key] = performance

    def record_outdated(self, model: RegisteredModel) -> None:
        """Take note that a model was probed on another profile of a machine, such as before an update, and not here."""
        self._outdated.add(model.fingerprint)

    def is_outdated(self, model: RegisteredModel) -> bool:
        """Whether all that is known of a model was measured on another profile than this machine has now."""
        return model.fingerprint in self._outdated

    def key(self, model: RegisteredModel) -> tuple[str, str]:
        """The (machine profile, fingerprint) pair a model is certified under."""
        # A fingerprint covers the engine, and with it all of the profile that is not this machine.
        key = self._keys.get(model.fingerprint)
        if key is None:
            key = self._keys[model.fingerprint] = self._profile_hash(model), model.fingerprint
        return key

    def certification(self, model: RegisteredModel) -> Certification | None:
        """The model's outcome on this machine, or None before its first probe."""
        return self._certifications.get(self.key(model))

    def is_certified(self, model: RegisteredModel) -> bool:
        """Whether its last probe on this machine found it right."""
        outcome = self.certification(model)
        return outcome is not None and outcome.status == "certified"

    def performance(self, model: RegisteredModel) -> Performance | None:
        """The model's measured speed on this machine, or None."""
        return self._performance.get(self.key(model))

    def require_certified(self, model: RegisteredModel) -> None:
        """Let a certified lane pass.

        Raises:
            ProbeRequired: it was never probed on this machine profile.
            NotCertified: its last probe failed.

        """
        outcome = self.certification(model)
        if outcome is None:
            raise ProbeRequired(
                f"model {model.model_id!r} was never certified on this machine; run probe.start "
                f"(synapse-host probe {model.model_id})",
                details={"model_id": model.model_id, "fingerprint": model.fingerprint},
            )
        if outcome.status != "certified":
            raise NotCertified(
                f"model {model.model_id!r} failed certification on this machine: {outcome.reason}; "
                "see probe.report, then fix the cause and probe again",
                details={"model_id": model.model_id, "fingerprint": model.fingerprint, "reason": outcome.reason},
            )
