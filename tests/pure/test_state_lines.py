"""Whoever waits for a job hears what is new at once, and how far a step is now and then."""

from __future__ import annotations

from typing import Any

from synapse_host.cli.state_lines import QUIET_S, StateLines


def test_a_step_is_told_at_once_and_its_progress_every_few_seconds() -> None:
    lines: list[str] = []
    now = [100.0]
    heard = StateLines(lines.append, lambda: now[0])

    def after(seconds: float, **step: Any) -> list[str]:
        now[0] += seconds
        lines.clear()
        heard({"state": "running", **({"step": {"model_id": "m", **step}} if step else {})})
        return list(lines)

    assert after(0) == ["running"]
    assert after(0, step="lane") == ["running: lane"]
    assert after(QUIET_S - 0.1, step="lane", done=3, of=90) == []
    assert after(0.1, step="lane", done=4, of=90) == ["running: lane, 4 of 90"]
    assert after(1, step="lane", done=8, of=90) == []
    assert after(1, step="speed") == ["running: speed"]
    assert after(0, step="speed", model_id="another") == ["running: speed"]
    now[0] += 1
    heard({"state": "done"})
    assert lines[-1] == "done"
