"""``synapse-host``: serve, and what a user does with a host.

Commands parse and delegate; heavy modules are imported by the command that needs them, so that ``--help`` is quick.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synapse_host.cli import job_commands, model_commands, rendering
from synapse_host.cli.exit_codes import Exit
from synapse_host.cli.host_connection import connected
from synapse_host.cli.output import fail, failures_explained, print_json, print_text, progress_bar, tell, warn
from synapse_host.cli.path_arguments import Passages, Source, VectorFile, named_path
from synapse_host.cli.state_lines import StateLines

if TYPE_CHECKING:
    from synapse_host.client.blocking_client import Client

app = typer.Typer(
    name="synapse-host",
    help="Local embeddings with the numeric identity of the computation on every answer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

app.add_typer(model_commands.app, name="models")
app.add_typer(job_commands.app, name="jobs")

#: How often bulk verbs send a request again that the host could not take yet (a model still loading, a full queue).
RETRIES = 20
#: How long a command waits for one answer: whoever typed it can interrupt it, and would only type it again.
PATIENCE_MS = 600_000

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text for people.")]
Socket = Annotated[
    Path | None, typer.Option("--socket", help="Socket of the host; default: the one of this user's settings.")
]
Model = Annotated[str, typer.Option("--model", "-m", help="Model id or fingerprint.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print_text(f"synapse-host {version('synapse-host')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Local embeddings with the numeric identity of the computation on every answer."""


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; default: synapse.toml of this user's settings.")
    ] = None,
) -> None:
    """Run the host in the foreground until SIGTERM or Ctrl-C."""
    # Nothing imported is garbage: looking for some again and again would take a twentieth of the start.
    gc.disable()
    from synapse_host.cli.serving import serve_foreground
    from synapse_host.errors import StartRefused, StoreFailure
    from synapse_host.identity.machine_profile import MachineProbeFailed
    from synapse_host.settings import forget_secrets, load_settings

    gc.freeze()
    gc.enable()
    try:
        settings = load_settings(config_file=config)
        forget_secrets()
        serve_foreground(
            settings, on_ready=lambda: print(f"listening on {settings.paths.host_socket}", file=sys.stderr, flush=True)
        )
    except (StartRefused, StoreFailure, MachineProbeFailed) as refusal:
        fail(Exit.NOT_STARTED, str(refusal))


@app.command()
def backends(as_json: Json = False) -> None:
    """Show every backend, whether it can run on this machine, and why not. Needs no running host."""
    import anyio

    from synapse_host.backends.capability import probe_all, rows_as_json
    from synapse_host.settings import load_settings

    async def probe() -> list[dict[str, Any]]:
        settings = load_settings()
        rows = await probe_all(cache_dir=settings.paths.cache_dir, refresh=True, settings=settings.of_backends)
        return rows_as_json(rows)

    with failures_explained():
        rows = anyio.run(probe)
    if as_json:
        print_json({"backends": rows})
    else:
        rendering.show_backends(rows)


