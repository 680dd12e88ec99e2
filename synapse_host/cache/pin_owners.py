"""Who pins content, as the cache's documents name it: ``<host>/<what for>``, or the bare host. Pure.

One owner for each purpose, so that giving up one never takes the content of another away. What the pins say is the only
truth about who needs what: no table repeats it.
"""

from __future__ import annotations

from typing import NamedTuple

INSTALL, DOWNLOAD, REUSE, OPERATOR, MODEL = "install", "download", "reuse", "operator", "model"


class PinPurpose(NamedTuple):
    """What one pin of a host is for: one of the kinds above, and which of them."""

    kind: str
    name: str = ""


class PinParts(NamedTuple):
    """A pin taken apart for people: whose it is, one of the kinds above or none, and which of them."""

    host: str
    kind: str
    name: str


def install_owner(host: str, catalog_id: str, manifest_digest: str) -> str:
    """An installed manifest of a catalog entry."""
    return f"{host}/{INSTALL}/{catalog_id}/{manifest_digest}"


def download_owner(host: str, job_id: str) -> str:
    """A job that brought the content into the cache."""
    return f"{host}/{DOWNLOAD}/{job_id}"


def reuse_owner(host: str, job_id: str) -> str:
    """A job that found the content in the cache."""
    return f"{host}/{REUSE}/{job_id}"


def operator_owner(host: str) -> str:
    """A person, by ``cache.pin``."""
    return f"{host}/{OPERATOR}"


def model_owner(host: str, model_id: str) -> str:
    """A model registered by ``model.load``."""
    return f"{host}/{MODEL}/{model_id}"


def belongs_to(owner: str, host: str) -> bool:
    """Whether a pin is one of this host's."""
    return owner == host or owner.startswith(f"{host}/")


def same_purpose(owner: str, host: str) -> str:
    """The pin of another host for what ``owner`` is for."""
    return f"{host}/{owner.partition('/')[2]}"


def parts_of(owner: str) -> PinParts:
    """The parts of any pin; kind and name are empty for the bare host."""
    host, _, rest = owner.partition("/")
    kind, _, name = rest.partition("/")
    return PinParts(host, kind, name)


def purpose_of(owner: str, host: str) -> PinPurpose | None:
    """What a pin of this host is for; None for the pin of another, and for the bare host."""
    if not owner.startswith(f"{host}/"):
        return None
    kind, _, name = owner.removeprefix(f"{host}/").partition("/")
    return PinPurpose(kind, name)
