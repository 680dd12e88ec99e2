"""The magnifying models by family.

A wrong epsilon, the tanh form of GELU or a shifted position hardly moves the vectors of a trained model, least of all
in bf16. These tiny models are made so that each of them turns the output: embeddings so small that epsilon decides
their scale; feed-forward inputs where the two forms of an activation differ, with outputs scaled up to carry the
residual; positions that differ from row to row; attention sharp enough that one masked or misplaced key shows.

Host and engine share this room: the probe writes a model as files for a lane to load, the engine runs all of them when
it checks itself. It imports neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from synapse_host.magnifiers.bert import bert, xlm_roberta
from synapse_host.magnifiers.magnifier import Magnifier
from synapse_host.magnifiers.modernbert import modernbert
from synapse_host.magnifiers.qwen3 import qwen3
from synapse_host.magnifiers.static import static

_MAKERS: Mapping[str, Callable[[], Magnifier]] = MappingProxyType(
    {"bert": bert, "xlm-roberta": xlm_roberta, "modernbert": modernbert, "qwen3": qwen3, "static": static}
)
#: Families that have one.
MAGNIFIED = tuple(_MAKERS)


@lru_cache(maxsize=len(MAGNIFIED))
def magnifier_of(family: str) -> Magnifier:
    """The magnifying model of ``family``; raises ``KeyError`` for a family that has none."""
    return _MAKERS[family]()
