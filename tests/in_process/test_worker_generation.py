from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from synapse_host.hookspecs import Generation, PluginError
from synapse_host.testing.plain_plugin import PlainModel, PlainPlugin
from synapse_host.testing.workers.running_worker import packed_ids
from synapse_host.worker.generation import generate
from synapse_host.worker.loading import Resident
from synapse_host.worker_protocol.messages import Generate, Text

GRAMMAR = 'root ::= "yes" | "no"'


def run(answer: Any, request: Generate, prompt: list[int], model: PlainModel | None = None) -> Text:
    plugin = PlainPlugin(synapse_generate=answer if callable(answer) else lambda **_: answer)
    resident = Resident(model or PlainModel(), -1, 0, None, "generate")
    return generate(plugin, resident, request, packed_ids(prompt), lambda *_: None)


def test_the_hook_gets_prompt_and_options_and_its_answer_becomes_text() -> None:
    seen: list[Any] = []

    def hook(model: object, prompt: Any, options: Any, progress: object) -> Generation:
        seen.extend([prompt, options])
        return Generation(np.array([7, 8]), "length", len(prompt), "ab")  # type: ignore[arg-type]

    assert run(hook, Generate("g", "m", 2), [1, 2, 3]) == Text("g", "ab", 3, 2, "length", [7, 8])
    assert (seen[0].tolist(), seen[0].dtype) == ([1, 2, 3], np.int32)
    assert seen[1] == {"max_tokens": 2}


def test_nothing_generated_has_no_ids() -> None:
    assert run(Generation([], "stop", 1), Generate("g", "m", 9), [1]) == Text("g", "", 1, 0, "stop")


def test_a_grammar_reaches_only_a_model_that_obeys_it() -> None:
    seen: list[Any] = []

    def hook(options: Any, **_: Any) -> Generation:
        seen.append(options)
        return Generation([], "stop", 1)

    run(hook, Generate("g", "m", 9, GRAMMAR), [1], PlainModel(grammar=True))
    assert seen == [{"max_tokens": 9, "grammar": GRAMMAR}]
    for model in (PlainModel(), PlainModel(grammar=False), PlainModel(grammar="yes")):
        with pytest.raises(PluginError, match="grammar") as refused:
            run(pytest.fail, Generate("g", "m", 9, GRAMMAR), [1], model)
        assert refused.value.code == "unsupported_request"


@pytest.mark.parametrize("grammar", [None, ""])
def test_an_absent_or_empty_grammar_is_none(grammar: str | None) -> None:
    assert run(Generation([5], "stop", 1, "a"), Generate("g", "m", 9, grammar), [1]).text == "a"


@pytest.mark.parametrize(("max_tokens", "prompt", "said"), [(0, [1], "max_tokens 0"), (1, [], "empty prompt")])
def test_nothing_to_do_is_refused_before_the_hook(max_tokens: int, prompt: list[int], said: str) -> None:
    with pytest.raises(PluginError, match=said) as refused:
        run(pytest.fail, Generate("g", "m", max_tokens), prompt)
    assert refused.value.code == "invalid_request"


def test_half_a_token_id_is_refused() -> None:
    plugin, resident = PlainPlugin(synapse_generate=pytest.fail), Resident(PlainModel(), -1, 0, None, "generate")
    with pytest.raises(PluginError, match="6 bytes after GENERATE"):
        generate(plugin, resident, Generate("g", "m", 1), bytes(6), lambda *_: None)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("text", "returned a str"),
        (None, "returned a NoneType"),
        (Generation([1, 2, 3], "stop", 1), "made 3 tokens where at most 2"),
        (Generation([1], "stop", 2), "counts 2 prompt tokens of 1"),
        (Generation([0.5], "stop", 1), "float"),  # type: ignore[list-item]
        (Generation([1], "stop", 1, "\ud83d"), "surrogates"),
        (Generation([1], "stop", 1, None), "encode"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_an_answer_that_is_none_is_the_plugins_mistake(answer: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError), match=said):
        run(answer, Generate("g", "m", 2), [1])
