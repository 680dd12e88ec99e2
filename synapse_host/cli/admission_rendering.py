"""What the commands about admission, pauses and aliases show. Calls nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from synapse_host.cli.output import print_table, print_text


def show_admission(answer: Mapping[str, Any]) -> None:
    """A row per loaded model; queues, waits, jobs and refusals in lines above."""
    queues, p50, p95 = answer["queues"], answer["execution_wait_p50_ms"], answer["execution_wait_p95_ms"]
    waiting = ", ".join(f"{number} {name}" for name, number in queues.items())
    print_text(
        f"in flight: {answer['inline_in_flight_executions']} computing, {answer['inline_in_flight_bytes']} bytes; "
        f"waiting: {waiting}; start delay p50 {_ms(p50)}, p95 {_ms(p95)}"
    )
    print_text(
        f"jobs: {answer['jobs_open']} open, {answer['jobs_minted']} admitted, {answer['jobs_inherited']} inherited, "
        f"{answer['jobs_completed']} completed, {answer['jobs_failed']} failed"
    )
    for code, refused in answer["refusals"].items():
        print_text(f"refused: {refused['count']} times {code}, last at {_time(refused['last_at_ms'])}")
    print_table(
        f"Loaded models; {answer['certified_lanes']} certified and {answer['catalog_lanes']} known in all",
        ("model", "waiting", "computing", "start delay p50 ms", "meets deadlines"),
        [
            (
                lane["model_id"],
                lane["execution_waiters"],
                lane["inline_in_flight_executions"],
                lane["p50_start_delay_ms"],
                "yes" if lane["meeting_deadlines"] else "no",
            )
            for lane in answer["lanes"]
        ],
    )


def show_lanes(answer: Mapping[str, Any]) -> None:
    """Where a pause stands, and what the worker of the Neural Engine holds where there was one."""
    show_pause(answer)
    held = answer.get("residency")
    if held is None:
        return
    worker = "no worker" if held["worker_pid"] is None else f"worker {held['worker_pid']}"
    print_text(f"{worker}: {held['executables']} of {held['max_executables']} executables taken")
    print_table(
        "Shapes",
        ("model", "tokens", "state", "executables", "in use by"),
        [(row["lane_id"], row["shape"], row["state"], row["executables"], row["leases"]) for row in held["shapes"]],
    )
    for row in held["compilations"]:
        outcome = f"failed with {row['error']}" if "error" in row else "compiled"
        print_text(f"{row['lane_id']}, {row['shape']} tokens: {outcome} in {row['took_ms']} ms")


def show_pause(answer: Mapping[str, Any]) -> None:
    """One line, and a second where draining failed or the pause is over and yet goes on."""
    if answer["phase"] == "running":
        print_text("running: no pause")
        return
    free = "the hardware is free" if answer["hardware_free"] else "the hardware is not free"
    print_text(
        f"{answer['phase']}: {free}; until {_time(answer['paused_until_ms'])}, {answer['reason']}; "
        f"models: {', '.join(answer['lane_ids']) or 'none'}"
    )
    if "comes_back_when" in answer:
        print_text(f"the pause is over; the models come back when {answer['comes_back_when']}")
    fault = answer.get("drain_error")
    if fault is not None:
        print_text(f"{fault['lane_id'] or 'the lock'}, {fault['stage']}: {fault['code']}: {fault['message']}")


def show_verdict(answer: Mapping[str, Any]) -> None:
    """Valid, or what stands against it."""
    verdict = answer["verdict"]
    if verdict["status"] == "valid":
        print_text(f"valid at table epoch {answer['table_epoch']}")
        return
    pair = verdict["retracted_pair"]
    print_text(
        f"{verdict['status']}: {pair['fingerprint_a']} and {pair['fingerprint_b']} are not equivalent "
        f"(table epoch {answer['table_epoch']}); rebuild for {verdict['rebuild_target']}"
    )


def show_change(answer: Mapping[str, Any]) -> None:
    """Whether anything changed."""
    print_text(f"{'changed' if answer['changed'] else 'nothing to change'}, table epoch {answer['table_epoch']}")


def _ms(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1f} ms"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(timespec="seconds")
