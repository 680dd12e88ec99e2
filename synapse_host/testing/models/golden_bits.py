"""The bits of tiny models of every family on the numpy reference, and the rule that ties them to the revision."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from synapse_host.owned_engine import kernel_revision, reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS
from synapse_host.testing.models.tiny_encoders import TINY_XLM_ROBERTAS
from synapse_host.testing.models.tiny_models import TinyBert, TinyModel, write_safetensors
from synapse_host.testing.models.tiny_modernbert import TINY_MODERNBERTS
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, TinyQwen3
from synapse_host.testing.models.tiny_rerankers import TinyBertReranker
from synapse_host.testing.models.tiny_static import TinyStatic

_LENGTHS = (1, 2, 15, 16, 17, 33, 130, 256, 257, 300)
_LONGEST = max(_LENGTHS)
_RERANK: Mapping[str, str] = {"operation": "rerank", "pair_separator": "3"}
#: A model that embeds and one that reranks where the family does, by family.
_MODELS: Mapping[str, tuple[TinyModel, TinyModel | None]] = MappingProxyType(
    {
        "bert": (
            TinyBert(seed=20, hidden=32, layers=2, heads=4, intermediate=64, vocab=211, positions=310),
            TinyBertReranker(seed=21, hidden=30, layers=1, heads=5, intermediate=44, vocab=99, positions=310),
        ),
        "xlm-roberta": (TINY_XLM_ROBERTAS["three_layers"], CROSS_ENCODERS["xlm_roberta/two_layers"]),
        "modernbert": (TINY_MODERNBERTS["short_window"], CROSS_ENCODERS["modernbert/mean"]),
        "qwen3": (TINY_QWEN3S["pairs"], TinyQwen3(34, 32, 1, 4, 2, 10, 48, vocab=517, positions=1000, tied=True)),
        "static": (TinyStatic(seed=22, hidden=36, vocab=211, positions=310), None),
    }
)
#: Families whose bits are frozen.
GOLDEN = tuple(_MODELS)


def measure(directory: Path, families: Sequence[str] = GOLDEN) -> dict[str, str]:
    """Compute seeded rows with models written into ``directory``: the revision, and the digest of each family."""
    digests = {f"{family}_sha256": _digest(directory / family, family) for family in families}
    return {"kernel_revision": str(reference_plugin.synapse_describe().kernel_revision), **digests}


def _digest(directory: Path, family: str) -> str:
    """Of the vectors under every pooling, then of the scores."""
    encoder, reranker = _MODELS[family]
    digest = hashlib.sha256()
    rows = seeded_rows(_LENGTHS, _write(directory / "encoder", encoder))
    with loaded_model(reference_plugin, directory / "encoder", max_tokens=_LONGEST) as model:
        for pooling in ("mean", "cls", "last"):
            digest.update(reference_plugin.synapse_embed(model, batch_of(rows, pooling), ignore_progress).tobytes())
    if reranker is None:
        return digest.hexdigest()
    rows = seeded_rows(_LENGTHS, _write(directory / "reranker", reranker))
    with loaded_model(reference_plugin, directory / "reranker", max_tokens=_LONGEST, runtime_config=_RERANK) as model:
        digest.update(reference_plugin.synapse_rerank(model, rows, ignore_progress).tobytes())
    return digest.hexdigest()


def _write(directory: Path, model: TinyModel) -> int:
    """Write the model's weights and config, with tokens to read yes and no from; returns its vocabulary's size."""
    directory.mkdir(parents=True)
    config = model.config() | {"readout_ids": [40, 41]}
    write_safetensors(directory / "model.safetensors", model.tensors(), "f32")
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return int(config["vocab_size"])


def fault(frozen: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """What is wrong between a frozen measurement and a new one of the same or fewer families, or None."""
    if found["kernel_revision"] != frozen["kernel_revision"]:
        return (
            f"the kernel revision is {found['kernel_revision']}, the fixture has {frozen['kernel_revision']}; "
            "freeze the golden bits again"
        )
    moved = [name for name in found if found[name] != frozen.get(name)]
    if moved:
        return (
            f"the bits moved ({', '.join(moved)}) while the kernel revision stayed {found['kernel_revision']}; "
            "find what moved them, or put the source that did under the revision"
        )
    return None


def revised_modules() -> set[str]:
    """Names of the modules the reference's revision covers."""
    sources = [*kernel_revision.shared_sources(), *kernel_revision.reference_sources()]
    return {path.stem for path in sources}
