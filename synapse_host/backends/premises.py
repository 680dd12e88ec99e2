"""The state of what a plugin's evidence rests on beside its package and the machine's boot: variables and files.

Which device a driver shows depends on the environment its loader reads and on the drivers that are installed. The
plugin knows which those are and names them; the host looks whether they are as they were, and asks again if not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from synapse_host.hookspecs import Premises

#: What ends a name of the environment that stands for all that begin so.
_ANY = "*"


def premises_stamp(premises: Premises, environ: Mapping[str, str]) -> str:
    """A digest that changes when a named variable, or a named file or one in a named folder, changes, comes or goes.

    A file is known by its time and size, its links followed; nothing is opened.
    """
    facts = [*_variables(premises, environ), *(fact for name in premises.files for fact in _files(Path(name)))]
    return sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _variables(premises: Premises, environ: Mapping[str, str]) -> Iterator[str]:
    for name in premises.environment:
        if name.endswith(_ANY):
            named = sorted(found for found in environ if found.startswith(name.removesuffix(_ANY)))
        else:
            named = [name] if name in environ else []
        # The digest is kept in a file, the value itself never.
        yield from (f"{found}={environ[found]}" for found in named)


def _files(path: Path) -> Iterator[str]:
    try:
        names = sorted(os.listdir(path))  # noqa: PTH208 - names alone, a stat follows
    except OSError:
        yield _entry(path)
        return
    yield f"{path} folder"
    yield from (_entry(path / name) for name in names)


def _entry(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return f"{path} gone"
    return f"{path} {status.st_mtime_ns} {status.st_size}"
