"""What `jobs ls` shows can be copied into the next command, on a terminal of any width."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest

from synapse_host.cli.job_rendering import show_cancelled, show_jobs
from synapse_host.cli.shell_words import shell_word

JOB_ID, MODEL, KEY = "embed-3-29118", "gte-reranker-modernbert-base", f"embed-file-{'9a79963ef65a064c' * 2}/0001"


def job(**other: Any) -> dict[str, Any]:
    plain = {"job_id": JOB_ID, "state": "failed_permanent", "model_id": MODEL, "items_done": 4096, "item_count": 4096}
    return {**plain, "pages_available": 12, "request_key": KEY, "error": {"code": "engine_crashed"}, **other}


@pytest.mark.parametrize("columns", [20, 80, 120, 400])
def test_ids_and_keys_are_whole_on_a_terminal(
    columns: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    show_jobs({"jobs_open": 1, "jobs_recent": [job(), job(job_id="embed-3-1", request_key="k" * 256)]})
    out = capfd.readouterr().out
    words = re.split(r"[\s│]+", out)
    for copied in (JOB_ID, MODEL, KEY, "embed-3-1", "k" * 256):
        assert copied in words
    assert ("│" in out) == (columns == 400)


def test_a_narrow_terminal_reads_a_line_per_value(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    show_cancelled("a b", [job()])
    lines = capfd.readouterr().out.splitlines()
    assert [line.rstrip() for line in lines[:4]] == [
        "Jobs of 'a b'",
        "",
        f"job          {JOB_ID}",
        "state        failed_permanent",
    ]
    assert lines[-1].rstrip() == "error        engine_crashed"


ODD_KEYS = [
    "k\n1",
    "  x ",
    "a   b",
    "\x1b[2J",
    "\u200b",
    "it's",
    "it's\n",
    "a\\b\tc",
    "$HOME",
    "é",
    "\u202ecod",
    "a\x011",
    "",
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="asks bash")
def test_a_key_is_shown_as_a_shell_takes_it(capfd: pytest.CaptureFixture[str]) -> None:
    show_jobs({"jobs_recent": [job(request_key=key) for key in ODD_KEYS]})
    shown = [line.split("\t")[6] for line in capfd.readouterr().out.splitlines()[1:]]
    assert all(word.isprintable() for word in shown)
    script = "LC_ALL=C.UTF-8; printf '%s\\0' " + " ".join(shown)
    read = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert read.decode().split("\0")[:-1] == ODD_KEYS


def test_a_plain_key_needs_no_quotes() -> None:
    assert shell_word(KEY) == KEY
