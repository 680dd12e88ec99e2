"""What the reference backend makes of rows from the files of a model: the figures nobody has published."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synapse_host.certification.probe_setting import on_reference
from synapse_host.certification.worker_runs import StartWorker, scores_of, vectors_of
from synapse_host.models.registered_model import RegisteredModel

Figures = list[list[float]]


async def reference_figures(
    start_worker: StartWorker, model: RegisteredModel, rows: Sequence[Sequence[int]]
) -> Figures:
    """Vectors of a model that embeds, probabilities of one that reranks; in float32, in a worker of their own.

    Raises:
        InvalidRequest: the model came without the checkpoint the reference reads.
        SynapseError: the worker could not be started, refused, or died.

    """
    reference = on_reference(model)
    if model.task == "embed":
        return _lists(await vectors_of(start_worker, reference, rows, threads=0))
    scores = await scores_of(start_worker, reference, rows, threads=0)
    probabilities = scores if model.pair_template.score == "probability" else 0.5 * (1.0 + np.tanh(0.5 * scores))
    return _lists(probabilities.reshape(-1, 1))


def _lists(figures: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Figures:
    return [[float(figure) for figure in line] for line in figures]
