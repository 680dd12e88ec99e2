"""Every stable error code of the host, in one table, with one exception type per code.

Nothing here does I/O. A code's class, retry rule and default delay stand in ``STABLE_ERRORS``; the
reference page ``docs/reference/errors.md`` is checked against it by a test. Sources: wire contract
section 2 for codes and classes, section 1 for the shape of an error on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

ErrorClass = Literal["transient", "permanent"]

#: Delay suggested for a transient error whose rule names none (original facts 2.1).
DEFAULT_RETRY_AFTER_MS = 100


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """What a code promises: its class, whether the same request may be sent again, and where it travels."""

    code: str
    error_class: ErrorClass
    safe_to_retry: bool
    meaning: str
    remedy: str
    retry_after_ms: int | None = None
    #: True when the code is always a channel-level error; otherwise it rides inside ``result`` (reading 16).
    channel: bool = False


def _permanent(code: str, meaning: str, remedy: str, *, channel: bool = False) -> ErrorRule:
    return ErrorRule(code, "permanent", False, meaning, remedy, None, channel)


def _transient(
    code: str,
    meaning: str,
    remedy: str,
    *,
    safe: bool = True,
    retry_after_ms: int | None = DEFAULT_RETRY_AFTER_MS,
) -> ErrorRule:
    return ErrorRule(code, "transient", safe, meaning, remedy, retry_after_ms)


_RULES = (
    _permanent("invalid_request", "The request is malformed or asks for something that can never be done.", "Correct the named parameter."),
    _permanent("unknown_method", "The host serves no method of this name.", "Use a method of the reference page.", channel=True),
    _permanent("flow_scope_refused", "A flow-scoped route asked for a method that is not a query.", "Send it on a route without a flow_id.", channel=True),
    _permanent("store_failure", "The host could not read or write its store.", "Free disk space or repair the data directory, then retry.", channel=True),
    _permanent("encode_failed", "The reply could not be encoded.", "Report it: the message names the method.", channel=True),
    _permanent("operator_identity_unavailable", "The peer's user could not be established.", "Connect over the host's own socket as the same user.", channel=True),
    _permanent("certify_observation_disabled", "Certification observations are switched off.", "Enable certify_observation in the configuration.", channel=True),
    _permanent("approval_migration_state_corrupt", "The approval migration marker does not match its rows.", "Restore the store from a backup.", channel=True),
    _transient("queue_full", "Admitting the request would pass a byte, queue or connection limit.", "Wait retry_after_ms and send it again."),
    _transient("deadline_exceeded", "The request's own time budget ends before it can finish.", "Send a new request with a larger deadline_ms.", safe=False, retry_after_ms=None),
    _transient("model_loading", "The lane is still loading or checking itself.", "Wait retry_after_ms and send it again.", retry_after_ms=250),
    _transient("engine_crashed", "The worker process ended, broke its protocol or could not compute.", "Wait retry_after_ms and send it again.", retry_after_ms=250),
    _transient("lane_paused", "An operator paused the lane.", "Wait retry_after_ms and send it again.", retry_after_ms=1000),
    _transient("shape_compiling", "The Neural Engine shape is still compiling.", "Wait retry_after_ms and send it again.", retry_after_ms=1000),
    _transient("ane_resources_exhausted", "The Neural Engine has no room for another compiled shape.", "Wait retry_after_ms and send it again.", retry_after_ms=250),
    _transient("download_failed", "The network, the server or the disk stopped a download.", "Wait retry_after_ms and download again.", retry_after_ms=1000),
    _transient("provider_unavailable", "A remote provider cannot be reached.", "Wait retry_after_ms and send it again.", retry_after_ms=1000),
    _permanent("probe_required", "The lane has no certification on this machine profile.", "Run probe.start for the model."),
    _permanent("not_certified", "The lane was measured on this machine and failed.", "Read probe.report, fix the cause and probe again."),
    _permanent("substitution_rejected", "Another numeric identity than the required one would have answered.", "Require a fingerprint of models.list, or drop the requirement."),
    _permanent("artifact_invalid", "A model file is missing, damaged or not what its digest says.", "Restore the named file, or load the model again."),
    _permanent("sequence_too_long", "The composed input passes the lane's token limit.", "Split or trim the input."),
    _permanent("unknown_model", "The id is no catalog id, lane id or registered model.", "Use an id of models.list."),
    _permanent("model_not_installed", "The catalog model is not installed for this backend.", "Call models.download first."),
    _permanent("backend_unavailable", "No backend of the model can run on this machine.", "Read the reasons in details; choose another model or host."),
    _permanent("self_check_failed", "The lane's numeric self-check failed.", "Remove and download the model again."),
    _permanent("model_in_use", "The model is still held.", "Release the named holders first."),
    _permanent("migration_required", "An alias the index depends on was retracted.", "Rebuild the index for rebuild_target."),
    _permanent("module_restarted", "The host restarted before the work ended.", "Submit it again under the same key."),
    _permanent("idempotency_conflict", "The key is bound to other content.", "Use a new request key."),
    _permanent("owned_cuda_unsupported", "No usable CUDA driver or device.", "Use another lane, or install a driver with API 12040 or newer."),
    _permanent("grammar_disabled", "Constrained decoding is switched off or not certified here.", "Send the prompt without a grammar."),
    _permanent("declared_identity_not_accepted", "The model's identity is only declared by its provider.", "Send accept_declared: true to accept it."),
    _permanent("remote_identity_drift", "The provider's vectors moved.", "Probe the profile again."),
    _permanent("provider_protocol_violation", "The provider's reply broke its protocol.", "Probe the profile again."),
    _permanent("needs_reauth", "The credential handle needs a new login.", "Log in again for the named handle."),
    _permanent("needs_reauth_expired", "The paused job's time to log in again ran out.", "Submit the job again."),
    _permanent("remote_deployment_changed", "The provider's base URL changed under its profile.", "Declare a new profile."),
    _permanent("credential_config_invalid", "The credential handle is missing or malformed.", "Repair the configuration."),
    _permanent("op_not_supported_for_remote", "The remote gateway does not serve this operation.", "Use a local lane."),
    _permanent("sentinel_calibration_refused", "The provider's own noise forbids a drift gate.", "Treat the profile as uncertified."),
)  # fmt: skip

#: code -> rule, in the order of the reference page.
STABLE_ERRORS: Mapping[str, ErrorRule] = {rule.code: rule for rule in _RULES}


class SynapseError(Exception):
    """Base of every typed refusal.

    ``details`` is the contract's optional object. ``retry_after_ms`` and ``error_class`` override the rule for
    the few cases the contract names (a quarantine's remaining cool-down; non-finite output, which is permanent).
    """

    code: ClassVar[str]

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after_ms: int | None = None,
        error_class: ErrorClass | None = None,
        channel: bool | None = None,
    ) -> None:
        super().__init__(message)
        rule = STABLE_ERRORS[self.code]
        self.message = message
        self.details = dict(details) if details is not None else None
        self.error_class: ErrorClass = error_class or rule.error_class
        overridden = error_class is not None and error_class != rule.error_class
        self.safe_to_retry = rule.safe_to_retry and not overridden
        default_delay = None if self.error_class == "permanent" else rule.retry_after_ms
        self.retry_after_ms = retry_after_ms if retry_after_ms is not None else default_delay
        self.channel = rule.channel if channel is None else channel

    def to_wire(self) -> dict[str, Any]:
        """The error object of wire contract section 2; absent optionals are left out."""
        wire: dict[str, Any] = {
            "code": self.code,
            "class": self.error_class,
            "safe_to_retry_same_request": self.safe_to_retry,
            "message": self.message,
        }
        if self.retry_after_ms is not None:
            wire["retry_after_ms"] = self.retry_after_ms
        if self.details is not None:
            wire["details"] = self.details
        return wire


def _exception_type(code: str) -> type[SynapseError]:
    name = "".join(part.capitalize() for part in code.split("_"))
    return type(name, (SynapseError,), {"code": code, "__doc__": STABLE_ERRORS[code].meaning, "__module__": __name__})


class InvalidRequest(SynapseError):
    """The request is malformed or asks for something that can never be done."""

    code = "invalid_request"


class UnknownMethod(SynapseError):
    """The host serves no method of this name."""

    code = "unknown_method"


class FlowScopeRefused(SynapseError):
    """A flow-scoped route asked for a method that is not a query."""

    code = "flow_scope_refused"


class StoreFailure(SynapseError):
    """The host could not read or write its store."""

    code = "store_failure"


class EncodeFailed(SynapseError):
    """The reply could not be encoded."""

    code = "encode_failed"


class QueueFull(SynapseError):
    """Admitting the request would pass a byte, queue or connection limit."""

    code = "queue_full"


class DeadlineExceeded(SynapseError):
    """The request's own time budget ends before it can finish."""

    code = "deadline_exceeded"


class ModelLoading(SynapseError):
    """The lane is still loading or checking itself."""

    code = "model_loading"


class EngineCrashed(SynapseError):
    """The worker process ended, broke its protocol or could not compute."""

    code = "engine_crashed"


class ProbeRequired(SynapseError):
    """The lane has no certification on this machine profile."""

    code = "probe_required"


class NotCertified(SynapseError):
    """The lane was measured on this machine and failed."""

    code = "not_certified"


class SubstitutionRejected(SynapseError):
    """Another numeric identity than the required one would have answered."""

    code = "substitution_rejected"


class ArtifactInvalid(SynapseError):
    """A model file is missing, damaged or not what its digest says."""

    code = "artifact_invalid"


class SequenceTooLong(SynapseError):
    """The composed input passes the lane's token limit."""

    code = "sequence_too_long"


class UnknownModel(SynapseError):
    """The id is no catalog id, lane id or registered model."""

    code = "unknown_model"


class BackendUnavailable(SynapseError):
    """No backend of the model can run on this machine."""

    code = "backend_unavailable"


class SelfCheckFailed(SynapseError):
    """The lane's numeric self-check failed."""

    code = "self_check_failed"


class ModelInUse(SynapseError):
    """The model is still held."""

    code = "model_in_use"


class MigrationRequired(SynapseError):
    """An alias the index depends on was retracted."""

    code = "migration_required"


class ModuleRestarted(SynapseError):
    """The host restarted before the work ended."""

    code = "module_restarted"


class DownloadFailed(SynapseError):
    """The network, the server or the disk stopped a download."""

    code = "download_failed"


class IdempotencyConflict(SynapseError):
    """The key is bound to other content."""

    code = "idempotency_conflict"


class StartRefused(Exception):
    """The host cannot start; never on the wire. The message says what stands in the way and what to do."""


class SettingsInvalid(StartRefused):
    """The configuration holds an unknown key or a wrong value. Raised by ``settings`` alone."""


_NAMED = {error.code: error for error in SynapseError.__subclasses__()}

#: code -> exception type; codes raised only by later rooms get a type made from the table.
EXCEPTIONS: Mapping[str, type[SynapseError]] = {
    code: _NAMED.get(code) or _exception_type(code) for code in STABLE_ERRORS
}


def from_wire(error: Mapping[str, Any]) -> SynapseError:
    """The exception for a received error object.

    Raises:
        ValueError: the object carries a code that is not in the table; the message names it.

    """
    code = str(error.get("code"))
    if code not in EXCEPTIONS:
        raise ValueError(
            f"the host answered with error code {code!r}, which this client does not know; update the client"
        )
    return EXCEPTIONS[code](
        str(error.get("message", "")),
        details=error.get("details"),
        retry_after_ms=error.get("retry_after_ms"),
        error_class=error.get("class"),
    )
