"""``synapse-host jobs``: look at durable embed jobs, read their pages, end them, go on with one that waits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synapse_host.cli import job_rendering
from synapse_host.cli.exit_codes import Exit
from synapse_host.cli.host_connection import connected
from synapse_host.cli.output import fail, print_json

if TYPE_CHECKING:
    from synapse_host.client.blocking_client import Client

app = typer.Typer(help="Look at durable embed jobs, and end them.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text for people.")]
Socket = Annotated[
    Path | None, typer.Option("--socket", help="Socket of the host; default: the one of this user's settings.")
]
JobId = Annotated[str, typer.Argument(help="Job id.")]


@app.command(name="ls")
def list_jobs(socket: Socket = None, as_json: Json = False) -> None:
    """Show the newest jobs the host knows, and how many are open."""
    with connected(socket) as client:
        answer = client.call("admission.status")
    if as_json:
        print_json(
            {name: value for name, value in answer.items() if name.startswith("jobs_") or name == "module_generation"}
        )
    else:
        job_rendering.show_jobs(answer)


@app.command()
def show(job_id: JobId, socket: Socket = None, as_json: Json = False) -> None:
    """Show the status of one job."""
    with connected(socket) as client:
        status = client.job_status(job_id)
    _print_status(status, as_json)


@app.command()
def pages(
    job_id: JobId,
    cursor: Annotated[str | None, typer.Option(help="Where to begin: a next_cursor of this job.")] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Read the committed rows of a job, from the beginning or a cursor on, as far as there are any."""
    with connected(socket) as client:
        read = _pages(client, job_id, cursor)
    if as_json:
        print_json(job_rendering.rows_as_json(read))
    else:
        job_rendering.show_rows(read)


@app.command()
def resume(job_id: JobId, socket: Socket = None, as_json: Json = False) -> None:
    """Go on with a job that waits for a new login; any other stays as it is."""
    with connected(socket) as client:
        status = client.job_resume(job_id)
    _print_status(status, as_json)


@app.command()
def cancel(
    job_id: Annotated[str | None, typer.Argument(help="Job id; or give --key.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Request key: end every open job of it and of its parts.")
    ] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """End a job, or all the jobs of a key; what they computed is kept, and the same key goes on with the rest."""
    if (job_id is None) == (key is None):
        fail(Exit.USAGE, "name either a job id (synapse-host jobs ls) or --key with a request key")
    with connected(socket) as client:
        answer = client.job_cancel(job_id, request_key=key)
    if as_json:
        print_json(answer)
    elif key is None:
        job_rendering.show_status(answer)
    else:
        job_rendering.show_cancelled(key, answer["jobs"])


def _pages(client: Client, job_id: str, cursor: str | None) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = []
    while True:
        page = client.job_page(job_id, cursor=cursor)
        read.append(page)
        if not page["vectors"] or "next_cursor" not in page:
            return read
        cursor = page["next_cursor"]


def _print_status(status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(status)
    else:
        job_rendering.show_status(status)
