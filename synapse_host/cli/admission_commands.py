"""``synapse-opctl admission``, ``lanes`` and ``aliases``: what waits, what is paused, what is equivalent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synapse_host.cli import admission_rendering
from synapse_host.cli.exit_codes import Exit
from synapse_host.cli.host_connection import connected
from synapse_host.cli.output import fail, print_json, warn

if TYPE_CHECKING:
    from synapse_host.client.blocking_client import Client

admission = typer.Typer(name="admission", help="Look at what is admitted.", no_args_is_help=True)
lanes = typer.Typer(name="lanes", help="Pause the models of the Neural Engine.", no_args_is_help=True)
aliases = typer.Typer(name="aliases", help="Say which identities are equivalent.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text for people.")]
Socket = Annotated[
    Path | None, typer.Option("--socket", help="Socket of the host; default: the one of this user's settings.")
]
Fingerprint = Annotated[str, typer.Argument(help="A fingerprint, as of synapse-host list --json.")]
Evidence = Annotated[str | None, typer.Option("--evidence", help="Why: one JSON object.")]

MINUTE_MS = 60_000
#: The longest pause there is (wire contract, lanes.pause).
MOST_MINUTES = 120


@admission.command()
def status(socket: Socket = None, as_json: Json = False) -> None:
    """Show what waits, what was refused, and how each loaded model keeps up."""
    answer = _called(socket, "admission.status")
    if as_json:
        print_json(answer)
    else:
        admission_rendering.show_admission(answer)


@lanes.command()
def pause(
    minutes: Annotated[float, typer.Option("--minutes", help="For how long, at most 120.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; whoever is refused meanwhile reads it.")],
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Let the models of the Neural Engine leave it for a while."""
    if not 0 < minutes <= MOST_MINUTES:
        fail(Exit.USAGE, f"--minutes {minutes} is not above 0 and at most {MOST_MINUTES}; give one that is")
    if not reason.strip():
        fail(Exit.USAGE, "--reason is blank; whoever is refused meanwhile reads it, so say one")
    params = {"scope": "neural_engine", "duration_ms": max(1, round(minutes * MINUTE_MS)), "reason": reason}
    _show_pause(_called(socket, "lanes.pause", params), as_json)


@lanes.command()
def resume(socket: Socket = None, as_json: Json = False) -> None:
    """End a pause now."""
    _show_pause(_called(socket, "lanes.resume"), as_json)


@lanes.command(name="status")
def lanes_status(socket: Socket = None, as_json: Json = False) -> None:
    """Show where a pause stands, and which shapes the Neural Engine holds."""
    answer = _called(socket, "lanes.status")
    if as_json:
        print_json(answer)
    else:
        admission_rendering.show_lanes(answer)


@aliases.command()
def check(
    index: Annotated[str, typer.Argument(help="The fingerprint an index is kept under.")],
    provenance: Annotated[list[str], typer.Argument(help="The fingerprints of the vectors in it.")],
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Check whether an index of several identities holds one vector space; status 1 where it does not."""
    with connected(socket) as client:
        answer = client.call("aliases.check_index", {"index_fingerprint": index, "provenance_set": provenance})
        _warn_of_strangers(client, [index, *provenance])
    if as_json:
        print_json(answer)
    else:
        admission_rendering.show_verdict(answer)
    if answer["verdict"]["status"] != "valid":
        raise typer.Exit(Exit.REFUSED)


@aliases.command()
def declare(
    left: Fingerprint, right: Fingerprint, evidence: Evidence = None, socket: Socket = None, as_json: Json = False
) -> None:
    """Declare two identities to be of one vector space."""
    _change(socket, "alias.declare", left, right, evidence, as_json)


@aliases.command()
def retract(
    left: Fingerprint, right: Fingerprint, evidence: Evidence = None, socket: Socket = None, as_json: Json = False
) -> None:
    """Declare them equivalent no more."""
    _change(socket, "alias.retract", left, right, evidence, as_json)


def _change(socket: Path | None, method: str, left: str, right: str, evidence: str | None, as_json: bool) -> None:
    params = {"left": left, "right": right, "evidence": _object(evidence)}
    with connected(socket) as client:
        _warn_of_strangers(client, [left, right])
        answer = client.call(method, params)
    if as_json:
        print_json(answer)
    else:
        admission_rendering.show_change(answer)


def _warn_of_strangers(client: Client, fingerprints: Sequence[str]) -> None:
    """Say which of ``fingerprints`` mean nothing to this host: as often as not they are mistyped."""
    listed = client.models_list()
    known = {fingerprint for row in listed["models"] for fingerprint in row["fingerprints"]}
    known |= {row[name] for row in listed["alias_rows"] for name in ("fingerprint_a", "fingerprint_b")}
    known |= {row["fingerprint"] for entry in client.models_catalog()["models"] for row in entry["backends"]}
    for stranger in dict.fromkeys(fingerprints):
        if stranger not in known:
            warn(
                f"{stranger!r} is the fingerprint of no model here and stands in no alias; see them with: "
                "synapse-host list --json"
            )


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as fault:
        fail(Exit.USAGE, f"--evidence {text!r} is no JSON: {fault}; give an object such as '{{\"cosine\": 0.9999}}'")
    if not isinstance(value, dict):
        fail(Exit.USAGE, f"--evidence {text!r} is no JSON object; give one such as '{{\"cosine\": 0.9999}}'")
    return value


def _called(socket: Path | None, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    with connected(socket) as client:
        return client.call(method, params)


def _show_pause(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        admission_rendering.show_pause(answer)
