"""Says which tensors of a checkpoint a model does not read: a head for another task, or layers config.json leaves out.

The family is run over shapes alone, so that it is the same for every backend. What is said goes to the worker's
standard error, and from there into the host's log.
"""

from __future__ import annotations

import sys

from synapse_host.hookspecs import LoadSpec, Pooling
from synapse_host.ops.null_ops import NullOps
from synapse_host.owned_engine.checkpoint_shapes import checkpoint_shapes
from synapse_host.owned_engine.engine import ModelSettings, model_config

#: Names that are told; a checkpoint cut short may have hundreds.
_MOST_NAMED = 5
#: What published encoders carry from their training and no task of ours reads: a note on it would be one on them all.
_TRAINING_HEADS = frozenset({"pooler", "cls"})


def note_unread(spec: LoadSpec, settings: ModelSettings, pooling: Pooling = "last", normalize: bool = False) -> None:
    """Write one line about the tensors the model does not read, or nothing where it reads all; never fails a load."""
    try:
        unread = unread_tensors(spec, settings, pooling, normalize)
    except (OSError, ValueError):
        # The model runs: whatever is odd about the file is not what keeps it from being served.
        return
    if unread:
        named = ", ".join(unread[:_MOST_NAMED])
        more = f" and {len(unread) - _MOST_NAMED} more" if len(unread) > _MOST_NAMED else ""
        sys.stderr.write(
            f"note: {len(unread)} tensors of {spec.artifact_path} are not read to {settings.task} with a "
            f"{settings.family.name} model of this config.json: {named}{more}; that is as it should be for the head of "
            "another task, and for whole layers it is not: check num_hidden_layers\n"
        )


def unread_tensors(spec: LoadSpec, settings: ModelSettings, pooling: Pooling, normalize: bool) -> list[str]:
    """The tensors of floating numbers that are not read, by their names in the file, sorted; heads of training aside.

    Raises:
        ValueError: the checkpoint is not the model's.
        OSError: it cannot be read.

    """
    family, ops = settings.family, NullOps()
    config = model_config(settings, pooling, normalize)
    head = {"embed": family.head, "rerank": family.score, "generate": family.next_token}[settings.task]
    batch = ops.batch()
    x = family.stem(ops, config, batch)
    for layer in range(config.layers):
        x = family.block(ops, config, layer, x, batch)
    if head is not None:
        head(ops, config, x, batch)
    shapes = checkpoint_shapes(spec)
    stored = (shapes.entry(name) for name in shapes if name not in ops.weights)
    names = (tensor.name for tensor in stored if tensor.dtype.startswith(("F", "BF")))
    return sorted(name for name in names if _TRAINING_HEADS.isdisjoint(name.split(".")))
