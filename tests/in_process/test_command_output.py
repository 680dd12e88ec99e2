from __future__ import annotations

import io
import json

import pytest
import typer

from synapse_host.cli.exit_codes import Exit
from synapse_host.cli.output import (
    fail,
    failures_explained,
    print_json,
    print_table,
    print_text,
    progress_bar,
    tell,
    warn,
)
from synapse_host.errors import EngineCrashed, UnknownModel


def explained(refusal: Exception, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(typer.Exit) as ended, failures_explained():
        raise refusal
    assert ended.value.exit_code == Exit.REFUSED
    return capsys.readouterr().err.splitlines()


def test_a_detail_the_message_says_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = UnknownModel("no model 'x'; load it", details={"model_id": "x"})
    assert explained(refusal, capsys) == ["error: unknown_model: no model 'x'; load it"]


def test_a_detail_the_message_leaves_out_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = EngineCrashed("the worker died", details={"output_tail": "Illegal\ninstruction", "exit": -4})
    assert explained(refusal, capsys)[1:] == ['  output_tail: "Illegal\\ninstruction"', "  exit: -4"]


def test_of_a_long_detail_the_end_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = EngineCrashed("the worker died", details={"output_tail": "x" * 5000 + "why"})
    _, line = explained(refusal, capsys)
    assert line.startswith("  output_tail: …x")
    assert line.endswith('why"')
    assert len(line) < 2100


def test_a_detail_without_a_value_has_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = EngineCrashed("the worker died", details={"expected_size": None, "kept": 0})
    assert explained(refusal, capsys)[1:] == ["  kept: 0"]


HOSTILE = "a\x1b[2Jb\0c\u202ed\x9be\u2066f"


def test_no_control_or_direction_character_leaves_a_table(capfd: pytest.CaptureFixture[str]) -> None:
    print_table("title", ("key", "next"), [(HOSTILE, "x\ny\tz")])
    assert capfd.readouterr().out == "key\tnext\na\ufffd[2Jb\ufffdc\ufffdd\ufffde\ufffdf\tx y z\n"


def test_json_is_the_same_value_without_such_characters(capfd: pytest.CaptureFixture[str]) -> None:
    print_json({"key": HOSTILE, "kept": "é"})
    shown = capfd.readouterr().out
    assert json.loads(shown) == {"key": HOSTILE, "kept": "é"}
    assert not set("\x1b\0\u202e\x9b\u2066") & set(shown)
    assert "é" in shown


def test_nothing_of_the_sort_reaches_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    print_text(HOSTILE)
    print_table(HOSTILE, ("key",), [(HOSTILE,)])
    tell(HOSTILE)
    warn(HOSTILE)
    with pytest.raises(typer.Exit):
        fail(Exit.USAGE, HOSTILE)
    shown = "".join(capfd.readouterr())
    assert shown.count("\ufffd[2Jb") == 6
    assert "[2Jb" not in shown.replace("\ufffd[2Jb", "")
    assert not set("\0\u202e\x9b\u2066") & set(shown)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("found", [True, False])
def test_steps_that_took_no_time_now_make_no_rate(monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar("embedding") as show:
        show(0, 100)
        show(40, 100, found=found)
        show(80, 100, found=found)
    assert "80/100" in terminal.getvalue()
    assert ("/s" in terminal.getvalue()) is not found
