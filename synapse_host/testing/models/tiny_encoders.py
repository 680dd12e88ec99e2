"""Tiny XLM-RoBERTa checkpoints made from a seed, with a Unigram tokenizer, and those whose outputs are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from synapse_host.testing.models.tiny_models import Float32, TinyBert

#: The special tokens of every XLM-RoBERTa vocabulary, in the order of their ids.
_SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
#: Pieces of the tiny vocabulary with their log probabilities; the mark stands for a space before.
_PIECES = (("\u2581", -2.0), *((mark + letter, -3.0) for letter in "etaoinshrdlu" for mark in ("", "\u2581")))


@dataclass(frozen=True, slots=True)
class TinyXlmRoberta:
    """A tiny encoder whose texts begin at row ``pad + 1`` of the position table and that has one token type.

    ``base.positions`` are the tokens a text may have; the table has ``pad + 1`` rows more.
    """

    base: TinyBert
    pad: int = 1

    @property
    def seed(self) -> int:
        """The seed of its weights."""
        return self.base.seed

    @property
    def vocab(self) -> int:
        """Entries of its vocabulary."""
        return self.base.vocab

    @property
    def positions(self) -> int:
        """Tokens a text may have."""
        return self.base.positions

    def config(self) -> dict[str, Any]:
        """Its config.json."""
        return self._table().config() | {
            "architectures": ["XLMRobertaModel"],
            "bos_token_id": 0,
            "eos_token_id": 2,
            "model_type": "xlm-roberta",
            "pad_token_id": self.pad,
            "type_vocab_size": 1,
        }

    def tensors(self) -> dict[str, Float32]:
        """Its weights by the names of published checkpoints."""
        tensors = self._table().tensors()
        types = "embeddings.token_type_embeddings.weight"
        return tensors | {types: tensors[types][:1]}

    def _table(self) -> TinyBert:
        return replace(self.base, positions=self.base.positions + self.pad + 1)


#: Sizes as in ``TINY_BERTS``; one has another padding id, one the tanh form of GELU.
TINY_XLM_ROBERTAS: Mapping[str, TinyXlmRoberta] = MappingProxyType(
    {
        "two_layers": TinyXlmRoberta(TinyBert(31, 42, 2, 3, 59, 259, 130, layer_norm_eps=1e-5)),
        "three_layers": TinyXlmRoberta(TinyBert(32, 35, 3, 5, 71, 511, 700, layer_norm_eps=1e-5)),
        "pad_four": TinyXlmRoberta(TinyBert(33, 26, 2, 13, 45, 101, 300, "gelu_new", layer_norm_eps=1e-3), pad=4),
    }
)


def unigram_tokenizer(vocab: int) -> dict[str, Any]:
    """A Unigram tokenizer.json of exactly ``vocab`` tokens, built as XLM-RoBERTa's are: ``<s> text </s>``."""
    spare = [(f"<unused{i}>", -20.0) for i in range(vocab - len(_SPECIAL_TOKENS) - len(_PIECES))]
    pieces = [*((token, 0.0) for token in _SPECIAL_TOKENS), *_PIECES, *spare]
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B"))
    begin, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("<s>", "</s>"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(_SPECIAL_TOKENS)],
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, first, end],
            "pair": [begin, first, end, end, second, end],
            "special_tokens": {
                token: {"id": token, "ids": [_SPECIAL_TOKENS.index(token)], "tokens": [token]}
                for token in ("<s>", "</s>")
            },
        },
        "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 3, "vocab": [list(piece) for piece in pieces], "byte_fallback": False},
    }
