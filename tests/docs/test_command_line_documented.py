"""The page of the command line against both programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from synapse_host.cli import operator_commands, user_commands
from synapse_host.cli.exit_codes import Exit

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text("utf-8")
PROGRAMS = {
    "synapse-host": typer.main.get_command(user_commands.app),
    "synapse-opctl": typer.main.get_command(operator_commands.app),
}


def commands() -> dict[str, Any]:
    """``program command`` -> the command, for every command of both programs, those of groups too."""
    return {name: command for program, group in PROGRAMS.items() for name, command in within(program, group)}


def within(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    """The commands of a group and of the groups in it."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from within(f"{name} {word}", command)
        else:
            yield f"{name} {word}", command


def sections() -> dict[str, str]:
    """Heading of the second or third level -> its text."""
    parts = re.split(r"^#{2,3} (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def heading_of(name: str) -> str:
    """The heading of a command, which also names its arguments."""
    (heading,) = [heading for heading in sections() if heading == name or heading.startswith(f"{name} ")]
    return heading


def options_of(command: Any) -> set[str]:
    found = {word for param in command.params for word in (*param.opts, *param.secondary_opts) if word[0] == "-"}
    return found - {"--help"}


def documented_options(section: str) -> set[str]:
    rows = re.findall(r"^\| (`-.+?) \|", section, flags=re.MULTILINE)
    return set(re.findall(r"`(--?[a-z-]+)", " ".join(rows))) - {"--help"}


def test_every_command_has_a_section_and_no_other_has_one() -> None:
    headed = {re.sub(r" \[?[A-Z].*", "", heading) for heading in sections() if re.match(r"synapse-\w+ \w", heading)}
    assert headed == set(commands())


@pytest.mark.parametrize("name", commands())
def test_a_section_lists_exactly_the_options_of_its_command(name: str) -> None:
    assert documented_options(sections()[heading_of(name)]) == options_of(commands()[name])


@pytest.mark.parametrize("name", commands())
def test_a_heading_names_the_arguments_in_order(name: str) -> None:
    arguments = [param.name.upper() for param in commands()[name].params if param.opts[0][0] != "-"]
    assert re.findall(r"[A-Z_]+", heading_of(name)) == arguments


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_lists_exactly_its_own_options(program: str) -> None:
    assert documented_options(sections()[program]) == options_of(PROGRAMS[program])


def test_every_exit_status_is_documented_and_no_other() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", sections()["Exit statuses"], flags=re.MULTILINE)
    assert {(int(value), name) for value, name in rows} == {(int(status), status.name) for status in Exit}
