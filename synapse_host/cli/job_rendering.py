"""What the commands about jobs show. Calls nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from synapse_host.cli.output import print_table, print_text
from synapse_host.cli.shell_words import shell_word

_COLUMNS = ("job", "state", "model", "done", "items", "pages", "request key", "error")
#: What other commands are given: one line each, whatever the width.
_WHOLE = ("job", "model", "request key")


def show_jobs(answer: Mapping[str, Any]) -> None:
    """A row per job; the counters in the title."""
    counts = {name: answer.get(f"jobs_{name}", 0) for name in ("open", "minted", "completed", "failed", "inherited")}
    title = ", ".join(f"{count} {name}" for name, count in counts.items())
    print_table(f"Jobs: {title}", _COLUMNS, [_row(job) for job in answer.get("jobs_recent", ())], whole=_WHOLE)


def show_cancelled(key: str, ended: Sequence[Mapping[str, Any]]) -> None:
    """The jobs of a key that were open, each as a row."""
    if ended:
        print_table(f"Jobs of {shell_word(key)}", _COLUMNS, [_row(job) for job in ended], whole=_WHOLE)
    else:
        print_text(f"no job of {shell_word(key)} was open")


def show_status(status: Mapping[str, Any]) -> None:
    """One job as a row."""
    print_table("Job", _COLUMNS, [_row(status)], whole=_WHOLE)
    told = status.get("waiting_for") or status.get("error")
    if told:
        print_text(f"{told['code']}: {told['message']}")


def show_rows(read: Sequence[Mapping[str, Any]]) -> None:
    """A row per item of the pages read, and where to go on."""
    print_table(
        f"{read[-1]['job_id']}, {read[-1]['state']}, fingerprint {read[-1]['fingerprint']}",
        ("item", "tokens", "cut", "vector starts"),
        [
            (item["id"], tokens, "yes" if cut["truncated"] else "no", " ".join(f"{x:+.4f}" for x in item["vector"][:4]))
            for item, tokens, cut in _items(read)
        ],
    )
    if "next_cursor" in read[-1]:
        print_text(f"not at its end: go on later with --cursor {read[-1]['next_cursor']}")


def rows_as_json(read: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The pages read as one document: the last one's status, and all rows."""
    import numpy as np

    document = {name: value for name, value in read[-1].items() if name not in _PER_ROW}
    document["vectors"] = [
        {
            **{name: value for name, value in item.items() if name != "vector"},
            "vector": np.asarray(item["vector"], dtype=np.float32).tolist(),
            "tokens": tokens,
            "submitted_tokens": cut["submitted_tokens"],
            "truncated": cut["truncated"],
        }
        for item, tokens, cut in _items(read)
    ]
    return document


_PER_ROW = ("vectors", "real_token_counts", "truncation_disclosures")


def _items(read: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], int, Mapping[str, Any]]]:
    for page in read:
        yield from zip(*(page[name] for name in _PER_ROW), strict=True)


def _row(job: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        job["job_id"],
        job["state"],
        job["model_id"],
        job["items_done"],
        job["item_count"],
        job["pages_available"],
        shell_word(job["request_key"]),
        _trouble(job),
    )


def _trouble(job: Mapping[str, Any]) -> str | None:
    if "waiting_for" in job:
        waits = job["waiting_for"]
        end = (waits.get("details") or {}).get("ends_as")
        return f"{f'{end}, ' if end else ''}waits for: {waits['code']}"
    return str(job["error"]["code"]) if "error" in job else None
