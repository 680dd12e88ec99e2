"""The command line on terminals and in pipes, and how it is interrupted, completed and started."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from synapse_host.cli.exit_codes import Exit
from synapse_host.testing.command_runs import environment_of, run_synapse, synapse_command
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.running_host import RunningHost

DEADLINE_S = 60
TINY = TinyBert(seed=5, hidden=32, layers=1, heads=4, intermediate=64, vocab=120, positions=64)


@contextmanager
def terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """A pseudo-terminal: the end a child writes to, and what it wrote once all its ends are closed."""
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    heard: list[bytes] = []

    def listen() -> None:
        try:
            while data := os.read(ours, 65536):
                heard.append(data)
        except OSError:
            return  # Linux says so when the last writer is gone

    listener = threading.Thread(target=listen)
    listener.start()

    def hear() -> str:
        listener.join(DEADLINE_S)
        assert not listener.is_alive()
        return b"".join(heard).decode()

    try:
        yield theirs, hear
    finally:
        os.close(ours)


def test_progress_is_for_terminals_and_never_on_standard_output(host: RunningHost) -> None:
    command = synapse_command("embed", "-m", "minilm", "--json", "a", "b")
    with terminal() as (errors, hear):
        done = subprocess.Popen(
            command, env=environment_of(host.home, {"TERM": "xterm"}), stdout=subprocess.PIPE, stderr=errors
        )
        os.close(errors)
        output, _ = done.communicate(timeout=DEADLINE_S)
        shown = hear()
    assert done.returncode == Exit.OK
    assert len(json.loads(output)["vectors"]) == 2
    assert "embedding" in shown
    assert "2/2" in shown
    assert run_synapse("embed", "-m", "minilm", "--json", "a", "b", home=host.home).stderr == ""


def test_a_terminal_gets_a_table_without_what_could_drive_it(host: RunningHost) -> None:
    command = synapse_command("embed", "-m", "minilm", "[bold]x :smile: \x1b[31mred")
    with terminal() as (output, hear):
        done = subprocess.Popen(
            command, env=environment_of(host.home, {"TERM": "dumb"}), stdout=output, stderr=subprocess.PIPE
        )
        os.close(output)
        _, errors = done.communicate(timeout=DEADLINE_S)
        shown = hear()
    assert (done.returncode, errors) == (Exit.OK, b"")
    assert "[bold]x :smile: \ufffd[31mred" in shown
    assert "\x1b[31m" not in shown


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_meets_no_traceback(host: RunningHost, unbuffered: str) -> None:
    command = synapse_command("embed", "-m", "minilm", "--json", *map(str, range(300)))
    environment = environment_of(host.home, {"PYTHONUNBUFFERED": unbuffered})
    done = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout is not None
    assert done.stderr is not None
    with done.stdout as output, done.stderr as errors:
        assert output.read(10) == b'{"dims": 3'
        output.close()
        assert errors.read() == b""
    assert done.wait(DEADLINE_S) == Exit.OUTPUT_CLOSED


@contextmanager
def silent_host(directory: Path) -> Iterator[tuple[str, socket.socket]]:
    """A socket that nobody answers on yet."""
    path = str(directory / "fake.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen(1)
        listening.settimeout(DEADLINE_S)
        yield path, listening


def test_ctrl_c_ends_a_waiting_command_with_130(tmp_path: Path) -> None:
    with silent_host(tmp_path) as (path, listening):
        done = subprocess.Popen(
            synapse_command("list", "--socket", path), env=environment_of(tmp_path), stderr=subprocess.PIPE, text=True
        )
        connection, _ = listening.accept()
        with connection:
            connection.recv(1)
            done.send_signal(signal.SIGINT)
            _, errors = done.communicate(timeout=DEADLINE_S)
    assert (done.returncode, errors) == (Exit.INTERRUPTED, "")


def test_a_host_that_goes_away_is_status_three(tmp_path: Path) -> None:
    with silent_host(tmp_path) as (path, listening):
        done = subprocess.Popen(
            synapse_command("list", "--socket", path), env=environment_of(tmp_path), stderr=subprocess.PIPE, text=True
        )
        listening.accept()[0].close()
        _, errors = done.communicate(timeout=DEADLINE_S)
    assert done.returncode == Exit.NO_HOST
    assert errors.startswith(f"error: {path} accepted the connection but did not greet")


def test_a_file_name_that_is_no_unicode_is_still_printed(host: RunningHost, tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/odd\xff.md"
    Path(os.fsdecode(file)).write_text("A paragraph that is long enough to be embedded by somebody.")
    done = run_synapse("search", "q", str(tmp_path), "-m", "minilm", "--json", home=host.home)
    assert done.returncode == Exit.OK, done.stderr
    assert json.loads(done.stdout)["matches"][0]["file"].endswith("odd\udcff.md")


@pytest.mark.parametrize("program", ["synapse-host", "synapse-opctl"])
def test_a_shell_can_complete_the_commands(program: str, tmp_path: Path) -> None:
    tool = str(Path(sys.executable).with_name(program))
    script = f"{tool} --show-completion; true"
    shown = subprocess.run(
        ["/bin/bash", "-c", script], env=environment_of(tmp_path), capture_output=True, text=True, timeout=DEADLINE_S
    )
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    assert variable in shown.stdout
    asked = {variable: "complete_bash", "COMP_WORDS": f"{program} probe", "COMP_CWORD": "1"}
    done = subprocess.run(
        [tool], env=environment_of(tmp_path, asked), capture_output=True, text=True, timeout=DEADLINE_S
    )
    expected = {"synapse-host": ["probe"], "synapse-opctl": ["probe-report"]}
    assert done.stdout.split() == expected[program]


_SERVE_AND_LIST_MODULES = """
import json, sys
from synapse_host.cli.user_commands import main
sys.argv = ["synapse-host", "serve"]
try:
    main()
