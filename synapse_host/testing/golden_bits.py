"""The bits of one tiny model on the numpy reference, and the rule that holds them to the kernel revision."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from synapse_host.owned_engine import kernel_revision, reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.tiny_models import TinyBert, write_model

_MODEL = TinyBert(seed=20, hidden=32, layers=2, heads=4, intermediate=64, vocab=211, positions=310)
_LENGTHS = (1, 2, 15, 16, 17, 33, 130, 256, 257, 300)


def measure(directory: Path) -> dict[str, str]:
    """Embed seeded rows with a model written into ``directory``: the current revision and the digest of the vectors."""
    write_model(directory, _MODEL)
    digest = hashlib.sha256()
    with loaded_model(reference_plugin, directory, max_tokens=300) as model:
        for pooling in ("mean", "cls", "last"):
            batch = batch_of(seeded_rows(_LENGTHS, _MODEL.vocab), pooling)
            digest.update(reference_plugin.synapse_embed(model, batch, ignore_progress).tobytes())
    revision = reference_plugin.synapse_describe().kernel_revision
    return {"kernel_revision": str(revision), "vectors_sha256": digest.hexdigest()}


def fault(frozen: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """What is wrong between a frozen measurement and a new one, or None."""
    if found["kernel_revision"] != frozen["kernel_revision"]:
        return (
            f"the kernel revision is {found['kernel_revision']}, the fixture has {frozen['kernel_revision']}; "
            "freeze the golden bits again"
        )
    if found["vectors_sha256"] != frozen["vectors_sha256"]:
        return (
            f"the bits moved to {found['vectors_sha256']} while the kernel revision stayed {found['kernel_revision']}; "
            "find what moved them, or put the source that did under the revision"
        )
    return None


def revised_modules() -> set[str]:
    """Names of the modules the reference's revision covers."""
    sources = [*kernel_revision.shared_sources(), *kernel_revision.reference_sources()]
    return {path.stem for path in sources}
