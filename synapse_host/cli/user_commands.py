"""``synapse-host``: serve, and what a user does with a host.

Commands parse and delegate; heavy modules are imported by the command that needs them, so that ``--help`` is quick.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from synapse_host.cli.exit_codes import Exit
from synapse_host.cli.output import fail, failures_explained, print_json, print_table, print_text, progress_bar, tell
from synapse_host.client.blocking_client import Client

app = typer.Typer(
    name="synapse-host",
    help="Local embeddings with the numeric identity of the computation on every answer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text for people.")]
Socket = Annotated[
    Path | None, typer.Option("--socket", help="Socket of the host; default: the one of this user's settings.")
]
Model = Annotated[str, typer.Option("--model", "-m", help="Model id or fingerprint.")]


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="Configuration file to use.")] = None,
) -> None:
    """Run the host in the foreground until SIGTERM or Ctrl-C."""
    from synapse_host.cli.serving import serve_foreground
    from synapse_host.errors import SettingsInvalid, StartRefused, StoreFailure
    from synapse_host.identity.machine_profile import MachineProbeFailed
    from synapse_host.settings import load_settings

    try:
        settings = load_settings(config_file=config)
        serve_foreground(
            settings, on_ready=lambda: print(f"listening on {settings.paths.host_socket}", file=sys.stderr, flush=True)
        )
    except (SettingsInvalid, StartRefused, StoreFailure, MachineProbeFailed) as refusal:
        fail(Exit.NOT_STARTED, str(refusal))


@app.command()
def backends(as_json: Json = False) -> None:
    """Show every backend, whether it can run on this machine, and why not. Needs no running host."""
    import anyio

    from synapse_host.backends.capability import probe_all, rows_as_json
    from synapse_host.settings import resolve_paths

    async def probe() -> list[dict[str, Any]]:
        return rows_as_json(await probe_all(cache_dir=resolve_paths().cache_dir, refresh=True))

    rows = anyio.run(probe)
    if as_json:
        print_json({"backends": rows})
        return
    print_table(
        "Backends",
        ("backend", "engine", "runs here", "reason", "what to know"),
        [
            (
                row["backend"],
                row["engine"],
                "yes" if row["runnable"] else "no",
                row["reason_detail"] or row["reason"],
                row["message"],
            )
            for row in rows
        ],
    )


@app.command()
def load(
    path: Annotated[Path, typer.Argument(help="Directory with model.safetensors, tokenizer.json and config.json.")],
    engine: Annotated[str, typer.Option("--engine", "-e", help="Backend id or engine name.")] = "cpu",
    model_id: Annotated[str | None, typer.Option("--id", help="Name for the model.")] = None,
    pooling: Annotated[str, typer.Option(help="mean, cls or last.")] = "mean",
    normalize: Annotated[bool, typer.Option(help="Scale vectors to unit length.")] = True,
    max_tokens: Annotated[int | None, typer.Option(help="Token limit of a text.")] = None,
    dtype: Annotated[str | None, typer.Option(help="f32, bf16 or f16; default: the engine's choice here.")] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Register a model and load it."""
    params: dict[str, Any] = {
        "source": "file",
        "path": str(path.resolve()),
        "engine": engine,
        "pooling": pooling,
        "normalize": normalize,
    }
    optional = {"model_id": model_id, "max_tokens": max_tokens, "dtype": dtype}
    params.update({name: value for name, value in optional.items() if value is not None})
    with failures_explained(), Client.connect(socket) as client:
        job = client.model_load(**params)
        status = client.wait_for_load(job["job_id"], on_state=_tell_state)
    if as_json:
        print_json(status)
        return
    print_text(f"model {status['model_id']} is ready, fingerprint {status['fingerprint']}")
    print_text(f"certify it with: synapse-host probe {status['model_id']}")


