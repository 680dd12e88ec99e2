from __future__ import annotations

import logging

import anyio
import pytest

from synapse_host.supervision import output_log
from synapse_host.supervision.output_log import OutputLog

pytestmark = pytest.mark.anyio


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "synapse_host.worker_output"]


async def test_a_line_is_tagged_and_cannot_move_the_terminal(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    OutputLog(lambda: 0.0).write("w-1", "stderr", [b"loaded\t3\r", b"\x1b[2J\xff\xc2\x85fake \xe2\x80\xa8entry"])
    assert messages(caplog) == ["w-1 stderr: loaded\t3", "w-1 stderr: \ufffd[2J\ufffd\ufffdfake \ufffdentry"]


async def test_what_is_too_much_is_left_out_and_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(output_log, "_SAY_AFTER_S", 0.0)
    log = OutputLog(lambda: 0.0, lines_per_second=2)
    log.write("w-1", "stdout", [b"1", b"2", b"3"])
    log.write("w-2", "stdout", [b"4"])
    assert messages(caplog) == ["w-1 stdout: 1", "w-1 stdout: 2"]
    with anyio.fail_after(30):
        while len(messages(caplog)) < 3:
            await anyio.lowlevel.checkpoint()
    assert messages(caplog)[2:] == ["2 lines of workers' output were left out: too many a second"]
    log.say_left_out()
    assert len(messages(caplog)) == 3
    log.write("w-1", "stdout", [b"5"])
    log.say_left_out()
    assert messages(caplog)[3:] == ["1 lines of workers' output were left out: too many a second"]
