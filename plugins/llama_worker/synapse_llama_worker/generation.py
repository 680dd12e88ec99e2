"""GENERATE: greedy decoding after a prompt's token ids."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from synapse_host.hookspecs import Generation, PluginError, Progress
from synapse_llama_worker import limits
from synapse_llama_worker.call_arrays import Int32
from synapse_llama_worker.context import Context
from synapse_llama_worker.model import LlamaModel


def generate(model: LlamaModel, prompt: Int32, options: Mapping[str, Any], progress: Progress) -> Generation:
    """The likeliest token again and again, until one that ends the text (left out) or ``max_tokens`` of them.

    Ties go to the lowest id. Progress counts prompt tokens computed, then tokens made.

    Raises:
        PluginError: unsupported_request for a grammar; invalid_request for a prompt that leaves no room or an id
            outside the vocabulary; non_finite_output.

    """
    if options.get("grammar"):
        # llama.cpp's own grammar engine ends the process over a malformed one, and is slow over a large vocabulary.
        raise PluginError("unsupported_request", "this backend obeys no grammar; send the prompt without it")
    most = int(options["max_tokens"])
    _check_prompt(model, prompt, most)
    context = model.context("none")
    context.forget()
    try:
        return _decode(model, context, prompt, most, progress)
    finally:
        context.forget()


def _check_prompt(model: LlamaModel, prompt: Int32, most: int) -> None:
    limits.check_ids(model.row_limits, prompt, "the prompt's")
    positions = model.facts.positions
    if len(prompt) + most > positions:
        raise PluginError(
            "invalid_request",
            f"a prompt of {len(prompt)} tokens and max_tokens {most} need {len(prompt) + most} positions, and this "
            f"model was loaded with {positions}; shorten the prompt or ask for fewer tokens",
        )


def _decode(model: LlamaModel, context: Context, prompt: Int32, most: int, progress: Progress) -> Generation:
    _read_prompt(context, prompt, progress)
    made: list[int] = []
    token = _likeliest(context)
    while not model.library.llama_vocab_is_eog(model.vocabulary_handle, token):
        made.append(token)
        progress(len(prompt) + len(made), "inference")
        if len(made) == most:
            return Generation(made, "length", len(prompt))
        context.step(token, len(prompt) + len(made) - 1)
        token = _likeliest(context)
    return Generation(made, "stop", len(prompt))


def _read_prompt(context: Context, prompt: Int32, progress: Progress) -> None:
    for start in range(0, len(prompt), context.limits.batch):
        chunk = prompt[start : start + context.limits.batch]
        context.compute([chunk], start)
        progress(start + len(chunk), "inference")


def _likeliest(context: Context) -> int:
    logits = context.logits()
    best = int(logits.argmax())
    # argmax answers with the first NaN where there is one.
    if not math.isfinite(logits[best]):
        raise PluginError("non_finite_output", f"the logit of token {best} is {logits[best]}; the weights are suspect")
    return best
