"""What an operator asks to load, as the host passes it on."""

from __future__ import annotations

from synapse_host.hookspecs import DType, Pooling, Task
from synapse_host.tokenization.text_prompts import NO_PROMPTS, TextPrompts
from synapse_host.values import value_object

NamedFile = tuple[str, str | None]


@value_object
class LoadRequest:
    """What an operator asked to load; each file is its name inside ``directory`` and the digest it must have."""

    directory: str
    model: NamedFile
    tokenizer: NamedFile
    config: NamedFile
    engine: str
    model_id: str | None
    task: Task
    pooling: Pooling
    normalize: bool
    max_tokens: int | None
    dtype: DType | None
    quant: str
    prompts: TextPrompts = NO_PROMPTS
    #: The architecture it must be of, where the caller says.
    family: str | None = None
    #: Files beside the first, in their order; only package sets have any.
    extra: tuple[NamedFile, ...] = ()
    #: Of a preload: what it is checked against at load.
    profile: str | None = None
