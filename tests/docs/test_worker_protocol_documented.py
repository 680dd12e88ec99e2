"""The page of the worker protocol against the messages, codes, windows and statuses of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from synapse_host.hookspecs import BatchPolicy
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.lanes.worker_errors import is_strike
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.supervision.worker_fault import FaultReason, WorkerFault, crash_error
from synapse_host.worker import __main__ as worker_entry
from synapse_host.worker import hang_up, main_loop
from synapse_host.worker_protocol.handshake import SMALLEST_MAX_FRAME
from synapse_host.worker_protocol.messages import (
    ACCEPT_DEADLINE_S,
    ERR_CODES,
    HELLO_DEADLINE_S,
    PROTOCOL_VERSION,
    REQUESTS,
    RESPONSES,
    Hello,
    HelloAck,
)

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "worker-protocol.md").read_text("utf-8")
MESSAGES = {"HELLO": Hello, "HELLO_ACK": HelloAck, **REQUESTS, **RESPONSES}


def sections() -> dict[str, str]:
    """Heading of the second or third level -> its text."""
    parts = re.split(r"^#{2,3} (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows_of(section: str) -> list[list[str]]:
    """The cells of every table row that begins with a name or a number."""
    lines = re.findall(r"^\| (`\w+.*|\d+ .*) \|$", section, flags=re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def a_model() -> RegisteredModel:
    empty = dict.fromkeys((item.name for item in fields(RegisteredModel)), "x")
    engine, batch = EngineIdentity("x", "1"), BatchPolicy(1, 1)
    return RegisteredModel(**{**empty, "engine": engine, "batch": batch, "shards": ()})  # type: ignore[arg-type]


def test_every_message_has_a_section_and_no_other_has_one() -> None:
    assert {heading for heading in sections() if heading.isupper()} == set(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_section_lists_the_fields_of_its_message_and_which_are_optional(message: str) -> None:
    table = sections()[message].split("| code |")[0].split("| key |")[0]
    documented = {name: "optional" in row[1] for row in rows_of(table) for name in names(row[0])}
    expected = {item.name: " | None" in str(item.type) for item in fields(MESSAGES[message])}
    assert documented == expected


@pytest.mark.parametrize("message", MESSAGES)
def test_a_section_says_whether_a_raw_frame_follows(message: str) -> None:
    assert ("by one raw frame" in sections()[message]) == MESSAGES[message].RAW


def test_runtime_config_has_the_documented_keys() -> None:
    table = sections()["LOAD"].split("| key |")[1]
    assert [names(row[0])[0] for row in rows_of(table)] == list(a_model().runtime_config(threads=0))


def test_every_err_code_is_in_the_table_with_what_it_becomes() -> None:
    rows = rows_of(sections()["ERR"].split("| code | meaning")[1])
    documented = {code: (names(row[2])[0], "permanent" in row[2]) for row in rows for code in names(row[0])}
    assert set(documented) == set(ERR_CODES)
    for code, (becomes, permanent) in documented.items():
        error = to_synapse_error(WorkerRefusal(code, "text"))
        assert becomes == error.code
        assert permanent == (error.code == "engine_crashed" and error.error_class == "permanent"), code


def test_the_codes_of_a_refused_handshake_are_listed_in_the_order_they_are_judged() -> None:
    section = PAGE.split("The host judges in this order")[1].split("\n## ")[0]
    source = (Path(main_loop.__file__).parents[1] / "worker_protocol" / "faults.py").read_text("utf-8")
    documented = [names(row[0])[0] for row in rows_of(section)]
    assert set(documented) == set(re.findall(r"``(\w+_(?:mismatch|hello))``", source))
    assert documented[0] == "version_mismatch"
    assert documented[-2:] == ["manifest_mismatch", "kernel_revision_mismatch"]


def test_the_ends_of_a_worker_and_their_strikes() -> None:
    rows = rows_of(sections()["The end of a worker"].split("Exit statuses")[0])
    documented = {names(row[0])[0]: row[2] == "yes" for row in rows}
    ends = {
        reason: is_strike(crash_error(WorkerFault(reason, "text"), worker_id="w", returncode=1, output_tail=""))
        for reason in get_args(FaultReason)
    }
    assert documented == ends


def test_the_exit_statuses_of_a_worker() -> None:
    rows = rows_of(sections()["The end of a worker"].split("Exit statuses")[1])
    modules = (worker_entry, main_loop, hang_up)
    statuses = {value for module in modules for name, value in vars(module).items() if name.startswith("EXIT_")}
    assert {int(row[0]) for row in rows} == statuses


def test_the_silence_windows() -> None:
    windows, section = SilenceWindows(), sections()["Silence windows"]
    for operation, engine in (("load", "x"), ("embed", "x"), ("embed", "owned-cuda")):
        assert re.search(rf"\| {windows.window(operation, engine):g} \|$", section, flags=re.MULTILINE)
    assert f"EMBED_BATCH and every other inference, PING | {windows.window('embed', 'x'):g} |" in section
    assert windows.window("ping", "x") == windows.window("embed", "x")
    assert f"LOAD, UNLOAD, admitting and evicting shapes | {windows.window('unload', 'x'):g} |" in section


def test_the_numbers_of_the_handshake() -> None:
    assert f"exactly {PROTOCOL_VERSION} |" in sections()["HELLO"]
    assert f"at least {SMALLEST_MAX_FRAME} |" in sections()["HELLO"]
    assert f"waits {ACCEPT_DEADLINE_S:g} seconds for the connection and {HELLO_DEADLINE_S:g} more" in PAGE
