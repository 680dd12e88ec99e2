"""What commands show of the host's answers: tables and lines for people, documents for programs. Calls nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from synapse_host.cli.output import print_table, print_text

if TYPE_CHECKING:
    from synapse_host.cli.finding import Finding
    from synapse_host.cli.passages import Match
    from synapse_host.client.replies import EmbedReply
    from synapse_host.client.rerank_reply import RerankReply

#: Digits of a fingerprint a terminal shows; a pipe gets all 64.
_SHORT_DIGEST = 16
#: Characters of a text its row shows.
_SHORT_TEXT = 60


def show_backends(rows: Sequence[Mapping[str, Any]]) -> None:
    """A row per backend, the reason of those that cannot run included."""
    print_table(
        "Backends",
        ("backend", "engine", "runs here", "reason", "what to know"),
        [
            (
                row["backend"],
                row["engine"],
                _yes_no(row["runnable"]),
                row["reason_detail"] or row["reason"],
                row["message"] or _computes(row),
            )
            for row in rows
        ],
    )


def _computes(row: Mapping[str, Any]) -> str:
    """What a backend that runs is good for: its model families, or that its numbers are checked against nothing."""
    if row["owned"] is False:
        return "not an owned engine: serves neither embed nor rerank"
    return ", ".join(row["families"])


def show_findings(findings: Sequence[Finding]) -> None:
    """A row per finding, and what to do beside what is not well."""
    print_table(
        "Findings",
        ("subject", "verdict", "seen", "what to do"),
        [(each.subject, "ok" if each.ok else "PROBLEM", each.seen, each.remedy) for each in findings],
    )


def show_models(answer: Mapping[str, Any]) -> None:
    """A row per registered model."""
    print_table(
        "Models",
        ("model", "state", "engine", "dtype", "dims", "max tokens", "certified", "fingerprint"),
        [
            (
                row["model_id"],
                row["state"],
                row["engine"],
                row["dtype"],
                row.get("dims"),
                row["max_tokens"],
                _yes_no(row["certified"]) if "certified" in row else None,
                _digest(row["fingerprints"][0]),
            )
            for row in answer["models"]
        ],
    )


def show_catalog(answer: Mapping[str, Any]) -> None:
    """A row per model of the catalog."""
    print_table(
        f"Catalog, revision {answer['catalog_revision']}",
        ("model", "task", "default", "runs here on", "installed", "download", "what it is"),
        [
            (
                row["id"],
                row["task"],
                _yes_no(row["default_for_task"]),
                ", ".join(backend["backend"] for backend in row["backends"] if backend["runnable"]) or "nothing",
                row["install_state"].replace("_", " "),
                _megabytes(row["download_bytes"]) if _runs(row) else None,
                row["description"],
            )
            for row in answer["models"]
        ],
    )


def show_entry(row: Mapping[str, Any]) -> None:
    """Lines about a model of the catalog, and a row per backend."""
    upstream = row["upstream"]
    print_text(f"{row['id']}: {row['name']}, for {row['task']}. {row['description']}")
    print_text(f"from {upstream['hf_repo']} at {upstream['revision']}")
    size = f"{_megabytes(row['download_bytes'])} to download" if _runs(row) else "and no backend here runs it"
    print_text(f"{row['install_state'].replace('_', ' ')}, {size}")
    print_table(
        "Backends",
        ("lane", "runs here", "reason", "installed", "self-check", "fingerprint"),
        [
            (
                backend["lane_id"],
                _yes_no(backend["runnable"]),
                backend["reason_detail"] or backend["reason"],
                _yes_no(backend["installed"]),
                (backend["self_check"] or {}).get("state"),
                _digest(backend["fingerprint"]),
            )
            for backend in row["backends"]
        ],
    )


def show_probe(status: Mapping[str, Any]) -> None:
    """A row per probed model: how well it agrees with the reference, and how fast it is."""
    columns = ("model", "certified", "mean cosine", "min cosine", "pearson", "operations", "tokens/s", "reason")
    print_table("Probe", columns, [_probe_row(lane) for lane in status["lanes"]])


def show_report(report: Mapping[str, Any]) -> None:
    """A row per model: certification and speed on this machine."""
    print_table(
        f"Machine profile {_digest(report['machine_profile_hash'])}",
        ("model", "status", "tokens/s", "p50 ms", "reason"),
        [
            (
                lane["model_id"],
                lane["certification_status"],
                _rounded(_speed(lane).get("throughput_tok_s"), 0),
                _rounded(_speed(lane).get("single_item_latency_p50_ms"), 2),
                lane["blocking_reason"],
            )
            for lane in report["lanes"]
        ],
    )


def show_status(answer: Mapping[str, Any]) -> None:
    """A row per model with the state of its worker; the host itself in the title, a fault of its store before it."""
    host, health = answer["host"], answer["health"]
    if "store_fault" in health:
        print_text(f"STORE: {health['store_fault']}", style="bold")
    print_table(
        f"synapse-host {host['version']}, generation {answer['module_generation']}, pid {host['pid']}, "
        f"up {_duration(host['uptime_ms'])}, {host['connections']} of {host['max_connections']} connections"
        + (", degraded" if health["degraded"] else ""),
        ("model", "state", "pid", "rss MiB", "device", "dims", "last ping s", "strikes", "quarantined", "rows"),
        [
            (
                lane["model_id"],
                lane["state"],
                lane["worker_pid"],
                lane["rss_mib"],
                lane["device_class"],
                lane.get("dims"),
                _seconds(lane["last_ping_age_ms"]),
                lane["strikes"],
                _yes_no(lane["quarantined"]),
                lane["rows_computed"],
            )
            for lane in health["lanes"]
        ],
    )


def show_vectors(texts: Sequence[str], reply: EmbedReply) -> None:
    """A row per text: its tokens, whether it was cut, and the start of its vector."""
    print_table(
        f"{reply.dims} dimensions, fingerprint {_digest(reply.fingerprint)}",
        ("text", "tokens", "cut", "vector starts"),
        [
            (text[:_SHORT_TEXT], count, _yes_no(cut.truncated), " ".join(f"{value:+.4f}" for value in vector[:4]))
            for text, count, cut, vector in zip(
                texts, reply.real_token_counts, reply.truncations, reply.vectors, strict=True
            )
        ],
    )


def show_scores(names: Sequence[str], documents: Sequence[str], reply: RerankReply) -> None:
    """A row per document, best first."""
    print_table(
        f"{reply.score_kind} scores, fingerprint {_digest(reply.fingerprint)}",
        ("score", "document", "tokens", "cut", "text"),
        [
            (
                f"{reply.scores[place]:.4f}",
                names[place],
                reply.real_token_counts[place],
                _yes_no(reply.truncations[place].truncated),
                documents[place][:_SHORT_TEXT],
            )
            for place in reply.order()
        ],
    )


def show_matches(matches: Sequence[Match]) -> None:
    """Each match as a line ``score file:line`` and its text; one the model read in part says so."""
    for match in matches:
        note = " (longer than the model reads: scored by its start)" if match.truncated else ""
        print_text(f"{match.score:.3f} {match.passage.file}:{match.passage.line}{note}", style="bold")
        print_text(match.passage.text, style="dim")


def vectors_as_json(reply: EmbedReply) -> dict[str, Any]:
    """The reply of an embedding, one object per text in the order given; numbers as short as float32 allows."""
    import orjson

    vectors = orjson.loads(orjson.dumps(reply.vectors, option=orjson.OPT_SERIALIZE_NUMPY))
    columns = (
        reply.ids, vectors, reply.real_token_counts, reply.truncations, reply.content_sha256, reply.submitted_sha256
    )  # fmt: skip
    return {
        "fingerprint": reply.fingerprint,
        "table_epoch": reply.table_epoch,
        "dims": reply.dims,
        "module_generation": reply.module_generation,
        "provenance": dict(reply.provenance),
        "vectors": [
            {
                "id": item,
                "vector": vector,
                "tokens": count,
                "submitted_tokens": cut.submitted_tokens,
                "truncated": cut.truncated,
                "content_sha256": content,
                "submitted_sha256": submitted,
            }
            for item, vector, count, cut, content, submitted in zip(*columns, strict=True)
        ],
    }


def scores_as_json(names: Sequence[str], reply: RerankReply) -> dict[str, Any]:
    """The raw scores, one object per document in the order given."""
    return {
        "fingerprint": reply.fingerprint,
        "table_epoch": reply.table_epoch,
        "module_generation": reply.module_generation,
        "provenance": dict(reply.provenance),
        "score_kind": reply.score_kind,
        "scores": [
            {
                "document": name,
                "score": score,
                "tokens": count,
                "submitted_tokens": cut.submitted_tokens,
                "truncated": cut.truncated,
            }
            for name, score, count, cut in zip(
                names, reply.scores, reply.real_token_counts, reply.truncations, strict=True
            )
        ],
    }


def matches_as_json(fingerprint: str, matches: Sequence[Match]) -> dict[str, Any]:
    """The matches of a search, best first."""
    return {
        "fingerprint": fingerprint,
        "matches": [
            {
                "score": match.score,
                "truncated": match.truncated,
                "file": match.passage.file,
                "line": match.passage.line,
                "text": match.passage.text,
            }
            for match in matches
        ],
    }


def _probe_row(lane: Mapping[str, Any]) -> tuple[object, ...]:
    evidence = (lane["certification"] or {}).get("evidence") or {}
    texts, pairs = evidence.get("texts") or {}, evidence.get("pairs") or {}
    return (
        lane["model_id"],
        _yes_no(lane["certified"]),
        _rounded(texts.get("mean_cosine"), 7),
        _rounded(texts.get("min_cosine"), 7),
        _rounded(pairs.get("pearson"), 7),
        _operations(evidence.get("engine")),
        _rounded(_speed(lane).get("throughput_tok_s"), 0),
        lane["blocking_reason"],
    )


def _operations(engine: Mapping[str, Any] | None) -> str | None:
    """How many operations of its backend were checked, and which took most of its tolerance."""
    if engine is None:
        return None
    if not engine["shares"]:
        return f"{engine['operations']} exact"
    op, share = max(engine["shares"].items(), key=lambda pair: pair[1])
    return f"{engine['operations']}, {op} at {share:.0%}"


def _speed(lane: Mapping[str, Any]) -> Mapping[str, Any]:
    return lane["performance"] or {}


def _rounded(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def _seconds(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else f"{milliseconds / 1000:.1f}"


def _duration(milliseconds: int) -> str:
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _digest(value: str) -> str:
    return value[:_SHORT_DIGEST] if sys.stdout.isatty() else value


def _runs(row: Mapping[str, Any]) -> bool:
    """Whether a backend here runs a model of the catalog; without one there is nothing to download."""
    return any(backend["runnable"] for backend in row["backends"])


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB"
