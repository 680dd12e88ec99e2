"""Greedy decoding over a cache on the numpy reference, token for token as transformers continues the same prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.hookspecs import Generation, PluginError
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.owned_engine import greedy, reference_plugin
from synapse_host.owned_engine.decoder import OwnedDecoder
from synapse_host.testing.engine_runs import ignore_progress, loaded_model
from synapse_host.testing.models.recorded_qwen3 import RecordedQwen3, recorded_qwen3
from synapse_host.testing.models.tiny_models import TinyBert, write_model, write_safetensors
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, write_qwen3

FIXTURES = Path(__file__).parents[1] / "fixtures"
#: Tokens transformers generated after each prompt.
GENERATED = 64


@contextmanager
def decoder(
    directory: Path, recorded: RecordedQwen3, *, max_tokens: int = 200, eos: Any = None, **runtime: str
) -> Iterator[OwnedDecoder]:
    write_qwen3(directory, recorded.model, eos_token_id=eos)
    settings = {"operation": "generate", **runtime}
    with loaded_model(reference_plugin, directory, max_tokens=max_tokens, runtime_config=settings) as model:
        yield model


def generated(model: OwnedDecoder, prompt: Any, most: int = GENERATED) -> Generation:
    return reference_plugin.synapse_generate(model, prompt, {"max_tokens": most}, ignore_progress)


@pytest.fixture(scope="module")
def pairs() -> RecordedQwen3:
    return recorded_qwen3(FIXTURES, "pairs")


@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_every_token_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, name)
    with decoder(tmp_path, recorded) as model:
        for prompt, wanted in zip(recorded.prompts, recorded.generated, strict=True):
            made = generated(model, prompt)
            assert (list(made.token_ids), made.finish_reason, made.n_prompt) == (wanted.tolist(), "length", len(prompt))


def test_a_cache_changes_no_token_and_reads_each_once(
    pairs: RecordedQwen3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against reading the whole text again for every token."""
    read: list[tuple[int, int]] = []
    appended = ReferenceOps.kv_append

    def counted(ops: Any, cache: Any, layer: int, k: Any, v: Any, batch: Any) -> Any:
        read.append((batch.start, k.shape[2]))
        return appended(ops, cache, layer, k, v, batch)

    prompt = pairs.prompts[1]
    with decoder(tmp_path, pairs) as model:
        monkeypatch.setattr(ReferenceOps, "kv_append", counted)
        cached = list(generated(model, prompt, 20).token_ids)
        places = sorted(set(read))
        whole: list[int] = []
        for _ in range(20):
            whole += generated(model, np.array([*prompt, *whole], np.int32), 1).token_ids
    assert cached == whole
    assert places == [(0, len(prompt)), *((len(prompt) + place, 1) for place in range(19))]


def test_progress_counts_tokens_and_carries_them(pairs: RecordedQwen3, tmp_path: Path) -> None:
    seen: list[tuple[int, str, Sequence[int]]] = []

    def progress(completed: int, phase: str, token_ids: Sequence[int] = ()) -> None:
        seen.append((completed, phase, token_ids))

    with decoder(tmp_path, pairs) as model:
        model.generate(pairs.prompts[0], {"max_tokens": 5}, progress)
    wanted = pairs.generated[0][:5].tolist()
    assert seen == [(place + 1, "inference", (token,)) for place, token in enumerate(wanted)]


def test_a_long_prompt_is_read_in_pieces_and_changes_no_token(
    pairs: RecordedQwen3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, Sequence[int]]] = []
    prompt, wanted = pairs.prompts[1], pairs.generated[1].tolist()
    monkeypatch.setattr(greedy, "PIECE", 7)
    with decoder(tmp_path, pairs) as model:
        for cut in (28, 29):
            seen.clear()
            made = model.generate(prompt[:cut], {"max_tokens": 3}, lambda done, _, ids=(): seen.append((done, ids)))
            assert [ids for _, ids in seen] == [*[()] * {28: 3, 29: 4}[cut], *((token,) for token in made.token_ids)]
            assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
        assert list(generated(model, prompt).token_ids) == wanted
    assert len(prompt) == 29


def first_new(tokens: list[int], earliest: int) -> int:
    """The first place from ``earliest`` on whose token did not come before."""
    return next(place for place in range(earliest, len(tokens)) if tokens[place] not in tokens[:place])


@pytest.mark.parametrize("where", ["config", "list in config", "load"])
def test_a_stop_token_ends_the_text_and_is_left_out(pairs: RecordedQwen3, tmp_path: Path, where: str) -> None:
    wanted = pairs.generated[1].tolist()
    cut = first_new(wanted, 4)
    token = wanted[cut]
    ways: Mapping[str, Mapping[str, Any]] = {
        "config": {"eos": token},
        "list in config": {"eos": [pairs.model.vocab - 1, token]},
        "load": {"eos": None, "stop_ids": f"{pairs.model.vocab - 1},{token}"},
    }
    with decoder(tmp_path, pairs, **ways[where]) as model:
        made = generated(model, pairs.prompts[1])
        nothing = generated(model, np.array([*pairs.prompts[1], *wanted[:cut]], np.int32))
    assert (list(made.token_ids), made.finish_reason) == (wanted[:cut], "stop")
    assert (list(nothing.token_ids), nothing.finish_reason) == ([], "stop")