@app.command()
def load(
    path: Annotated[
        Path,
        typer.Argument(
            help="Directory with the model, tokenizer.json and config.json; or a .gguf file, tokenizer.json beside it.",
            parser=named_path,
        ),
    ],
    engine: Annotated[str, typer.Option("--engine", "-e", help="Backend id or engine name.")] = "cpu",
    model_id: Annotated[str | None, typer.Option("--id", help="Name for the model.")] = None,
    task: Annotated[str, typer.Option(help="embed, rerank or generate.")] = "embed",
    pooling: Annotated[str, typer.Option(help="mean, cls or last.")] = "mean",
    normalize: Annotated[bool, typer.Option(help="Scale vectors to unit length.")] = True,
    max_tokens: Annotated[
        int | None, typer.Option(help="Token limit of a text; of prompt and reply together where the task is generate.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="f32, bf16 or f16; default: the engine's choice here.")] = None,
    query_prompt: Annotated[str, typer.Option(help="What the model wants before a query.")] = "",
    document_prompt: Annotated[str, typer.Option(help="What the model wants before a document.")] = "",
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Register a model and load it."""
    params: dict[str, Any] = {
        "source": "file",
        **_place_of(path),
        "engine": engine,
        "task": task,
        "pooling": pooling,
        "normalize": normalize,
    }
    prompts = {"query": query_prompt, "document": document_prompt} if query_prompt or document_prompt else None
    optional = {"model_id": model_id, "max_tokens": max_tokens, "dtype": dtype, "prompts": prompts}
    params.update({name: value for name, value in optional.items() if value is not None})
    with connected(socket) as client:
        job = client.model_load(**params)
        status = client.wait_for_load(job["job_id"], on_state=StateLines(tell))
        certified = _is_certified(client, status["model_id"])
    if as_json:
        print_json(status)
    else:
        state = "ready" if certified else "loaded, not certified yet"
        print_text(f"model {status['model_id']} is {state}, fingerprint {status['fingerprint']}")
    if not certified:
        tell(f"certify it with: synapse-host probe {status['model_id']}")


def _place_of(path: Path) -> dict[str, Any]:
    """The directory to load from, and the file in it where ``path`` names a GGUF file."""
    if path.suffix != ".gguf" or path.is_dir():
        return {"path": str(path.resolve())}
    # In a hub cache the file is a link to where its tokenizer does not lie.
    return {"path": str(path.parent.resolve()), "files": {"model": path.name}}


@app.command()
def probe(
    models: Annotated[list[str], typer.Argument(help="Models to certify on this machine.")],
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Measure models against the reference implementation and certify those that agree."""
    with connected(socket) as client:
        job = client.probe_start(models)
        status = client.wait_for_probe(job["job_id"], on_state=StateLines(tell))
    if as_json:
        print_json(status)
    else:
        rendering.show_probe(status)
    if not all(lane["certified"] for lane in status["lanes"]):
        raise typer.Exit(Exit.REFUSED)


@app.command(name="list")
def list_models(socket: Socket = None, as_json: Json = False) -> None:
    """Show the registered models."""
    with connected(socket) as client:
        answer = client.models_list()
    if as_json:
        print_json(answer)
    else:
        rendering.show_models(answer)


@app.command()
def embed(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of standard input.")] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Embed texts and print their vectors."""
    given = texts or _lines_of_input()
    if not given:
        fail(Exit.USAGE, "no text given; name texts or pipe lines into standard input")
    with connected(socket) as client, progress_bar("embedding") as show:
        reply = client.embed_many(model, given, on_progress=show, retries=RETRIES)
    if as_json:
        print_json(rendering.vectors_as_json(reply))
    else:
        rendering.show_vectors(given, reply)


@app.command(name="embed-file")
def embed_file(
    source: Source,
    output: VectorFile,
    model: Model,
    text_field: Annotated[str, typer.Option(help="Field or column of the texts.")] = "text",
    id_field: Annotated[
        str | None, typer.Option(help="Field or column of the ids; default: id, and the line where there is none.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Request key of the jobs; default: made of model and texts.")] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Embed a file of any size by durable jobs; run again after an interrupt, it goes on where it stopped.

    The host goes on with the jobs that were handed in when this command is interrupted.
    """
    from synapse_host.cli import embed_file as work
    from synapse_host.cli.file_items import ItemSource
    from synapse_host.cli.passages import UnreadableFile
    from synapse_host.cli.vector_files import UnwritableFile, require_apart, require_form

    if key is not None and not key.strip():
        fail(Exit.USAGE, f"--key is blank ({key!r}); give another or none")
    if key is not None and len(key) > work.MOST_KEY_CHARS:
        fail(Exit.USAGE, f"--key has {len(key)} characters, more than {work.MOST_KEY_CHARS}; give another or none")
    items = ItemSource(source, text_field, id_field)
    try:
        require_form(output)
        require_apart(source, output)
        with (
            work.signals_interrupt(),
            connected(socket) as client,
            progress_bar("embedding") as show,
        ):
            done = work.embed_file(
                client,
                items,
                output,
                model=model,
                request_key=key,
                retries=RETRIES,
                max_chars=client.call("admission.status")["host"]["max_text_chars"],
                show=show,
            )
    except (UnreadableFile, UnwritableFile) as problem:
        fail(Exit.USAGE, str(problem))
    if as_json:
        print_json(done.to_json())
    else:
        print_text(f"{done.rows} vectors of {done.dims} dimensions in {done.output}, fingerprint {done.fingerprint}")
    if done.cut:
        warn(f"texts longer than the model reads: {done.cut}; their vectors are of their beginning alone")


@app.command()
def rerank(
    model: Annotated[str, typer.Argument(help="Model id or fingerprint.")],
    query: Annotated[str, typer.Argument(help="What the documents are scored against.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Documents, one a file; without any, lines of standard input.")
    ] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Score documents against a query and show them, best first."""
    from synapse_host.cli.passages import UnreadableFile, text_of

    try:
        documents = [text_of(file) for file in files] if files else _lines_of_input()
    except UnreadableFile as problem:
        fail(Exit.USAGE, str(problem))
    if not documents:
        fail(Exit.USAGE, "no document given; name files or pipe lines into standard input")
    names = [str(file) for file in files] if files else [str(line) for line in range(1, len(documents) + 1)]
    with connected(socket) as client:
        reply = client.rerank(
            model, query, documents, retries=RETRIES, deadline_ms=PATIENCE_MS, max_queue_ms=PATIENCE_MS
        )
    if as_json:
        print_json(rendering.scores_as_json(names, reply))
    else:
        rendering.show_scores(names, documents, reply)


@app.command()
def generate(
    model: Annotated[str, typer.Argument(help="Model id or fingerprint.")],
    prompt: Annotated[str, typer.Argument(help="What the model continues; - reads it from standard input.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 64,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Continue a prompt, greedily."""
    text = _whole_input() if prompt == "-" else prompt
    with connected(socket) as client:
        reply = client.generate(
            model, text, max_tokens=max_tokens, retries=RETRIES, deadline_ms=PATIENCE_MS, max_queue_ms=PATIENCE_MS
        )
    if as_json:
        print_json(dataclasses.asdict(reply))
        return
    print_text(reply.text)
    if reply.truncation.truncated:
        told = reply.truncation
        tell(f"of the prompt's {told.submitted_tokens} tokens the model read the first {told.effective_tokens}")


@app.command()
def search(
    question: Annotated[str, typer.Argument(help="What to look for.")],
    paths: Passages,
    model: Model,
    top: Annotated[int, typer.Option(min=1, help="How many passages to show.")] = 3,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Find the passages of files that are nearest in meaning to a question."""
    from synapse_host.cli.passages import UnreadableFile, nearest, read_passages

    try:
        passages = read_passages(paths, on_skipped=lambda problem: warn(f"skipped: {problem}"))
    except UnreadableFile as problem:
        fail(Exit.USAGE, str(problem))
    if not passages:
        fail(Exit.USAGE, "the files hold no passage; name text files with paragraphs")
    texts = [passage.text for passage in passages]
    with connected(socket) as client, progress_bar("passages") as show:
        reply = client.embed_many(model, texts, on_progress=show, retries=RETRIES)
        asked = client.embed_query(
            model,
            question,
            required_fingerprint=reply.fingerprint,
            retries=RETRIES,
            deadline_ms=PATIENCE_MS,
            max_queue_ms=PATIENCE_MS,
        )
    truncated = [cut.truncated for cut in reply.truncations]
    matches = nearest(asked.vectors[0], passages, reply.vectors, truncated, top)
    if as_json:
        print_json(rendering.matches_as_json(reply.fingerprint, matches))
    else:
        rendering.show_matches(matches)


def _lines_of_input() -> list[str]:
    if sys.stdin.isatty():
        tell("reading texts, one a line; end with Ctrl-D")
    try:
        return [line.decode("utf-8").rstrip("\n") for line in sys.stdin.buffer]
    except UnicodeDecodeError as problem:
        fail(Exit.USAGE, f"standard input is not UTF-8 text ({problem.reason}); convert it")


def _whole_input() -> str:
    if sys.stdin.isatty():
        tell("reading the prompt; end with Ctrl-D")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as problem:
        fail(Exit.USAGE, f"standard input is not UTF-8 text ({problem.reason}); convert it")


def _is_certified(client: Client, model_id: str) -> bool:
    """Whether a model needs no probe any more; one without certification never does."""
    rows = client.models_list()["models"]
    return any(row["model_id"] == model_id and row.get("certified", True) for row in rows)


def main() -> None:
    """Entry point of the ``synapse-host`` script."""
    app()
