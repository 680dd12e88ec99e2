from __future__ import annotations

import pytest
import typer

from synapse_host.cli.exit_codes import Exit
from synapse_host.cli.output import failures_explained
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