def test_generation_ends_where_the_lane_does(pairs: RecordedQwen3, tmp_path: Path) -> None:
    prompt, wanted = pairs.prompts[1], pairs.generated[1].tolist()
    with decoder(tmp_path, pairs, max_tokens=len(prompt) + 4) as model:
        made = generated(model, prompt)
    assert (list(made.token_ids), made.finish_reason) == (wanted[:5], "length")


def test_sessions_do_not_see_each_other(pairs: RecordedQwen3, tmp_path: Path) -> None:
    with decoder(tmp_path, pairs) as model:
        before = generated(model, pairs.prompts[2], 8)
        generated(model, pairs.prompts[0], 8)
        assert generated(model, pairs.prompts[2], 8) == before


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "a prompt of 0 tokens does not fit a lane of 1 to 30"),
        ([1] * 31, "a prompt of 31 tokens does not fit a lane of 1 to 30"),
        ([1, 333], "token id 333 of the prompt is outside the vocabulary of 333"),
        ([1, -1], "token id -1 of the prompt is outside the vocabulary of 333"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused(
    pairs: RecordedQwen3, tmp_path: Path, prompt: list[int], said: str
) -> None:
    with decoder(tmp_path, pairs, max_tokens=30) as model, pytest.raises(PluginError) as refused:
        generated(model, np.array(prompt, np.int32))
    assert refused.value.code == "invalid_request"
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eos": "</s>"}, "eos_token_id '</s>'"),
        ({"eos": [3, -1]}, r"eos_token_id [3, -1]"),
        ({"stop_ids": "3,x"}, "stop_ids '3,x'"),
        ({"max_tokens": 701}, "max_tokens 701 passes the 700 positions"),
    ],
)
def test_a_load_that_cannot_generate_is_refused(
    pairs: RecordedQwen3, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(PluginError) as refused, decoder(tmp_path, pairs, **changes):
        pass
    assert refused.value.code == "config_invalid"
    assert said in str(refused.value)


def test_an_encoder_does_not_generate(tmp_path: Path) -> None:
    write_model(tmp_path, TinyBert(3, hidden=12, layers=1, heads=3, intermediate=20, vocab=61, positions=48))
    runtime = {"operation": "generate"}
    with (
        pytest.raises(PluginError, match="'generate' is none of a model of family bert") as refused,
        loaded_model(reference_plugin, tmp_path, max_tokens=48, runtime_config=runtime),
    ):
        pass
    assert refused.value.code == "operation_mismatch"


def test_numbers_that_are_none_are_refused_and_not_taken_for_a_token(pairs: RecordedQwen3, tmp_path: Path) -> None:
    with decoder(tmp_path, pairs):
        pass
    tensors = pairs.model.tensors()
    tensors["model.embed_tokens.weight"][5] = np.nan
    write_safetensors(tmp_path / "model.safetensors", tensors)
    runtime = {"operation": "generate"}
    with loaded_model(reference_plugin, tmp_path, max_tokens=200, runtime_config=runtime) as model:
        assert generated(model, pairs.prompts[0], 3).n_prompt == len(pairs.prompts[0])
        with pytest.raises(PluginError, match="the logits after token id 8 are NaN") as refused:
            generated(model, np.array([4, 5, 8], np.int32), 3)
    assert refused.value.code == "non_finite_output"


def test_a_decoder_makes_no_vectors(pairs: RecordedQwen3, tmp_path: Path) -> None:
    with decoder(tmp_path, pairs) as model:
        assert (model.dims, model.buckets) == (0, None)


FAULTS: Mapping[str, tuple[str, Any]] = {
    "positions start again after the prompt": (
        "rope",
        lambda call, ops, h, table, batch: call(ops, h, table, type(batch)(batch.ids, batch.counts)),
    ),
    "the second best token": (
        "argmax",
        lambda call, ops, logits: np.argsort(logits, axis=-1)[..., -2].astype(np.int32),
    ),
    "the cache forgets its first position": (
        "attention",
        lambda call, ops, q, k, v, batch, **rules: call(
            ops,
            q,
            k[:, :, min(batch.start, 1) :],
            v[:, :, min(batch.start, 1) :],
            type(batch)(batch.ids, batch.counts, max(batch.start - 1, 0)),
            **rules,
        ),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_changes_tokens(
    fault: str, pairs: RecordedQwen3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, change = FAULTS[fault]
    original = getattr(ReferenceOps, op)
    monkeypatch.setattr(ReferenceOps, op, lambda *args, **rules: change(original, *args, **rules))
    with decoder(tmp_path, pairs) as model:
        made = [list(generated(model, prompt).token_ids) for prompt in pairs.prompts]
    assert made != pairs.generated.tolist()
