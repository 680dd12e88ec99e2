"""Whether what ``synapse_describe`` and ``synapse_probe_capability`` returned is what the contract asks for; pure.

Dataclasses hold whatever they are given, and a description decides identities, so each field is checked by type and
by word. The same check reads a description back from JSON.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, get_args

from synapse_host.backends.known import ENGINE_OWNERS
from synapse_host.hookspecs import (
    BackendDescription,
    BatchPolicy,
    CapabilityEvidence,
    DeviceClass,
    DType,
    PackedSupport,
    Premises,
    RefusalReason,
    Task,
)

_TEXTS = ("backend", "engine", "engine_version")
_WORD_LISTS = {"tasks": get_args(Task), "dtypes": get_args(DType)}
_NAME_LISTS = ("model_formats", "families", "platforms")
_FLAGS = ("owned", "abort_capable", "batch_invariant")
_OPTIONAL_TEXTS = ("kernel_revision", "manifest_digest")


class DescriptionFault(ValueError):
    """A description or an evidence that breaks the contract; the message names the field, its value and the remedy."""


def check_description(value: object, backend: str) -> BackendDescription:
    """``value`` itself when it is a sound description of ``backend``; raises ``DescriptionFault`` otherwise."""
    if not isinstance(value, BackendDescription):
        raise DescriptionFault(
            f"synapse_describe of backend {backend!r} returned {_shown(value)}; return a BackendDescription"
        )
    for field in _TEXTS:
        _check_text(value, field)
    for field, words in _WORD_LISTS.items():
        _check_words(value, field, words)
    for field in _NAME_LISTS:
        _check_names(value, field)
    for field in _FLAGS:
        _require(isinstance(getattr(value, field), bool), value, field, "True or False")
    _check_rest(value)
    _check_engine(value)
    if value.backend != backend:
        raise DescriptionFault(
            f"the plugin registered as backend {backend!r} describes itself as {value.backend!r}; "
            "make the entry point's name and the description agree"
        )
    return value


def check_evidence(value: object, backend: str) -> CapabilityEvidence:
    """``value`` itself when it is sound evidence; raises ``DescriptionFault`` otherwise."""
    if not isinstance(value, CapabilityEvidence):
        raise DescriptionFault(
            f"synapse_probe_capability of backend {backend!r} returned {_shown(value)}; return a CapabilityEvidence"
        )
    _require(value.status in ("ok", "refused"), value, "status", "'ok' or 'refused'")
    for field in ("required", "observed"):
        _require(_has_text_keys(getattr(value, field)), value, field, "a mapping with text keys")
    _require(_are_premises(value.premises), value, "premises", "Premises of names and of absolute paths")
    if value.status == "ok":
        _require(value.reason is None and value.reason_detail is None, value, "reason", "None when the status is 'ok'")
        return value
    reasons = get_args(RefusalReason)
    _require(value.reason in reasons, value, "reason", f"one of {', '.join(reasons)} in a refusal")
    _require(_is_optional_text(value.reason_detail), value, "reason_detail", "text or None")
    _require(_is_text(value.message), value, "message", "the text that tells a person what to do")
    return value


def _check_engine(value: BackendDescription) -> None:
    """Whose numbers these are: a name that belongs to no other backend, and what an owned engine is held to by."""
    owner = ENGINE_OWNERS.get(value.engine, value.backend)
    if owner != value.backend:
        raise DescriptionFault(
            f"backend {value.backend!r} calls its engine {value.engine!r}, which is the engine of backend {owner!r}; "
            "give yours a name of its own"
        )
    for field in _OPTIONAL_TEXTS if value.owned else ():
        _require(_is_text(getattr(value, field)), value, field, "given by an owned engine, whose workers must prove it")


def _check_text(value: BackendDescription, field: str) -> None:
    _require(_is_text(getattr(value, field)), value, field, "non-empty text")


def _check_words(value: BackendDescription, field: str, words: tuple[str, ...]) -> None:
    given = getattr(value, field)
    sound = _is_sequence(given) and len(given) > 0 and all(word in words for word in given)
    _require(sound and len(set(given)) == len(given), value, field, f"a tuple of different words of {', '.join(words)}")


def _check_names(value: BackendDescription, field: str) -> None:
    given = getattr(value, field)
    _require(_is_sequence(given) and all(map(_is_text, given)), value, field, "a tuple of texts")


def _check_rest(value: BackendDescription) -> None:
    flags = value.build_flags
    sound = _has_text_keys(flags) and all(isinstance(flag, str) for flag in flags.values())
    _require(sound, value, "build_flags", "a mapping of text to text")
    devices = get_args(DeviceClass)
    _require(value.device_class in devices, value, "device_class", f"one of {', '.join(devices)}")
    _require(isinstance(value.extra, str), value, "extra", "text, empty when no extra installs it")
    for field in _OPTIONAL_TEXTS:
        _require(_is_optional_text(getattr(value, field)), value, field, "non-empty text or None")
    _require(_is_batch(value.recommended_batch), value, "recommended_batch", "a BatchPolicy of positive integers")
    _require(_is_packed(value.packed), value, "packed", "a PackedSupport of positive integers, or None")
    _require(type(value.plugin_api) is int, value, "plugin_api", "an integer")


def _is_batch(batch: Any) -> bool:
    if batch is None:
        return True
    if not isinstance(batch, BatchPolicy):
        return False
    return all(map(_is_positive, (batch.rows, batch.token_budget)))


def _is_packed(packed: Any) -> bool:
    if packed is None:
        return True
    if not isinstance(packed, PackedSupport) or not _is_sequence(packed.widths) or not packed.widths:
        return False
    return all(map(_is_positive, (*packed.widths, packed.max_rows)))


def _are_premises(premises: Any) -> bool:
    if not isinstance(premises, Premises):
        return False
    names, files = premises.environment, premises.files
    sound = all(_is_sequence(given) and all(map(_is_text, given)) for given in (names, files))
    return sound and all(map(os.path.isabs, files))


def _is_positive(count: Any) -> bool:
    return type(count) is int and count > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_optional_text(value: Any) -> bool:
    return value is None or _is_text(value)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _has_text_keys(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _require(sound: bool, owner: object, field: str, wanted: str) -> None:
    if not sound:
        raise DescriptionFault(
            f"{type(owner).__name__}.{field} is {_shown(getattr(owner, field))}; it must be {wanted}"
        )


def _shown(value: object) -> str:
    """Type and text of the value as a reader of a message wants them: not pages of it."""
    text = f"a {type(value).__name__}, {value!r}"
    return text if len(text) <= 200 else f"{text[:200]}…"
