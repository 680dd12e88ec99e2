"""Operators' commands about admission, pauses and aliases on a real host, and aliases as requests meet them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from synapse_host.cli.exit_codes import Exit
from synapse_host.client.blocking_client import Client
from synapse_host.errors import SubstitutionRejected
from synapse_host.testing.command_runs import run_opctl
from synapse_host.testing.running_host import RunningHost, load_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, tiny_directory: Path, certified: Callable[[Path], Path]
) -> Iterator[RunningHost]:
    """A host with two certified models, ``tiny`` and ``cut``, that differ in their limit alone."""
    home = certified(tmp_path_factory.mktemp("home"))
    with RunningHost(home, {"SYNAPSE_ALIASES_ADMIN_ENABLED": "true"}) as host, host.client() as client:
        load_model(client, tiny_directory, engine="reference", model_id="tiny", certify=False)
        load_model(client, tiny_directory, engine="reference", model_id="cut", max_tokens=32)
        yield host


@pytest.fixture
def client(running: RunningHost) -> Iterator[Client]:
    with running.client() as connected:
        yield connected


def told(running: RunningHost, *words: str, status: int = Exit.OK) -> Any:
    done = run_opctl(*words, "--json", home=running.home)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def said(running: RunningHost, *words: str, status: int = Exit.OK) -> str:
    done = run_opctl(*words, home=running.home)
    assert done.returncode == status, done.stderr
    return done.stdout


def test_aliases_from_declaring_to_retracting(running: RunningHost, client: Client) -> None:
    plain, cut = (client.embed_query(model, "text").fingerprint for model in ("tiny", "cut"))
    assert plain != cut
    for refused in ({"required_fingerprint": plain}, {"required_fingerprint": plain, "allow_equivalent": True}):
        with pytest.raises(SubstitutionRejected):
            client.embed_query("cut", "text", **refused)
    assert told(running, "aliases", "check", plain, cut, status=Exit.REFUSED)["verdict"]["rebuild_target"] == plain

    assert told(running, "aliases", "declare", plain, cut, "--evidence", '{"cosine": 1}')["changed"]
    assert said(running, "aliases", "declare", cut, plain) == "nothing to change, table epoch 1\n"
    assert said(running, "aliases", "check", plain, cut) == "valid at table epoch 1\n"
    answer = client.embed_query("cut", "text", required_fingerprint=plain, allow_equivalent=True)
    assert (answer.fingerprint, answer.equivalent_to, answer.table_epoch) == (cut, (plain,), 1)
    with pytest.raises(SubstitutionRejected):
        client.embed_query("cut", "text", required_fingerprint=plain)
    assert client.embed_query("cut", "text", target_fingerprint=plain).fingerprint == cut
    # The identity itself goes before one that is only equivalent.
    assert client.embed_query(None, "text", target_fingerprint=plain).fingerprint == plain
    listed = client.models_list()["alias_rows"]
    assert [(set(row) >= {"valid_to_ms"}, row["evidence"]) for row in listed] == [(False, {"cosine": 1})]

    assert said(running, "aliases", "retract", plain, cut) == "changed, table epoch 2\n"
    assert "rebuild for" in said(running, "aliases", "check", plain, cut, status=Exit.REFUSED)
    with pytest.raises(SubstitutionRejected):
        client.embed_query("cut", "text", target_fingerprint=plain)
    assert client.embed_query("cut", "text").equivalent_to == ()


def test_evidence_that_is_no_object_is_a_wrong_command_line(running: RunningHost) -> None:
    for text in ("{", "[1]"):
        done = run_opctl("aliases", "declare", "a", "b", "--evidence", text, home=running.home)
        assert (done.returncode, done.stdout) == (Exit.USAGE, "")
        assert "--evidence" in done.stderr


def test_a_pause_from_beginning_to_end(running: RunningHost, client: Client) -> None:
    assert told(running, "lanes", "status") | {"module_generation": 0} == {
        "module_generation": 0,
        "phase": "running",
        "hardware_free": False,
        "lane_ids": [],
    }
    asked = told(running, "lanes", "pause", "--minutes", "45", "--reason", "measurement")
    assert (asked["reason"], asked["lane_ids"]) == ("measurement", [])
    assert told(running, "lanes", "status")["hardware_free"]
    assert "the hardware is free" in said(running, "lanes", "status")
    again = run_opctl("lanes", "pause", "--minutes", "1", "--reason", "more", home=running.home)
    assert again.returncode == Exit.REFUSED
    assert "active already" in again.stderr
    # Nothing of this machine computes on the Neural Engine: everything is served.
    assert client.embed_query("tiny", "text").dims == 32
    assert said(running, "lanes", "resume") == "running: no pause\n"


def test_admission_status_counts_what_was_refused(running: RunningHost, client: Client) -> None:
    before = told(running, "admission", "status")["refusals"].get("deadline_exceeded", {"count": 0})["count"]
    with pytest.raises(Exception, match="deadline_ms of 1"):
        # To read it takes far longer, however quick the machine is.
        client.embed_query("tiny", "text " * 50_000, deadline_ms=1)
    answer = told(running, "admission", "status")
    assert answer["refusals"]["deadline_exceeded"]["count"] == before + 1
    assert (answer["catalog_lanes"], answer["certified_lanes"]) == (2, 2)
    rows = {row["model_id"]: row for row in answer["lanes"]}
    assert set(rows) == {"tiny", "cut"}
    assert all(row["certified"] and row["machine_profile_hash"] for row in rows.values())
    certified = {
        row["model_id"]: row["certification"]["machine_profile_hash"] for row in client.probe_report()["lanes"]
    }
    assert {name: row["machine_profile_hash"] for name, row in rows.items()} == certified
    assert "tiny" in said(running, "admission", "status")


def test_no_host_no_answer(tmp_path: Path) -> None:
    for words in (("lanes", "status"), ("admission", "status"), ("aliases", "check", "a", "b")):
        assert run_opctl(*words, home=tmp_path).returncode == Exit.NO_HOST


def test_a_mistyped_fingerprint_is_named_and_what_the_host_knows_is_not(running: RunningHost, client: Client) -> None:
    plain = client.embed_query("tiny", "text").fingerprint
    for words in (("check", plain, "nonsense"), ("check", "nonsense", plain), ("retract", plain, "nonsense")):
        done = run_opctl("aliases", *words, home=running.home)
        assert "warning: 'nonsense' is the fingerprint of no model here and stands in no alias" in done.stderr
        assert plain not in done.stderr
    assert run_opctl("aliases", "check", plain, plain, home=running.home).stderr == ""


def test_a_pause_is_refused_in_the_words_of_the_command(running: RunningHost) -> None:
    for minutes in ("0", "-1", "121", "nan"):
        done = run_opctl("lanes", "pause", "--minutes", minutes, "--reason", "measuring", home=running.home)
        assert (done.returncode, "--minutes" in done.stderr) == (Exit.USAGE, True), done.stderr
        assert "duration_ms" not in done.stderr
    blank = run_opctl("lanes", "pause", "--minutes", "1", "--reason", " ", home=running.home)
    assert (blank.returncode, "--reason" in blank.stderr) == (Exit.USAGE, True)
    hidden = run_opctl("lanes", "pause", "--minutes", "1", "--reason", "a\x1b[31mb", home=running.home)
    assert (hidden.returncode, "control character U+001B" in hidden.stderr) == (Exit.REFUSED, True)
    digest = run_opctl("cache", "pin", "https://example.org/a", "--digest", "abc", home=running.home)
    assert (digest.returncode, "--digest 'abc'" in digest.stderr) == (Exit.USAGE, True)