except SystemExit as end:
    print(json.dumps([end.code, sorted(sys.modules)]))
"""


def test_serving_never_imports_what_only_other_verbs_need(tmp_path: Path) -> None:
    served = subprocess.Popen(
        [sys.executable, "-P", "-c", _SERVE_AND_LIST_MODULES],
        env=environment_of(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert served.stderr is not None
    while not (line := served.stderr.readline()).startswith("listening on "):
        assert line, "the host ended before it listened"
    served.send_signal(signal.SIGINT)
    output, _ = served.communicate(timeout=DEADLINE_S)
    status, modules = json.loads(output)
    assert (served.returncode, status) == (0, 0)
    assert {"rich", "numpy", "tokenizers", "openvino"} & set(modules) == set()


def test_serve_says_nothing_on_standard_output(tmp_path: Path) -> None:
    served = subprocess.Popen(
        synapse_command("serve"),
        env=environment_of(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert served.stderr is not None
    while not served.stderr.readline().startswith("listening on "):
        assert served.poll() is None
    served.terminate()
    output, _ = served.communicate(timeout=DEADLINE_S)
    assert (served.returncode, output) == (Exit.OK, "")


def test_loading_tells_a_person_what_comes_next(tmp_path: Path) -> None:
    write_model(tmp_path, TINY, "f32")
    with RunningHost(tmp_path / "home") as running, terminal() as (errors, hear):
        command = synapse_command("load", str(tmp_path), "--id", "tiny")
        done = subprocess.Popen(command, env=environment_of(running.home), stdout=subprocess.PIPE, stderr=errors)
        os.close(errors)
        output, _ = done.communicate(timeout=DEADLINE_S)
        shown = hear().splitlines()
    assert output.startswith(b"model tiny is loaded, not certified yet")
    assert shown[-2:] == ["ready", "certify it with: synapse-host probe tiny"]
