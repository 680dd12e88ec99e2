"""A mistake in the host's own code costs the one request or job that meets it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import EngineCrashed, SynapseError
from synapse_host.testing.running_host import RunningHost, load_model, python_path

#: Planted in the host process alone, where the model's id asks for it.
FAULTS = """
import inspect, sys

def spoil(owner, name, model_id_of):
    sound = getattr(owner, name)
    def check(args):
        if model_id_of(*args) == f"bug-in-{name}":
            raise ZeroDivisionError("planted")
    def spoiled(*args, **kwargs):
        check(args)
        return sound(*args, **kwargs)
    async def spoiled_later(*args, **kwargs):
        check(args)
        return await sound(*args, **kwargs)
    setattr(owner, name, spoiled_later if inspect.iscoroutinefunction(sound) else spoiled)

if sys.orig_argv[-1:] == ["serve"]:
    from synapse_host.lanes import grouped_rows, registrar, residency
    spoil(registrar, "prepare_model", lambda request, *rest: request.model_id)
    spoil(residency.Residency, "_start_serving", lambda self, *rest: self.model.model_id)
    def spoiled(make):
        def made(number, reference, model, rows):
            if model.model_id == "bug-in-messages":
                raise ZeroDivisionError("planted")
            return make(number, reference, model, rows)
        return made
    grouped_rows._MESSAGES = {operation: spoiled(make) for operation, make in grouped_rows._MESSAGES.items()}
    spoil(residency.Residency, "_watch", lambda self, *rest: self.model.model_id)
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, certified: Callable[[Path], Path]) -> Iterator[RunningHost]:
    folder = tmp_path_factory.mktemp("host-faults")
    (folder / "sitecustomize.py").write_text(FAULTS)
    with RunningHost(certified(folder / "home"), python_path(folder)) as running:
        yield running


@pytest.fixture
def client(host: RunningHost) -> Iterator[Client]:
    with host.client() as connected:
        yield connected
        assert connected.embed_query("tiny", "the host serves on").dims == 32


def check(host: RunningHost, error: SynapseError) -> None:
    assert isinstance(error, EngineCrashed)
    assert (error.error_class, (error.details or {})["reason"]) == ("permanent", "host_fault")
    assert "planted" in error.message
    assert 'raise ZeroDivisionError("planted")' not in error.message
    assert host.says("ZeroDivisionError: planted"), "the traceback belongs in the log"


@pytest.mark.parametrize("where", ["prepare_model", "_start_serving"])
def test_a_load_that_meets_a_mistake_fails_typed(
    host: RunningHost, client: Client, tiny_directory: Path, where: str
) -> None:
    for _ in range(2):
        with pytest.raises(EngineCrashed) as caught:
            load_model(client, tiny_directory, engine="reference", model_id=f"bug-in-{where}", certify=False)
        check(host, caught.value)
    assert [row["model_id"] for row in client.models_list()["models"]] == ["tiny"]


def test_a_request_that_meets_a_mistake_fails_typed(host: RunningHost, client: Client, tiny_directory: Path) -> None:
    load_model(client, tiny_directory, engine="reference", model_id="bug-in-messages", certify=False)
    for _ in range(3):
        with pytest.raises(EngineCrashed) as caught:
            client.embed_query("bug-in-messages", "text")
        check(host, caught.value)
    listed = {row["model_id"]: row["state"] for row in client.models_list()["models"]}
    assert listed == {"bug-in-messages": "ready", "tiny": "ready"}


def test_a_probe_that_meets_a_mistake_fails_and_certifies_nothing(
    host: RunningHost, client: Client, tiny_directory: Path
) -> None:
    load_model(client, tiny_directory, engine="reference", model_id="bug-in-messages", pooling="cls", certify=False)
    with pytest.raises(EngineCrashed) as caught:
        client.wait_for_probe(client.probe_start(["bug-in-messages"])["job_id"])
    check(host, caught.value)
    assert caught.value.details == {"reason": "host_fault", "model_id": "bug-in-messages"}
    lanes = {lane["model_id"]: lane for lane in client.probe_report()["lanes"]}
    assert lanes["bug-in-messages"]["certification"] is None


def test_a_mistake_nobody_waits_for_is_logged_and_ends_nothing(
    host: RunningHost, client: Client, tiny_directory: Path
) -> None:
    load_model(client, tiny_directory, engine="reference", model_id="bug-in-_watch", certify=False)
    assert client.embed_query("bug-in-_watch", "text").dims == 32
    assert host.says("background task")
