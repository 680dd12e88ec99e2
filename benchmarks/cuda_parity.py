"""Every family on the CUDA engine against the reference: vectors, scores and greedy tokens, in f32 and f16."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from synapse_owned_cuda import plugin

from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS, SEPARATOR
from synapse_host.testing.models.tiny_encoders import TINY_XLM_ROBERTAS
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.models.tiny_modernbert import TINY_MODERNBERTS, TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, TinyQwen3, write_qwen3

#: Rows of many lengths, one of them alone in its bucket: a batch that half a launch would leave undone shows.
LENGTHS = (1, 2, 3, 15, 16, 17, 40, 63, 64, 65, 66, 100, 127, 128, 129)
LONG = (255, 256, 257, 300)
FLOORS = {"f32": 0.999999, "f16": 0.9999}
_GREEDY = 32


@dataclass(frozen=True, slots=True)
class Case:
    """A model with what it is asked: ``task`` is embed, rerank or generate."""

    name: str
    task: str
    write: Callable[[Path], Any]
    dtypes: Sequence[str] = ("f32", "f16")
    pooling: str = "mean"
    more: tuple[int, ...] = ()


def cases(stand_in: bool) -> list[Case]:
    """Every family; without a device, the smallest of each."""
    bert = TinyBert(5, 32, 2, 4, 64, 120, 512)
    tiny = [
        Case("bert", "embed", lambda to: write_model(to, bert)),
        *_encoders("xlm_roberta", TINY_XLM_ROBERTAS, stand_in),
        *_encoders("modernbert", TINY_MODERNBERTS, stand_in),
        *_qwen3s(stand_in),
        *(
            Case(name, "rerank", lambda to, model=model: write_model(to, model))
            for name, model in list(CROSS_ENCODERS.items())[: 1 if stand_in else None]
        ),
    ]
    return tiny if stand_in else [*tiny, *_wide()]


def parity(stand_in: bool, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each model and precision."""
    for place, case in enumerate(cases(stand_in)):
        directory = folder / f"parity-{place}"
        directory.mkdir(parents=True)
        case.write(directory)
        for dtype in case.dtypes[: 1 if stand_in and case.task != "embed" else None]:
            try:
                yield {"model": case.name, "task": case.task, "dtype": dtype, **_compared(case, directory, dtype)}
            except Exception as failure:  # another model may still agree
                yield {"model": case.name, "task": case.task, "dtype": dtype, "error": repr(failure)}


def _compared(case: Case, directory: Path, dtype: str) -> dict[str, Any]:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    limit = min(512, int(config["max_position_embeddings"]) - 5)
    lengths = [length for length in (*LENGTHS, *case.more) if length <= limit]
    rows = seeded_rows(lengths if case.more else lengths[:9], config["vocab_size"])
    rows = [np.maximum(row, 5) for row in rows]
    return {"embed": _vectors, "rerank": _scores, "generate": _tokens}[case.task](case, directory, dtype, limit, rows)


def _vectors(case: Case, directory: Path, dtype: str, limit: int, rows: list[Any]) -> dict[str, Any]:
    found, wanted = (
        _run(backend, directory, kind, limit, {}, lambda b, m: b.synapse_embed(m, batch_of(rows, case.pooling), _QUIET))
        for backend, kind in ((plugin, dtype), (reference_plugin, "f32"))
    )
    cosine = float(np.sum(found.astype(np.float64) * wanted, axis=1).min())
    worst = float(np.abs(found - wanted).max())
    return {"rows": len(rows), "least cosine": cosine, "largest error": worst, "agrees": cosine >= FLOORS[dtype]}


def _scores(case: Case, directory: Path, dtype: str, limit: int, rows: list[Any]) -> dict[str, Any]:
    asked = {"operation": "rerank"} | ({} if "qwen3" in case.name else {"pair_separator": str(SEPARATOR)})
    found, wanted = (
        _run(backend, directory, kind, limit, asked, lambda b, m: b.synapse_rerank(m, rows, _QUIET))
        for backend, kind in ((plugin, dtype), (reference_plugin, "f32"))
    )
    worst = float(np.abs(found - wanted).max())
    return {"rows": len(rows), "largest error": worst, "agrees": worst <= {"f32": 1e-4, "f16": 0.02}[dtype]}


def _tokens(case: Case, directory: Path, dtype: str, limit: int, rows: list[Any]) -> dict[str, Any]:
    asked, most = {"operation": "generate"}, {"max_tokens": _GREEDY}
    ours = SimpleNamespace(synapse_load=plugin.load_decoder, synapse_unload=plugin.synapse_unload)

    def made(backend: Any, model: Any) -> list[list[int]]:
        return [list(model.generate(row, most, _QUIET).token_ids) for row in rows[:4]]

    found, wanted = (_run(b, directory, dtype, limit, asked, made) for b in (ours, reference_plugin))
    same = sum(a == b for a, b in zip(found, wanted, strict=True))
    return {"rows": len(found), "token-exact": f"{same} of {len(found)}", "agrees": same == len(found)}


_QUIET = ignore_progress


def _run(backend: Any, directory: Path, dtype: Any, limit: int, asked: dict[str, str], use: Any) -> Any:
    with loaded_model(backend, directory, dtype=dtype, max_tokens=limit, runtime_config=asked) as model:
        return use(backend, model)


def _encoders(family: str, models: Any, stand_in: bool) -> Iterator[Case]:
    for name, model in list(models.items())[: 1 if stand_in else None]:
        yield Case(f"{family}/{name}", "embed", lambda to, model=model: write_model(to, model), more=_more(stand_in))


def _qwen3s(stand_in: bool) -> Iterator[Case]:
    for name, model in list(TINY_QWEN3S.items())[: 1 if stand_in else None]:
        plain = lambda to, model=model: write_qwen3(to, model, eos_token_id=None)  # noqa: E731
        judge = lambda to, model=model: write_qwen3(to, model, readout_ids=[7, 9])  # noqa: E731
        yield Case(f"qwen3/{name}", "embed", plain, pooling="last", more=_more(stand_in))
        yield Case(f"qwen3/{name}", "rerank", judge)
        yield Case(f"qwen3/{name}", "generate", plain, dtypes=("f32",))


def _more(stand_in: bool) -> tuple[int, ...]:
    return () if stand_in else LONG


def _wide() -> Iterator[Case]:
    """Blocks as wide as the published models': heads of 64 and 128, rows moved four features at a time."""
    gte = TinyModernBert(61, 768, 3, 12, 1152, 500, 1024, span=128)
    qwen3 = TinyQwen3(62, 1024, 2, 16, 8, 128, 3072, 500, 1024, tied=True)
    yield Case("modernbert, gte's widths", "embed", lambda to: write_model(to, gte), pooling="cls", more=LONG)
    yield Case("qwen3, 0.6B's widths", "embed", lambda to: write_qwen3(to, qwen3), pooling="last", more=LONG)
