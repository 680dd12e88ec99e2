"""The errors of a download, with the details the wire contract gives them (section 2)."""

from __future__ import annotations

import errno
from typing import Literal

from synapse_host.errors import ArtifactInvalid, DownloadFailed, StoreFailure, SynapseError

FailureReason = Literal["network", "http_status", "storage_full"]
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def download_failed(
    file: str, reason: FailureReason, message: str, *, http_status: int | None = None
) -> DownloadFailed:
    """A download that may succeed when it is tried again."""
    return DownloadFailed(message, details={"file": file, "reason": reason, "http_status": http_status})


def artifact_invalid(
    file: str,
    *,
    expected_sha256: str,
    actual_sha256: str | None,
    expected_size: int | None,
    actual_size: int | None,
) -> ArtifactInvalid:
    """Content that is not what the catalog says, or is not there. A value is None where it could not be known.

    A file with no size to expect is none of the catalog's: no download of an entry would bring it back.
    """
    if actual_size is None:
        found = "is not in the model cache"
    else:
        found = f"has {actual_size} bytes and sha256 {actual_sha256 or 'not known'}"
    details = {
        "file": file,
        "expected_sha256": expected_sha256,
        "actual_sha256": actual_sha256,
        "expected_size": expected_size,
        "actual_size": actual_size,
    }
    if expected_size is None:
        said = f"expected is sha256 {expected_sha256}; correct the digest, or the place the file comes from"
        return ArtifactInvalid(f"{file} {found}; {said}", details={**details, "recovery_op": None})
    said = f"expected are {expected_size} bytes and sha256 {expected_sha256}; call models.download to fetch it again"
    return ArtifactInvalid(f"{file} {found}; {said}", details={**details, "recovery_op": "models.download"})


def storage_failure(file: str, failure: StoreFailure) -> SynapseError:
    """A full disk is ``download_failed``; every other fault of the cache stays what it is."""
    cause = failure.__cause__
    if isinstance(cause, OSError) and cause.errno in _FULL:
        return download_failed(file, "storage_full", f"{file} could not be kept: {failure.message}")
    return failure