@app.command()
def probe(
    models: Annotated[list[str], typer.Argument(help="Models to certify on this machine.")],
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Measure models against the reference implementation and certify those that agree."""
    with failures_explained(), Client.connect(socket) as client:
        job = client.probe_start(models)
        status = client.wait_for_probe(job["job_id"], on_state=_tell_state)
    if as_json:
        print_json(status)
    else:
        print_table(
            "Probe",
            ("model", "certified", "mean cosine", "min cosine", "tokens/s", "reason"),
            [_probe_row(lane) for lane in status["lanes"]],
        )
    if not all(lane["certified"] for lane in status["lanes"]):
        raise typer.Exit(Exit.REFUSED)


@app.command(name="list")
def list_models(socket: Socket = None, as_json: Json = False) -> None:
    """Show the registered models."""
    with failures_explained(), Client.connect(socket) as client:
        answer = client.models_list()
    if as_json:
        print_json(answer)
        return
    print_table(
        "Models",
        ("model", "state", "engine", "dtype", "dims", "max tokens", "certified", "fingerprint"),
        [
            (row["model_id"], row["state"], row["engine"], row["dtype"], row.get("dims"), row["max_tokens"],
             "yes" if row["certified"] else "no", row["fingerprints"][0][:16])
            for row in answer["models"]
        ],
    )  # fmt: skip


@app.command()
def embed(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of standard input.")] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Embed texts and print their vectors."""
    given = texts or [line.rstrip("\n") for line in sys.stdin]
    if not given:
        fail(Exit.USAGE, "no text given; name texts or pipe lines into standard input")
    with failures_explained(), Client.connect(socket) as client, progress_bar("embedding") as show:
        reply = client.embed_many(model, given, on_progress=show)
    if as_json:
        print_json(_reply_as_json(reply))
        return
    print_table(
        f"{reply.dims} dimensions, fingerprint {reply.fingerprint[:16]}",
        ("text", "tokens", "cut", "vector starts"),
        [
            (text[:60], count, "yes" if cut.truncated else "no", " ".join(f"{value:+.4f}" for value in vector[:4]))
            for text, count, cut, vector in zip(
                given, reply.real_token_counts, reply.truncations, reply.vectors, strict=True
            )
        ],
    )


@app.command()
def search(
    question: Annotated[str, typer.Argument(help="What to look for.")],
    paths: Annotated[list[Path], typer.Argument(help="Text files, or directories of them.", exists=True)],
    model: Model,
    top: Annotated[int, typer.Option(min=1, help="How many passages to show.")] = 3,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Find the passages of files that are nearest in meaning to a question."""
    from synapse_host.cli.passages import nearest, read_passages

    passages = read_passages(paths)
    if not passages:
        fail(Exit.USAGE, "the files hold no passage; name text files with paragraphs")
    with failures_explained(), Client.connect(socket) as client, progress_bar("passages") as show:
        reply = client.embed_many(
            model,
            [passage.text for passage in passages],
            on_progress=show,
        )
        asked = client.embed_query(model, question, required_fingerprint=reply.fingerprint)
    matches = nearest(asked.vectors[0], passages, reply.vectors, top)
    if as_json:
        print_json(
            {
                "fingerprint": reply.fingerprint,
                "matches": [
                    {
                        "score": match.score,
                        "file": match.passage.file,
                        "line": match.passage.line,
                        "text": match.passage.text,
                    }
                    for match in matches
                ],
            }
        )
        return
    for match in matches:
        print_text(f"{match.score:.3f} {match.passage.file}:{match.passage.line}", style="bold")
        print_text(match.passage.text, style="dim")


def _tell_state(status: dict[str, Any]) -> None:
    step = status.get("step")
    tell(f"{status['state']}: {step['step']}" if step else status["state"])


def _probe_row(lane: dict[str, Any]) -> tuple[object, ...]:
    texts = ((lane["certification"] or {}).get("evidence") or {}).get("texts") or {}
    speed = lane["performance"] or {}
    return (
        lane["model_id"],
        "yes" if lane["certified"] else "no",
        _rounded(texts.get("mean_cosine"), 7),
        _rounded(texts.get("min_cosine"), 7),
        _rounded(speed.get("throughput_tok_s"), 0),
        lane["blocking_reason"],
    )


def _rounded(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def _reply_as_json(reply: Any) -> dict[str, Any]:
    return {
        "fingerprint": reply.fingerprint,
        "table_epoch": reply.table_epoch,
        "dims": reply.dims,
        "module_generation": reply.module_generation,
        "provenance": dict(reply.provenance),
        "vectors": [
            {
                "id": item,
                "vector": [float(value) for value in vector],
                "tokens": count,
                "truncated": cut.truncated,
                "content_sha256": content,
                "submitted_sha256": submitted,
            }
            for item, vector, count, cut, content, submitted in zip(
                reply.ids, reply.vectors, reply.real_token_counts, reply.truncations,
                reply.content_sha256, reply.submitted_sha256, strict=True,
            )
        ],
    }  # fmt: skip


def main() -> None:
    """Entry point of the ``synapse-host`` script."""
    app()
