"""Probe outcomes in the store: a certification row and a performance row each, and back."""

from __future__ import annotations

import json
from typing import cast

from synapse_host.certification.ledger import Certification, Performance, Status
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.store.tables import CertificationRow, PerformanceRow


def certification_row(model: RegisteredModel, outcome: Certification) -> CertificationRow:
    """The row that keeps ``outcome``, with the kernels and package the lane was measured under."""
    return CertificationRow(
        machine_profile_hash=outcome.machine_profile_hash,
        fingerprint=outcome.fingerprint,
        model_id=model.model_id,
        status=outcome.status,
        reason=outcome.reason,
        assurance="measured",
        os_build=outcome.os_build,
        module_generation=outcome.module_generation,
        kernel_revision=model.kernel_revision,
        manifest_digest=model.manifest_digest,
        measured_at_ms=outcome.measured_at_ms,
        evidence_json=json.dumps(outcome.evidence, sort_keys=True),
    )


def performance_row(model: RegisteredModel, outcome: Certification, speed: Performance) -> PerformanceRow:
    """The row that keeps ``speed``, beside the row of the certification it was measured with."""
    return PerformanceRow(
        machine_profile_hash=speed.machine_profile_hash,
        fingerprint=speed.fingerprint,
        model_id=model.model_id,
        throughput_tok_s=speed.throughput_tok_s,
        cold_load_ms=round(speed.cold_load_ms),
        single_item_latency_p50_ms=speed.single_item_latency_p50_ms,
        measured_at_ms=speed.measured_at_ms,
        module_generation=outcome.module_generation,
    )


def certification_of(row: CertificationRow) -> Certification:
    """The outcome a row keeps."""
    return Certification(
        fingerprint=row.fingerprint,
        machine_profile_hash=row.machine_profile_hash,
        status=cast(Status, row.status),
        reason=row.reason,
        evidence=json.loads(row.evidence_json),
        os_build=row.os_build,
        module_generation=row.module_generation,
        measured_at_ms=row.measured_at_ms,
    )


def performance_of(row: PerformanceRow) -> Performance:
    """The speed a row keeps."""
    return Performance(
        fingerprint=row.fingerprint,
        machine_profile_hash=row.machine_profile_hash,
        throughput_tok_s=row.throughput_tok_s,
        cold_load_ms=row.cold_load_ms,
        single_item_latency_p50_ms=row.single_item_latency_p50_ms,
        measured_at_ms=row.measured_at_ms,
    )
