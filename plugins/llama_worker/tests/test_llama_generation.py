"""Greedy generation: the tokens llama.cpp itself makes, ends where it should, and says how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_llama_worker import plugin
from synapse_llama_worker.model import PROMPT_CHUNK

from synapse_host.hookspecs import PluginError
from synapse_host.testing.gguf_runs import Reports, loaded_gguf
from synapse_host.testing.models.tiny_gguf import TinyDecoder, write_tiny_decoder

MODELS = {name: TinyDecoder(seed=3, architecture=name) for name in plugin.GENERATING}
#: Prompts that are token-exact with the library, and the tokens made after each.
PROMPTS, MADE = 20, 64
CONTEXT = 128


def prompts(count: int, vocabulary: int) -> Iterator[np.ndarray]:
    for number in range(count):
        rng = np.random.default_rng(number)
        yield rng.integers(0, vocabulary - 1, 1 + 3 * number).astype(np.int32)


def directly(file: Path, rows: list[np.ndarray], end: int) -> list[list[int]]:
    """What llama-cpp-python's own class makes of the same prompts, greedily."""
    from llama_cpp import Llama

    library = Llama(str(file), n_ctx=CONTEXT + 128, n_threads=1, flash_attn=True, verbose=False)
    made = []
    for row in rows:
        tokens: list[int] = []
        # The class would keep what this prompt shares with the last one, and compute fewer rows together.
        library.reset()
        for token in library.generate(row.tolist(), temp=0.0, reset=True):
            if token == end or len(tokens) == MADE:
                break
            tokens.append(token)
        made.append(tokens)
    library.close()
    return made


def generate(model: Any, prompt: Any, most: int, heard: Reports | None = None) -> Any:
    row = np.asarray(prompt, np.int32)
    return plugin.synapse_generate(model, row, {"max_tokens": most}, heard or Reports())


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    tiny = MODELS[name]
    write_tiny_decoder(tmp_path, tiny)
    vocabulary = len(tiny.tokens)
    rows = list(prompts(PROMPTS, vocabulary))
    wanted = directly(tmp_path / "model.gguf", rows, vocabulary - 1)
    with loaded_gguf(plugin, tmp_path / "model.gguf", name, "generate", CONTEXT) as model:
        made = [generate(model, row, MADE) for row in rows]
    assert [one.token_ids for one in made] == wanted
    assert len({tuple(one.token_ids) for one in made}) > PROMPTS // 2, "the model says the same to everything"
    assert [one.n_prompt for one in made] == [len(row) for row in rows]
    assert {one.finish_reason for one in made} <= {"length", "stop"}


def test_an_end_of_text_stops_and_is_left_out(tmp_path: Path) -> None:
    tiny = MODELS["llama"]
    write_tiny_decoder(tmp_path / "endless", tiny)
    with loaded_gguf(plugin, tmp_path / "endless" / "model.gguf", "llama", "generate", CONTEXT) as model:
        free = generate(model, [5, 6, 7], 16)
    assert free.finish_reason == "length"
    cut = next(place for place, token in enumerate(free.token_ids) if place and token not in free.token_ids[:place])
    write_tiny_decoder(tmp_path / "ending", replace(tiny, end=free.token_ids[cut]))
    with loaded_gguf(plugin, tmp_path / "ending" / "model.gguf", "llama", "generate", CONTEXT) as model:
        ended = generate(model, [5, 6, 7], 16)
        empty = generate(model, [5, 6, 7, *free.token_ids[:cut]], 16)
    assert (ended.token_ids, ended.finish_reason) == (free.token_ids[:cut], "stop")
    assert (empty.token_ids, empty.finish_reason) == ([], "stop")


def test_nothing_of_a_request_is_left_for_the_next(tmp_path: Path) -> None:
    write_tiny_decoder(tmp_path, MODELS["qwen3"])
    with loaded_gguf(plugin, tmp_path / "model.gguf", "qwen3", "generate", CONTEXT) as model:
        first = generate(model, [1, 2, 3], 8)
        generate(model, list(range(60)), 60)
        assert generate(model, [1, 2, 3], 8) == first


def test_a_long_prompt_is_read_in_chunks_with_progress(tmp_path: Path) -> None:
    tiny = replace(MODELS["llama"], positions=4 * PROMPT_CHUNK)
    write_tiny_decoder(tmp_path, tiny)
    heard = Reports()
    prompt = [place % 200 for place in range(2 * PROMPT_CHUNK + 5)]
    with loaded_gguf(plugin, tmp_path / "model.gguf", "llama", "generate", 3 * PROMPT_CHUNK) as model:
        made = generate(model, prompt, 3, heard)
    whole = len(prompt)
    counts = [PROMPT_CHUNK, 2 * PROMPT_CHUNK, whole, *range(whole + 1, whole + 1 + len(made.token_ids))]
    assert heard.heard == [(count, "inference") for count in counts]


def test_the_last_position_may_be_used_and_none_after_it(tmp_path: Path) -> None:
    write_tiny_decoder(tmp_path, MODELS["llama"])
    with loaded_gguf(plugin, tmp_path / "model.gguf", "llama", "generate", 20) as model:
        assert len(generate(model, [1] * 12, 8).token_ids) == 8
        with pytest.raises(PluginError, match="a prompt of 13 tokens and max_tokens 8 need 21") as refusal:
            generate(model, [1] * 13, 8)
        assert refusal.value.code == "invalid_request"


@pytest.mark.parametrize("token", [-1, 266, 2**31 - 1])
def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path, token: int) -> None:
    assert len(MODELS["llama"].tokens) == 266
    write_tiny_decoder(tmp_path, MODELS["llama"])
    with (
        loaded_gguf(plugin, tmp_path / "model.gguf", "llama", "generate", 20) as model,
        pytest.raises(PluginError, match=f"token id {token} is outside the vocabulary of 266"),
    ):
        generate(model, [1, token], 2)


def test_a_grammar_is_refused_before_the_engine_sees_it(tmp_path: Path) -> None:
    write_tiny_decoder(tmp_path, MODELS["llama"])
    with loaded_gguf(plugin, tmp_path / "model.gguf", "llama", "generate", 20) as model:
        options = {"max_tokens": 2, "grammar": "root ::= ((("}
        with pytest.raises(PluginError, match="obeys no grammar") as refusal:
            plugin.synapse_generate(model, np.array([1], np.int32), options, Reports())
        assert refusal.value.code == "unsupported_request"


def test_weights_that_are_not_numbers_are_told(tmp_path: Path) -> None:
    from synapse_host.testing.models.gguf_file import write_gguf

    tiny = MODELS["llama"]
    tensors = tiny.tensors()
    tensors["output_norm.weight"][:] = np.nan
    write_gguf(tmp_path / "model.gguf", tiny.values(), tensors)
    with (
        loaded_gguf(plugin, tmp_path / "model.gguf", "llama", "generate", 20) as model,
        pytest.raises(PluginError) as refusal,
    ):
        generate(model, [1], 2)
    assert refusal.value.code == "non_finite_output"
