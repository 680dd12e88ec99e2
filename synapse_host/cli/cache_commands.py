"""``synapse-opctl cache``: what an operator does with the model cache."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.layout import read_digest
from synapse_host.cache.metadata import BlobMetadata
from synapse_host.cache.pin_owners import parts_of
from synapse_host.cli.cache_hosts import forget, hosts
from synapse_host.cli.exit_codes import Exit
from synapse_host.cli.host_connection import connected
from synapse_host.cli.local_cache import local_cache
from synapse_host.cli.output import fail, failures_explained, print_json, print_table, print_text, progress_bar
from synapse_host.errors import ArtifactInvalid, InvalidRequest

app = typer.Typer(name="cache", help="Look after the model cache.", no_args_is_help=True)
app.command()(hosts)
app.command()(forget)

#: Why a collection keeps content, in words.
_WHY_KEPT = {
    "pinned_by_requesting_module": "pinned by this host; see cache pins",
    "pinned_by_foreign_module": "pinned by another host that shares the cache; see cache hosts",
    "shared_reader_or_gc_active": "being read, or another collection runs",
    "missing_metadata": "nobody described it: marked now",
}

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text for people.")]
Socket = Annotated[
    Path | None, typer.Option("--socket", help="Socket of the host; default: the one of this user's settings.")
]


@app.command()
def pin(
    content: Annotated[str, typer.Argument(help="Digest of content that is here, a file, or an http(s) address.")],
    expected: Annotated[str | None, typer.Option("--digest", help="SHA-256 the file or address must have.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the pin of a digest back.")] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Keep content in the cache, bringing it in where it is not here."""
    params: dict[str, Any] = {"pinned": False} if remove else {}
    if re.fullmatch("(sha256:)?[0-9a-f]{64}", content):
        params["digest"] = content
    else:
        params["source_url"] = content if "://" in content else str(Path(content).absolute())
    if expected is not None and not re.fullmatch("(sha256:)?[0-9a-f]{64}", expected):
        fail(Exit.USAGE, f"--digest {expected!r:.100} is no SHA-256; give 64 hex digits in lower case")
    if expected is not None and "digest" in params:
        fail(Exit.USAGE, "--digest is for a file or an address; content that is named by its digest has no other")
    if expected is not None:
        params["expected_digest"] = expected
    with connected(socket) as client:
        answer = client.call("cache.pin", params)
    if as_json:
        print_json(answer)
    else:
        artifact = answer["artifact"]
        print_text(f"{artifact['digest']} {'is no longer pinned by you' if remove else 'is pinned'}")


@app.command()
def pins(as_json: Json = False) -> None:
    """List what is kept, for whom and for what. Needs no running host."""
    with failures_explained():
        cache = local_cache()
        digests = cache.layout.digests()
        documents = [found for digest in digests if (found := cache.find(digest)) is not None]
    if as_json:
        print_json(
            {
                "cache_root": str(cache.layout.root),
                "content": [
                    {"digest": f"sha256:{found.digest}", "size_bytes": found.size, "pins": list(found.pins)}
                    for found in documents
                ],
            }
        )
        return
    rows = [_pin_row(found, owner) for found in documents for owner in found.pins]
    print_table("Pins", ("digest", "bytes", "kept for", "which", "host"), rows)


@app.command()
def gc(
    digest: Annotated[str | None, typer.Option("--digest", help="This content alone.")] = None,
    grace_ms: Annotated[int, typer.Option("--grace-ms", help="How long marked content stays.")] = 60_000,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Mark content nothing needs, and remove what was marked a grace ago."""
    params: dict[str, Any] = {"grace_ms": grace_ms, **({"digest": digest} if digest else {})}
    with connected(socket) as client:
        answer = client.call("cache.gc", params)
    if as_json:
        print_json(answer)
        return
    print_table("Content", ("digest", "outcome", "why"), [_outcome_row(each) for each in answer["outcomes"]])


@app.command()
def verify(
    digests: Annotated[list[str] | None, typer.Argument(help="Digests to hash; without any, all of them.")] = None,
    as_json: Json = False,
) -> None:
    """Hash content and set damaged content aside. Needs no running host."""
    with failures_explained():
        cache = local_cache()
        try:
            wanted = [read_digest(digest) for digest in digests] if digests else cache.layout.digests()
        except InvalidRequest as wrong:
            fail(Exit.USAGE, wrong.message)
        with progress_bar("hashed") as show:
            found = []
            for digest, state in states_of(cache, wanted):
                found.append({"digest": f"sha256:{digest}", "state": state})
                show(len(found), len(wanted))
    if as_json:
        print_json({"cache_root": str(cache.layout.root), "content": found})
    else:
        print_table("Content", ("digest", "state"), [(row["digest"], row["state"]) for row in found])
    if any(row["state"] != "whole" for row in found):
        raise typer.Exit(Exit.REFUSED)


def states_of(cache: BlobCache, digests: list[str]) -> Iterator[tuple[str, str]]:
    """Each digest with what became of hashing it: whole, damaged (and set aside now), missing or unreadable."""
    for digest in digests:
        try:
            found = cache.audit(digest)
        except ArtifactInvalid:
            yield digest, "unreadable"
        else:
            yield digest, "missing" if found is None else "whole" if found.sha256 == digest else "damaged"


def _outcome_row(outcome: Mapping[str, Any]) -> tuple[str, str, str]:
    match outcome["outcome"]:
        case "kept":
            why = _WHY_KEPT.get(outcome["reason"], outcome["reason"])
        case "marked":
            due = datetime.fromtimestamp(outcome["delete_after_ms"] / 1000, UTC).astimezone()
            why = f"nothing needs it; a collection after {due:%Y-%m-%d %H:%M:%S} removes it"
        case _:
            why = f"{outcome['freed_bytes']} bytes freed"
    return outcome["digest"], outcome["outcome"], why


def _pin_row(found: BlobMetadata, owner: str) -> tuple[str, int, str, str, str]:
    pin = parts_of(owner)
    return f"sha256:{found.digest}", found.size, pin.kind or "anything", pin.name or "-", pin.host
