"""Opens a model's files and proves that the open descriptors hold the bytes the host verified."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from synapse_host.hookspecs import PluginError

#: A config.json is a few kilobytes; anything past this many bytes is not one.
_LARGEST_CONFIG = 16 * 1024 * 1024
#: By code, what to do about a file that is another or gone. Of a model's own files the host says it: it knows how they
#: were registered.
_REMEDIES = {"config_invalid": "; restore the file, or load the model again to register it as it is now"}


def open_verified(path: str, digest: str) -> int:
    """A read-only descriptor of ``path``, at offset 0, whose bytes hash to ``digest`` (lower-case sha256 hex).

    The caller closes it. Raises ``PluginError`` with ``artifact_invalid``.
    """
    descriptor = _open(path, "artifact_invalid")
    try:
        _check_digest(descriptor, path, digest, "artifact_invalid")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def open_shards(text: str) -> Iterator[dict[str, int]]:
    """Descriptors by file name of the weight files ``text`` lists, for the length of the block.

    ``text`` is a JSON object of file name to [path, sha256].

    Raises:
        PluginError: config_invalid when it is none, else as ``open_verified``.

    """
    with ExitStack() as stack:
        opened: dict[str, int] = {}
        for name, path, digest in _listed(text):
            opened[name] = open_verified(path, digest)
            stack.callback(os.close, opened[name])
        yield opened


def _listed(text: str) -> list[tuple[str, str, str]]:
    try:
        listed = json.loads(text)
        return [(name, _string(path), _string(digest)) for name, (path, digest) in listed.items()]
    except (ValueError, TypeError, AttributeError, RecursionError) as fault:
        raise PluginError(
            "config_invalid", f"shards {text[:80]!r} is no JSON object of file name to [path, sha256]: {fault}"
        ) from fault


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no string")
    return value


def read_verified_config(path: str, digest: str) -> dict[str, Any]:
    """The JSON object in ``path``, whose bytes hash to ``digest``; raises ``PluginError`` with ``config_invalid``."""
    descriptor = _open(path, "config_invalid")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(_LARGEST_CONFIG + 1)
    if len(data) > _LARGEST_CONFIG:
        raise PluginError("config_invalid", f"config {path!r} is larger than {_LARGEST_CONFIG} bytes")
    _compare(hashlib.sha256(data).hexdigest(), path, digest, "config_invalid")
    return _parse_config(data, path)


def _parse_config(data: bytes, path: str) -> dict[str, Any]:
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise PluginError("config_invalid", f"config {path!r} is not JSON: {problem}") from problem
    if not isinstance(config, dict):
        raise PluginError("config_invalid", f"config {path!r} holds a {type(config).__name__}, not an object")
    return config


def _open(path: str, code: str) -> int:
    try:
        # Without O_NONBLOCK a named pipe in the model's place would hang the worker.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as problem:
        raise PluginError(code, f"cannot open {path!r}: {problem}{_REMEDIES.get(code, '')}") from problem
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PluginError(code, f"{path!r} is not a regular file")
    return descriptor


def _check_digest(descriptor: int, path: str, digest: str, code: str) -> None:
    with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    os.lseek(descriptor, 0, os.SEEK_SET)
    _compare(actual, path, digest, code)


def _compare(actual: str, path: str, digest: str, code: str) -> None:
    if actual != digest:
        raise PluginError(code, f"{path!r} has sha256 {actual}, expected is {digest!r}{_REMEDIES.get(code, '')}")
