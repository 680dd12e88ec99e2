"""Opening a tokenizer.json with the library: its identity, its faults as refusals, and what texts it may be given.

The Rust library is imported when the first tokenizer is opened, not when the host starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from synapse_host.errors import InvalidRequest
from synapse_host.identity.canonical_json import MAX_INTEGER, canonical_json
from synapse_host.identity.digests import sha256_hex

_FILE = "tokenizer.json"


def open_tokenizer(data: bytes, *, vocab_size: int, rowless_added: bool = False) -> tuple[Any, str]:
    """The library's tokenizer without padding and truncation, and the identity of the file.

    ``rowless_added`` allows added tokens past ``vocab_size``, and leaves them out: a text that spells one is ordinary
    text then. Published files have such tokens for what is no text: Gemma 3 has one for images, which is no row of
    its GGUF files.

    Raises:
        InvalidRequest: the file does not parse or has ids past ``vocab_size``; details ``file``.

    """
    digest = sanitized_digest(data)
    tokenizer = _opened(data)
    if rowless_added and max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0) >= vocab_size:
        tokenizer = _opened(_without_rowless(data, vocab_size))
    _check_vocabulary(tokenizer, vocab_size)
    return tokenizer, digest


def _opened(data: bytes) -> Any:
    from tokenizers import Tokenizer

    with library_faults("is no tokenizer the library can load"):
        tokenizer = Tokenizer.from_buffer(data)
        tokenizer.no_padding()
        tokenizer.no_truncation()
    return tokenizer


def _without_rowless(data: bytes, vocab_size: int) -> bytes:
    """The file, which the library could load, without the added tokens past ``vocab_size``."""
    document = json.loads(data)
    added = document.get("added_tokens") or ()
    return json.dumps({**document, "added_tokens": [token for token in added if token["id"] < vocab_size]}).encode()


def sanitized_digest(data: bytes) -> str:
    """The identity of a tokenizer.json (reading 6); raises ``InvalidRequest`` for one that is no JSON."""
    return sha256_hex(_sanitized(data))


def refuse_file(fault: str, **details: Any) -> NoReturn:
    """Raise ``InvalidRequest`` about the file; details ``file`` and those given."""
    raise InvalidRequest(
        f"{_FILE} {fault}; use the file published with the model", details={"file": _FILE, **details}
    ) from None


@contextmanager
def library_faults(fault: str) -> Iterator[None]:
    """Turn every failure of the library into a refusal; a Rust panic is not even an ``Exception`` in Python."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        refuse_file(f"{fault}: {_short(str(error))}")


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."


def _sanitized(data: bytes) -> bytes:
    try:
        # Decoded here because json would also accept UTF-16 and UTF-32 bytes.
        document = json.loads(data.decode("utf-8"), parse_int=_integer, parse_constant=_no_constant)
        if not isinstance(document, dict):
            raise ValueError(f"the document is a {type(document).__name__}, not an object")
        return canonical_json({**document, "padding": None, "truncation": None}, allow_floats=True)
    except (ValueError, RecursionError) as error:
        refuse_file(f"of {len(data)} bytes is not JSON: {_short(str(error))}")


def _integer(digits: str) -> int | float:
    value = int(digits)
    return value if abs(value) <= MAX_INTEGER else float(value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def received_bytes(index: int, text: str) -> bytes:
    """The UTF-8 bytes of text number ``index``; raises ``InvalidRequest`` for half of a surrogate pair."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"text {index} holds {error.object[error.start]!a}, half of a surrogate pair, at character {error.start}; "
            "remove it or complete the pair",
            details={"item_index": index},
        ) from None


def _check_vocabulary(tokenizer: Any, vocab_size: int) -> None:
    ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    if not ids:
        refuse_file("has an empty vocabulary")
    token, highest = max(ids.items(), key=lambda item: item[1])
    if highest >= vocab_size:
        refuse_file(
            f"gives token {_short(token)!r} the id {highest}, but the model's vocabulary has {vocab_size} entries "
            f"(ids 0 to {vocab_size - 1})",
            token_id=highest,
            vocab_size=vocab_size,
        )
