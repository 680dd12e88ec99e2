"""The one shape of ``artifact_invalid`` for a model's file (wire contract section 2)."""

from __future__ import annotations

from synapse_host.errors import ArtifactInvalid
from synapse_host.model_files.source_files import FileDigest


def artifact_invalid(
    file: str,
    message: str,
    *,
    expected_sha256: str | None = None,
    expected_size: int | None = None,
    actual: FileDigest | None = None,
    recovery: str = "model.load",
) -> ArtifactInvalid:
    """The error for a file that is missing, damaged or another one; what is not known is null."""
    return ArtifactInvalid(
        message,
        details={
            "file": file,
            "expected_sha256": expected_sha256,
            "actual_sha256": actual.sha256 if actual else None,
            "expected_size": expected_size,
            "actual_size": actual.size if actual else None,
            "recovery_op": recovery,
        },
    )
