"""GENERATE: a prompt's token ids to the hook, and what it generated to TEXT.

Imported at the first one, because it needs numpy.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from synapse_host.hookspecs import Generation, PluginError, Progress
from synapse_host.worker.loading import Resident
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker.token_rows import token_ids
from synapse_host.worker_protocol.messages import Generate, Text


def generate(plugin: Plugin, resident: Resident, request: Generate, raw: bytes, progress: Progress) -> Text:
    """The answer to ``request``.

    Raises:
        PluginError: ``invalid_request`` for an empty prompt or nothing to generate; ``unsupported_request`` for a
            grammar the model does not obey.

    """
    options = _options(resident, request)
    prompt = token_ids(request, raw)
    if not len(prompt):
        raise PluginError("invalid_request", "GENERATE has an empty prompt; send at least one token id")
    hook = plugin.hook("synapse_generate")
    return _text(request, hook(model=resident.model, prompt=prompt, options=options, progress=progress), len(prompt))


def _options(resident: Resident, request: Generate) -> Mapping[str, Any]:
    if not request.max_tokens:
        raise PluginError("invalid_request", "GENERATE has max_tokens 0; ask for at least one")
    if not request.grammar:
        return {"max_tokens": request.max_tokens}
    if getattr(resident.model, "grammar", False) is not True:
        # A model that knows nothing of grammars would ignore it, and its text would pass for constrained text.
        raise PluginError(
            "unsupported_request", "GENERATE carries a grammar and the model obeys none; send the prompt without it"
        )
    return {"max_tokens": request.max_tokens, "grammar": request.grammar}


def _text(request: Generate, made: Any, prompt_tokens: int) -> Text:
    if not isinstance(made, Generation):
        raise TypeError(f"synapse_generate returned a {type(made).__name__}, expected is a Generation")
    ids = [operator.index(token) for token in made.token_ids]
    if len(ids) > request.max_tokens:
        raise ValueError(f"synapse_generate made {len(ids)} tokens where at most {request.max_tokens} were asked")
    if made.n_prompt != prompt_tokens:
        raise ValueError(f"synapse_generate counts {made.n_prompt} prompt tokens of {prompt_tokens}")
    made.text.encode()  # half a surrogate pair, as from a token cut in two, is text no one else can encode
    return Text(request.req_id, made.text, prompt_tokens, len(ids), made.finish_reason, ids or None)
