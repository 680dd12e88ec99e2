"""A real host that must be the same after whatever was done to it: the same bits, the same list of models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synapse_host.client.blocking_client import Client
from synapse_host.testing.running_host import RunningHost, load_model

GOOD_MODEL = "good"
UNCERTIFIED_MODEL = "uncertified"
_TEXTS = ("", "one two three", "the tide came in", "0123456789 " * 20)


@dataclass(slots=True)
class SteadyHost:
    """``host`` with one certified and one uncertified model of ``directory``; ``check`` after each attack."""

    host: RunningHost
    client: Client
    directory: Path
    _bits: bytes = b""
    _listing: list[dict[str, Any]] = field(default_factory=list)
    _rows: int = 0

    @property
    def fingerprint(self) -> str:
        """The identity of the certified model."""
        (row,) = [row for row in self._listing if row["model_id"] == GOOD_MODEL]
        return str(row["fingerprints"][0])

    def remember(self) -> None:
        """Take what the host answers now as what it must answer from here on."""
        self._bits = self._embed()
        self._listing, self._rows = self._list()

    def check(self) -> None:
        """The host answers with the same bits, and lists the same models in the same states.

        Its count of computed rows grew by this check alone: what was refused was not computed.
        """
        assert self.host.process.poll() is None, "".join(self.host.output)
        assert self._embed() == self._bits
        listing, rows = self._list()
        assert listing == self._listing
        assert rows == self._rows + len(_TEXTS)
        self._rows = rows

    def _embed(self) -> bytes:
        return self.client.embed_batch(GOOD_MODEL, _TEXTS).vectors.tobytes()

    def _list(self) -> tuple[list[dict[str, Any]], int]:
        listing = self.client.models_list()["models"]
        return listing, sum(row.pop("rows_computed") for row in listing)


@contextmanager
def steady_host(home: Path, directory: Path, **environment: str) -> Iterator[SteadyHost]:
    """Start a host below ``home``, in whose store the model in ``directory`` is certified on the reference.

    Load it as the certified and, with another pooling, as the uncertified model, and remember how the host answers.
    """
    with RunningHost(home, environment) as host, host.client() as client:
        for name, pooling in ((GOOD_MODEL, "mean"), (UNCERTIFIED_MODEL, "cls")):
            load_model(client, directory, engine="reference", model_id=name, pooling=pooling, certify=False)
        steady = SteadyHost(host, client, directory)
        steady.remember()
        yield steady
