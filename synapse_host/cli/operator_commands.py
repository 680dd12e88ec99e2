"""``synapse-opctl``: what an operator looks at and changes on a running host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from synapse_host.cli import admission_commands, cache_commands, rendering
from synapse_host.cli.exit_codes import Exit
from synapse_host.cli.host_connection import connected
from synapse_host.cli.output import print_json, print_text

app = typer.Typer(
    name="synapse-opctl", help="Operate a running host.", no_args_is_help=True, pretty_exceptions_enable=False
)

app.add_typer(cache_commands.app, name="cache")
app.add_typer(admission_commands.admission, name="admission")
app.add_typer(admission_commands.lanes, name="lanes")
app.add_typer(admission_commands.aliases, name="aliases")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text for people.")]
Socket = Annotated[
    Path | None, typer.Option("--socket", help="Socket of the host; default: the one of this user's settings.")
]
ModelId = Annotated[str, typer.Argument(help="Model id.")]


@app.command()
def status(socket: Socket = None, as_json: Json = False) -> None:
    """Show how the host and the worker of each model are."""
    with connected(socket) as client:
        answer = client.call("admission.status")
    if as_json:
        print_json(answer)
    else:
        rendering.show_status(answer)


@app.command(name="model-status")
def model_status(model_id: ModelId, socket: Socket = None, as_json: Json = False) -> None:
    """Show the state of one model."""
    with connected(socket) as client:
        status = client.model_status(model_id=model_id)
    _show_state(status, as_json)


@app.command()
def unload(model_id: ModelId, socket: Socket = None, as_json: Json = False) -> None:
    """Stop a model's worker; the model stays registered."""
    with connected(socket) as client:
        status = client.model_unload(model_id)
    _show_state(status, as_json)


@app.command(name="probe-report")
def probe_report(socket: Socket = None, as_json: Json = False) -> None:
    """Show every model's certification and measured speed on this machine."""
    with connected(socket) as client:
        report = client.probe_report()
    if as_json:
        print_json(report)
    else:
        rendering.show_report(report)


@app.command()
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Do not hash the content of the model cache.")] = False,
    as_json: Json = False,
) -> None:
    """Look at settings, free space, store, model cache and socket, and say what to do about faults.

    Changes one thing: content of the model cache that is found damaged is set aside (not with --quick). Needs no
    running host.
    """
    from synapse_host.cli.diagnosis import diagnose

    findings = diagnose(hash_content=not quick)
    if as_json:
        print_json({"findings": [finding.to_json() for finding in findings]})
    else:
        rendering.show_findings(findings)
    if any(not finding.ok for finding in findings):
        raise typer.Exit(Exit.REFUSED)


def _show_state(status: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(status)
    else:
        print_text(f"{status['model_id']}: {status['state']}")


def main() -> None:
    """Entry point of the ``synapse-opctl`` script."""
    app()
