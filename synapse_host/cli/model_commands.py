"""``synapse-host models``: what a user does with models, those of the catalog above all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from synapse_host.cli import rendering
from synapse_host.cli.exit_codes import Exit
from synapse_host.cli.host_connection import connected
from synapse_host.cli.output import byte_bar, fail, print_json, print_text, tell
from synapse_host.errors import UnknownModel

app = typer.Typer(name="models", help="See, install and remove models.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text for people.")]
Socket = Annotated[
    Path | None, typer.Option("--socket", help="Socket of the host; default: the one of this user's settings.")
]
CatalogId = Annotated[str, typer.Argument(help="Id of a model of the catalog.")]


@app.command(name="ls")
def list_models(socket: Socket = None, as_json: Json = False) -> None:
    """Show the models that can serve: installed lanes of the catalog, and those an operator loaded."""
    with connected(socket) as client:
        answer = client.models_list()
    if as_json:
        print_json(answer)
    else:
        rendering.show_models(answer)


@app.command()
def catalog(
    query: Annotated[str | None, typer.Argument(help="Text that id, name or description holds.")] = None,
    task: Annotated[str | None, typer.Option(help="embed or rerank.")] = None,
    runnable: Annotated[
        bool | None, typer.Option("--runnable/--not-runnable", help="Whether a backend runs it here.")
    ] = None,
    installed: Annotated[
        bool | None, typer.Option("--installed/--not-installed", help="Whether it is installed.")
    ] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Show the models of the catalog, where they run and what is installed."""
    with connected(socket) as client:
        answer = client.models_catalog(query=query, task=task, runnable_here=runnable, installed=installed)
    if as_json:
        print_json(answer)
    else:
        rendering.show_catalog(answer)


@app.command()
def show(catalog_id: CatalogId, socket: Socket = None, as_json: Json = False) -> None:
    """Show one model of the catalog: where it comes from, and every backend with its identity and reason."""
    with connected(socket) as client:
        found = [row for row in client.models_catalog()["models"] if row["id"] == catalog_id]
        if not found:
            raise UnknownModel(
                f"the catalog has no model {catalog_id!r}; see them with: synapse-host models catalog",
                details={"model_id": catalog_id},
            )
    if as_json:
        print_json(found[0])
    else:
        rendering.show_entry(found[0])


@app.command()
def download(
    catalog_id: CatalogId,
    request_key: Annotated[str | None, typer.Option("--key", help="Key to ask for the same download again.")] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Install a model: fetch what is not here, verify it, and wait until it is installed."""
    with connected(socket) as client, _told_if_lost(catalog_id):
        job = client.models_download(catalog_id, request_key=request_key)
        try:
            with byte_bar(catalog_id) as show:
                status = client.wait_for_download(job["job_id"], on_state=_shown_by(show))
        except KeyboardInterrupt:
            tell(f"the host goes on downloading; stop it with: synapse-host models cancel {job['job_id']}")
            raise
    if status["state"] == "cancelled":
        fail(Exit.REFUSED, f"download {job['job_id']} of {catalog_id} was cancelled")
    if as_json:
        print_json(status)
    else:
        print_text(f"{catalog_id} is installed")


@app.command()
def cancel(
    job_id: Annotated[str, typer.Argument(help="Job id of a download.")], socket: Socket = None, as_json: Json = False
) -> None:
    """End a download for everybody who waits for it; a finished one stays as it is."""
    with connected(socket) as client:
        status = client.models_download_cancel(job_id)
    if as_json:
        print_json(status)
    else:
        print_text(f"download {job_id}: {status['state']}")


@app.command()
def remove(catalog_id: CatalogId, socket: Socket = None, as_json: Json = False) -> None:
    """Remove every install of a model and the content nothing else needs."""
    with connected(socket) as client:
        removed = client.models_remove(catalog_id)
    if as_json:
        print_json(removed)
    elif removed["removed_manifests"]:
        print_text(f"{catalog_id} is removed, {removed['freed_bytes']} bytes freed")
    else:
        print_text(f"{catalog_id} was not installed")


@contextmanager
def _told_if_lost(catalog_id: str) -> Iterator[None]:
    """Says of a host that ended during a download what to type then."""
    from synapse_host.client.faults import ConnectionLost

    try:
        yield
    except ConnectionLost as lost:
        why = str(lost).partition(";")[0]
        raise ConnectionLost(
            f"{catalog_id} is not known to be installed, {why}; start the host if it has ended (synapse-host serve), "
            f"then: synapse-host models download {catalog_id}"
        ) from lost


def _shown_by(show: Callable[[int, int], None]) -> Callable[[dict[str, Any]], None]:
    """Moves a bar as the statuses of a download say; whole once everything is here."""
    total = 0

    def seen(status: dict[str, Any]) -> None:
        nonlocal total
        total = status.get("bytes_total", total)
        if status["state"] in ("downloading", "verifying", "committed"):
            show(status.get("bytes_done", total), total)

    return seen
