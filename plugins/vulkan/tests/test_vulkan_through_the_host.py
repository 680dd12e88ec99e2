"""A host serves models on the Vulkan backend where the operator allows its device, and refuses it typed where not."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from synapse_vulkan.evidence import read_machine

from synapse_host.client.blocking_client import Client
from synapse_host.errors import BackendUnavailable, EngineCrashed
from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.running_host import RunningHost, load_model, python_path
from synapse_host.testing.shared_making import copies, made_once

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vulkan_device")]
ALLOWED = {"SYNAPSE_VULKAN_ALLOW_SOFTWARE_DEVICE": "1"}
TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64)
TEXTS = ["The tide comes in twice a day.", "Boats float.", "a", "the harbour wall keeps the sea out " * 12]


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and a home in which it and MiniLM are certified, made once for all processes of the run."""

    def make(folder: Path) -> None:
        write_model(folder / "tiny", TINY)
        with RunningHost(folder / "home", ALLOWED) as running, running.client() as client:
            load_model(client, folder / "tiny", engine="vulkan", model_id="tiny")
            load_model(client, minilm_directory(), engine="owned-vulkan", model_id="minilm")

    return made_once(tmp_path_factory, "vulkan", make)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, certified: Path) -> Iterator[RunningHost]:
    with RunningHost(copies(certified / "home")(tmp_path_factory.mktemp("home")), ALLOWED) as running:
        with running.client() as client:
            for model in ("tiny", "minilm"):
                client.embed_query(model, "loaded", retries=20)
        yield running


@pytest.fixture
def client(host: RunningHost) -> Iterator[Client]:
    with host.client() as connected:
        yield connected


def test_certified_models_of_the_backend_are_served(client: Client) -> None:
    rows = {row["model_id"]: row for row in client.models_list()["models"]}
    assert rows["tiny"]["certified"]
    assert rows["minilm"]["certified"]
    reply = client.embed_query("minilm", TEXTS[0])
    assert reply.vectors.shape == (1, 384)


def test_the_identity_names_the_device(client: Client) -> None:
    flags = client.embed_query("minilm", "x").provenance["engine"]["build_flags"]
    chosen = read_machine().chosen
    assert chosen is not None
    assert flags["device"] == chosen.name
    assert flags["driver"] == chosen.driver
    assert flags.get("software_device") == ("true" if chosen.kind == "software" else None)


#: A driver that names itself with what the environment says behind.
OTHER_DRIVER = textwrap.dedent(
    """
    import os
    from synapse_vulkan import instance

    def _driver(handle, properties, told=instance._driver):
        return told(handle, properties) + os.environ["UPDATED_TO"]

    instance._driver = _driver
    """
)


def test_an_updated_driver_never_answers_under_the_fingerprint_of_the_old_one(tmp_path: Path, certified: Path) -> None:
    home, site = copies(certified / "home")(tmp_path / "home"), tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(OTHER_DRIVER)
    fingerprints = []
    for number in ("", " 25.1"):
        environment = {**ALLOWED, **python_path(site), "UPDATED_TO": number}
        with RunningHost(home, environment) as running, running.client() as client:
            if number:
                with pytest.raises(EngineCrashed, match="build flag driver") as refused:
                    client.embed_query("tiny", "x", retries=5)
                assert refused.value.details is not None
                assert refused.value.details["actual"].endswith(number)
                strikes = {
                    lane["model_id"]: lane["strikes"] for lane in client.call("admission.status")["health"]["lanes"]
                }
                assert strikes["tiny"] == 0
                load_model(client, certified / "tiny", engine="vulkan", model_id="tiny")
            reply = client.embed_query("tiny", "x", retries=5)
            fingerprints.append(reply.fingerprint)
            assert reply.provenance["engine"]["build_flags"]["driver"].endswith(number)
    assert fingerprints[0] != fingerprints[1]


def test_a_text_has_the_same_bits_alone_and_in_a_batch(client: Client) -> None:
    together = client.embed_batch("minilm", TEXTS).vectors
    alone = [client.embed_query("minilm", text).vectors[0] for text in TEXTS]
    assert [np.asarray(vector).tobytes() for vector in together] == [np.asarray(vector).tobytes() for vector in alone]


def test_without_permission_a_software_device_is_refused(tmp_path: Path) -> None:
    chosen = read_machine().chosen
    if chosen is None or chosen.kind != "software":
        pytest.skip("the device is no software device")
    tiny = tmp_path / "tiny"
    tiny.mkdir()
    write_model(tiny, TINY)
    with (
        RunningHost(tmp_path / "home") as running,
        running.client() as client,
        pytest.raises(BackendUnavailable) as refused,
    ):
        load_model(client, tiny, engine="vulkan", certify=False)
    assert refused.value.details["backends"][0]["reason_detail"] == "software_device"
