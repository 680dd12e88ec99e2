"""``synapse-opctl cache hosts`` and ``forget``: who shares the model cache, and a host that is no more."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from synapse_host.cache.known_hosts import KnownHost, forget_host, known_hosts
from synapse_host.cli.exit_codes import Exit
from synapse_host.cli.local_cache import id_of_home, local_cache
from synapse_host.cli.output import fail, failures_explained, print_json, print_table, print_text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text for people.")]

#: What a state means, for the host whose home is ``{home}``.
_SAID = {
    "running": "runs",
    "stopped": "does not run, its home is there",
    "gone": "its home is gone, or is another host's now",
    "elsewhere": "its home cannot be seen from here",
    "unknown": "never noted here: started last by an older version, or the cache was copied without it",
}


def hosts(as_json: Json = False) -> None:
    """List the hosts that share the cache: what each keeps, and whether it is still there. Needs no running host."""
    with failures_explained():
        cache = local_cache()
        found = known_hosts(cache.layout, id_of_home)
    if as_json:
        print_json({"cache_root": str(cache.layout.root), "hosts": [_as_json(known) for known in found]})
        return
    rows = [
        (known.host, known.state, known.pinned_files, known.pinned_bytes, home_of(known), _seen(known))
        for known in found
    ]
    print_table("Hosts", ("host", "state", "files", "bytes", "home", "last start"), rows)


def forget(
    host: Annotated[str, typer.Argument(help="The id of a host that is no more, as cache hosts shows it.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also where its home is there, or cannot be seen from here.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take back what a lost host pinned. Needs no running host; a host that runs is never forgotten."""
    with failures_explained():
        cache = local_cache()
        known = next((each for each in known_hosts(cache.layout, id_of_home) if each.host == host), None)
        if known is None:
            fail(Exit.USAGE, f"host {host!r:.100} is not known in {cache.layout.root}; see synapse-opctl cache hosts")
        if known.state not in ("gone", "running") and not force:
            fail(
                Exit.REFUSED,
                f"host {host} ({home_of(known)}): {_SAID[known.state]}, and it would lose its models; "
                "repeat it with --force where it will not come back",
            )
        forgotten = forget_host(cache.layout, host)
        if forgotten is None:
            fail(Exit.REFUSED, f"host {host} runs ({home_of(known)}) and needs what it pins; stop it first")
    if as_json:
        done = {"pins": forgotten.pins, "free_files": forgotten.free_files, "free_bytes": forgotten.free_bytes}
        print_json({"cache_root": str(cache.layout.root), "host": host, **done})
    else:
        print_text(
            f"{forgotten.pins} pins of host {host} are taken back; nobody needs {forgotten.free_files} files with "
            f"{forgotten.free_bytes} bytes any more, and synapse-opctl cache gc removes them"
        )


def home_of(known: KnownHost) -> str:
    """Where a host's store lies, with its machine."""
    return f"{known.record.hostname}:{known.record.place.path}" if known.record is not None else "-"


def said_of(known: KnownHost) -> str:
    """What the host keeps and what became of it, as part of a sentence."""
    return (
        f"{known.host} ({home_of(known)}) keeps {known.pinned_files} files, {known.pinned_bytes} bytes: "
        + (_SAID[known.state])
    )


def _seen(known: KnownHost) -> str:
    if known.record is None:
        return "-"
    return f"{datetime.fromtimestamp(known.record.seen_ms / 1000, UTC).astimezone():%Y-%m-%d}"


def _as_json(known: KnownHost) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "host": known.host,
        "state": known.state,
        "pinned_files": known.pinned_files,
        "pinned_bytes": known.pinned_bytes,
    }
    if known.record is not None:
        shown |= {
            "home": known.record.place.path,
            "hostname": known.record.hostname,
            "last_start_ms": known.record.seen_ms,
        }
    return shown
