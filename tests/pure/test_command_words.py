"""Messages of the host as commands print them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from synapse_host.cli.command_words import COMMANDS, in_commands_words, lost_to_a_command, operation_as_command
from synapse_host.operations.contract_methods import ADDED_METHODS, CONTRACT_METHODS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text("utf-8")


@pytest.mark.parametrize(("method", "command"), COMMANDS.items())
def test_a_command_stands_for_a_method_there_is_and_is_a_command_there_is(method: str, command: str) -> None:
    assert method in CONTRACT_METHODS or method in ADDED_METHODS
    assert re.search(rf"^### {re.escape(command)}( |$)", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Load it with model.load", "Load it with synapse-host load"),
        ("run probe.start for 'm', then retry", "run synapse-host probe for 'm', then retry"),
        ("end it with models.download.cancel.", "end it with synapse-host models cancel."),
        ("call models.download for 'x'", "call synapse-host models download for 'x'"),
        ("cache.pin: params.expected_digest = 'x' is", "synapse-opctl cache pin: --digest = 'x' is"),
        ("no 'model.load' in /a/model.load or model.load.txt", "no 'model.load' in /a/model.load or model.load.txt"),
        ("params.text = 3 is not accepted", "params.text = 3 is not accepted"),
    ],
)  # fmt: skip
def test_methods_are_commands_and_names_of_files_are_left_alone(message: str, shown: str) -> None:
    assert in_commands_words(message) == shown


def test_a_detail_that_names_an_operation_names_the_command() -> None:
    assert operation_as_command("models.download") == "synapse-host models download"
    assert operation_as_command(["models.download"]) == ["models.download"]
    assert operation_as_command("something else") == "something else"


def test_a_lost_connection_tells_who_typed_a_command_what_to_do() -> None:
    for remedy in ("open a new client", "open a new one", "open a new connection"):
        said = lost_to_a_command(f"the host closed the connection (EOFError); {remedy}")
        assert said.startswith("the host closed the connection (EOFError); start the host")
        assert "client" not in said
    assert lost_to_a_command("connection lost, EOFError; start it") == "connection lost, EOFError; start it"
