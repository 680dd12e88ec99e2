"""Rows of the longest shapes as converted programs of half precision, by the interpreter, against the reference.

The test suite computes them up to 2,048 positions; here are all rungs above, of the three ways to look at other tokens:
everywhere, in a window, and back. ``pytest -s`` prints the figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.ops.tolerances import END_TO_END
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import TinyModel, write_model
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3

plugin = pytest.importorskip("synapse_ane.plugin")
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]
INTERPRETED = {"allow_interpreter": "true"}
MODELS: dict[str, tuple[TinyModel, Any]] = {
    "modernbert": (TinyModernBert(5, 8, 2, 2, 12, 97, 8192, span=128), "mean"),
    "qwen3": (TinyQwen3(5, 8, 1, 2, 1, 8, 12, 97, 8192, tied=True), "last"),
}
#: The shortest and the longest row of each rung, one in between, and one beside an edge of a tile.
ROWS = {2048: [1025, 1537, 2048], 4096: [2049, 3000, 4096], 8192: [4097, 6145, 8191, 8192]}


@pytest.mark.parametrize("name", MODELS)
def test_the_longest_rows_agree_with_the_reference(name: str, tmp_path: Path) -> None:
    tiny, pooling = MODELS[name]
    write_model(tmp_path, tiny)
    lengths = [length for rung in ROWS.values() for length in rung]
    batch = batch_of(seeded_rows(lengths, 97), pooling)
    with loaded_model(reference_plugin, tmp_path, max_tokens=8192) as model:
        wanted = reference_plugin.synapse_embed(model, batch, ignore_progress).astype(np.float64)
    with loaded_model(plugin, tmp_path, dtype="f16", max_tokens=8192, settings=INTERPRETED) as model:
        found = plugin.synapse_embed(model, batch, ignore_progress).astype(np.float64)
    cosines, apart = np.sum(found * wanted, axis=1), np.abs(found - wanted).max(axis=1)
    for length, cosine, worst in zip(lengths, cosines, apart, strict=True):
        print(f"\n{name} {length:,} tokens: cosine {cosine:.7f}, a component off by {worst:.1e}")
    assert cosines.min() >= END_TO_END["f16"].min_cosine
    assert apart.max() <= END_TO_END["f16"].max_abs_error
