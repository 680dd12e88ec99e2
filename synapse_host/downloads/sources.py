"""Where a file is fetched from: the mirror first, where one is set, then the endpoint. Pure."""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from synapse_host.values import value_object


@value_object
class Address:
    """One place to ask. ``token`` goes to this address alone, never to where it may redirect."""

    url: str
    token: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """The address as messages may show it: without user, password and query, which may be secrets."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        return urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))


@value_object
class Sources:
    """Endpoint and mirror, as http(s) addresses; the token is the endpoint's."""

    endpoint: str
    mirror: str | None = None
    token: str | None = field(default=None, repr=False)

    def addresses(self, source: str) -> list[Address]:
        """Where to ask for ``source``, an http(s) address or a path below endpoint and mirror, in order."""
        if source.startswith(("http://", "https://")):
            return [Address(source, self.token if _below(source, self.endpoint) else None)]
        path = quote(source.lstrip("/"))
        bases = [(self.mirror, None)] if self.mirror else []
        return [Address(f"{base.rstrip('/')}/{path}", token) for base, token in [*bases, (self.endpoint, self.token)]]


def address_fault(url: str) -> str | None:
    """Why an http(s) address can be asked of nobody, as the end of a message about it; None where it can."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        if host:
            host.encode("idna")
    except ValueError as fault:
        return f"is no address ({fault}); correct it"
    return None if host else "names no server; correct it"


def names_branch(address: str) -> bool:
    """Whether an address, or a path below a hub, is of the branch ``main``, however that is written."""
    parts = [part for part in unquote(urlsplit(address).path).split("/") if part not in ("", ".")]
    return ("resolve", "main") in pairwise(parts)


def _below(address: str, endpoint: str) -> bool:
    ours, theirs = urlsplit(endpoint), urlsplit(address)
    return (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)
