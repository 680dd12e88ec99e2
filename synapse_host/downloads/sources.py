"""Where a file is fetched from: the mirror first, where one is set, then the endpoint. Pure."""

from __future__ import annotations

import re
from dataclasses import field
from itertools import pairwise
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from synapse_host.values import value_object

#: Parsers drop some of them without a word, and another address is asked.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@value_object
class Address:
    """One place to ask. ``token`` goes to this address alone, never to where it may redirect.

    ``setting`` is the one it comes from; empty for an address that the caller named. ``hub``: it is the endpoint's.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    setting: str = ""
    hub: bool = False

    @property
    def remedy(self) -> str:
        """What to do about a server that does not give the file."""
        return f"check {self.setting or 'the address'}"

    @property
    def login_remedy(self) -> str:
        """The same where it may be a login that is missing."""
        return f"{self.remedy}{', or set HF_TOKEN where the model needs one' if self.hub else ''}"

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
        if is_web_address(source):
            hub = _below(source, self.endpoint)
            return [Address(source, self.token if hub else None, hub=hub)]
        path = quote(source.lstrip("/"))
        endpoint = Address(f"{self.endpoint.rstrip('/')}/{path}", self.token, "downloads.endpoint", hub=True)
        if not self.mirror:
            return [endpoint]
        return [Address(f"{self.mirror.rstrip('/')}/{path}", setting="downloads.mirror"), endpoint]


def is_web_address(text: str) -> bool:
    """Whether ``text`` is an http(s) address; schemes have no case (RFC 3986, 3.1)."""
    return text[:8].lower().startswith(("http://", "https://"))


def holds_control(text: str) -> bool:
    """Whether a control character is in it, such as a line break."""
    return _CONTROL.search(text) is not None


def address_fault(url: str) -> str | None:
    """Why an http(s) address can be asked of nobody, as the end of a message about it; None where it can."""
    if holds_control(url):
        return "holds a control character, such as a line break; correct it"
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
