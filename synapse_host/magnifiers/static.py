"""Static embeddings: a table whose rows differ in size, so that a row too many or too few turns the mean."""

from __future__ import annotations

import numpy as np

from synapse_host.magnifiers.magnifier import LENGTHS, VOCAB, Magnifier, Numbers

SEED = 20_261_130
HIDDEN, POSITIONS = 48, 192
#: The row of id 0, which padded places hold, beside the others: a mean that takes it in points elsewhere.
_PADDING_SCALE = 20.0


def static() -> Magnifier:
    """The table; the family has no head that scores, so there are no pairs."""
    numbers = Numbers(SEED)
    table = numbers.normal(VOCAB, HIDDEN, scale=1.0)
    table *= numbers.normal(VOCAB, 1, scale=1.0, mean=1.5)
    table[0] *= np.float32(_PADDING_SCALE)
    config = {
        "model_type": "static",
        "architectures": ["StaticEmbedding"],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "max_position_embeddings": POSITIONS,
    }
    return Magnifier("static", config, {"embedding.weight": table}, numbers.rows(LENGTHS), pairs=[])
