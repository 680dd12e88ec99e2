"""The example backend as its author would have it: installed beside the host, found, loaded, certified, served from."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import (
    ArtifactInvalid,
    EngineCrashed,
    InvalidRequest,
    NotCertified,
    ProbeRequired,
    SubstitutionRejected,
)
from synapse_host.testing.command_runs import environment_of, synapse_command
from synapse_host.testing.fake_distributions import install_project
from synapse_host.testing.models.tiny_models import tiny_tokenizer, write_model, write_safetensors
from synapse_host.testing.models.tiny_static import TinyStatic
from synapse_host.testing.running_host import RunningHost, load_model, python_path
from synapse_host.tokenization.model_tokenizer import ModelTokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_backend"
ENGINE, MODEL, TEXT = "example-static", "table", "the tide came in"
TABLE = TinyStatic(seed=8, hidden=40, vocab=600, positions=600)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of tokens whose tokenizer puts no special ones around a text, as published tables want it."""
    directory = tmp_path_factory.mktemp("models") / "table"
    write_model(directory, TABLE, tokenizer=tiny_tokenizer(TABLE.vocab) | {"post_processor": None})
    return directory


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's module, as it was installed."""
    site = tmp_path_factory.mktemp("site")
    install_project(site, EXAMPLE)
    return site / "example_static" / "plugin.py"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, module: Path) -> Iterator[RunningHost]:
    """A host in whose environment the example is installed."""
    with RunningHost(tmp_path_factory.mktemp("home"), python_path(module.parents[1])) as running:
        yield running


@pytest.fixture
def client(host: RunningHost) -> Iterator[Client]:
    with host.client() as connected:
        yield connected


@pytest.fixture(scope="module")
def certified(host: RunningHost, table: Path) -> str:
    """The fingerprint of the table on the example, certified."""
    with host.client() as connected:
        return str(load_model(connected, table, engine=ENGINE, model_id=MODEL)["fingerprint"])


@pytest.fixture
def sound(module: Path) -> Iterator[str]:
    """The module's text, which is put back after the test."""
    text = module.read_text()
    yield text
    module.write_text(text)


def expected(texts: list[str], directory: Path) -> np.ndarray[Any, Any]:
    """The mean of each text's rows at unit length, in float64."""
    data = (directory / "tokenizer.json").read_bytes()
    tokenizer = ModelTokenizer.from_json(data, max_tokens=TABLE.positions, vocab_size=TABLE.vocab)
    (rows,) = TABLE.tensors().values()
    means = np.stack([rows[encoded.ids].astype(np.float64).mean(axis=0) for encoded in tokenizer.encode(texts)])
    return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True))


def test_the_host_shows_it_as_a_backend_that_runs_here(host: RunningHost, module: Path) -> None:
    done = subprocess.run(
        synapse_command("backends", "--json"),
        env=environment_of(host.home, python_path(module.parents[1])),
        capture_output=True,
        check=True,
    )
    (row,) = [row for row in json.loads(done.stdout)["backends"] if row["backend"] == ENGINE]
    assert (row["runnable"], row["engine"], row["device_class"]) == (True, ENGINE, "cpu")
    assert row["observed"]["cores"] >= row["required"]["cores"]


def test_it_is_refused_until_it_is_probed_and_then_serves_under_its_own_identity(client: Client, table: Path) -> None:
    # Another limit, and with it another identity than that of the shared model.
    name = "fresh"
    status = load_model(client, table, engine=ENGINE, model_id=name, max_tokens=256, certify=False)
    with pytest.raises(ProbeRequired):
        client.embed_query(name, TEXT)
    client.wait_for_probe(client.probe_start([name])["job_id"])

    texts = [TEXT, "boats float", "a longer text, of several words and a few numbers: 1, 22, 333"]
    answer = client.embed_batch(name, texts)
    np.testing.assert_allclose(answer.vectors, expected(texts, table), rtol=0, atol=2e-7)
    assert answer.fingerprint == status["fingerprint"]
    assert answer.provenance["engine"]["engine"] == ENGINE
    assert client.embed_query(name, TEXT, required_fingerprint=answer.fingerprint).vectors.shape == (1, TABLE.hidden)


def test_the_probe_held_it_against_the_reference_and_a_magnifying_model(client: Client, certified: str) -> None:
    (lane,) = [lane for lane in client.probe_report()["lanes"] if lane["fingerprint"] == certified]
    evidence = lane["certification"]["evidence"]
    for measured in ("texts", "magnifying_model"):
        assert evidence[measured]["min_cosine"] > 0.999999
    assert "engine" not in evidence, "it has no check of its own, so the tiny model of its family was run"


def test_the_same_table_on_another_engine_is_another_identity(client: Client, table: Path, certified: str) -> None:
    status = load_model(client, table, engine="reference", model_id="table-on-reference", certify=False)
    theirs = status["fingerprint"]
    assert theirs != certified
    with pytest.raises(SubstitutionRejected):
        client.embed_query(MODEL, TEXT, required_fingerprint=theirs)


@pytest.mark.parametrize("text", ["", "  ", "\0"])
@pytest.mark.usefixtures("certified")
def test_a_text_of_no_tokens_is_refused_by_name(client: Client, text: str) -> None:
    with pytest.raises(InvalidRequest, match="item 'b' has no tokens"):
        client.embed_batch(MODEL, [("a", TEXT), ("b", text)])


def test_swapped_kernels_are_refused_and_wrong_ones_never_certified(
    client: Client, table: Path, module: Path, sound: str, certified: str
) -> None:
    right = client.embed_query(MODEL, TEXT).vectors.tobytes()
    # Plausible numbers, and wrong: the first token of every text is counted twice.
    wrong = sound.replace("mean: Vectors = (tokens.sum(", "mean: Vectors = (tokens[0] + tokens.sum(")
    assert wrong != sound
    module.write_text(wrong)
    client.model_unload(MODEL)
    with pytest.raises(EngineCrashed, match="kernel_revision") as caught:
        client.embed_query(MODEL, TEXT)
    assert caught.value.details is not None
    assert caught.value.details["handshake_code"] == "kernel_revision_mismatch"

    status = load_model(client, table, engine=ENGINE, model_id="miscounted", certify=False)
    assert status["fingerprint"] != certified
    probed = client.wait_for_probe(client.probe_start(["miscounted"])["job_id"])
    assert not probed["lanes"][0]["certified"]
    with pytest.raises(NotCertified, match="cosine"):
        client.embed_query("miscounted", TEXT)

    module.write_text(sound)
    again = client.embed_query(MODEL, TEXT)
    assert (again.fingerprint, again.vectors.tobytes()) == (certified, right)


@pytest.mark.usefixtures("certified")
def test_another_package_under_the_same_name_is_refused(client: Client, module: Path, sound: str) -> None:
    module.write_text(sound.replace('TOLERANCES = {"cosine_f32": "0.999999"}', 'TOLERANCES = {"cosine_f32": "0.9"}'))
    client.model_unload(MODEL)
    with pytest.raises(EngineCrashed, match="manifest_digest") as caught:
        client.embed_query(MODEL, TEXT)
    assert caught.value.details is not None
    assert caught.value.details["handshake_code"] == "manifest_mismatch"


def shortened(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])


def with_nan(directory: Path) -> None:
    (name, rows), *_ = TABLE.tensors().items()
    rows[7, 3] = np.nan
    write_safetensors(directory / "model.safetensors", {name: rows})


def of_another_size(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps(TABLE.config() | {"hidden_size": 41}))


def of_another_name(directory: Path) -> None:
    write_safetensors(directory / "model.safetensors", {"table": next(iter(TABLE.tensors().values()))})


@pytest.mark.usefixtures("certified")
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (shortened, "model.safetensors"),
        (with_nan, "row 7 of embedding.weight"),
        (of_another_size, "embedding.weight.*41"),
        (of_another_name, "no tensor 'embedding.weight'"),
    ],
    ids=["cut short", "not finite", "another size", "another name"],
)
def test_a_broken_table_is_refused_by_name_and_the_host_serves_on(
    client: Client, table: Path, tmp_path: Path, spoil: Any, said: str
) -> None:
    write_model(tmp_path, TABLE, tokenizer=json.loads((table / "tokenizer.json").read_text()))
    spoil(tmp_path)
    with pytest.raises(ArtifactInvalid, match=said):
        load_model(client, tmp_path, engine=ENGINE, model_id="broken", certify=False)
    assert client.embed_query(MODEL, TEXT).vectors.shape == (1, TABLE.hidden)


def test_a_text_whose_rows_cancel_out_is_refused_and_names_the_item(client: Client, tmp_path: Path) -> None:
    (name, rows), *_ = TABLE.tensors().items()
    document = tiny_tokenizer(TABLE.vocab) | {"post_processor": None}
    vocabulary = document["model"]["vocab"]
    rows[vocabulary["a"]] = 0
    write_model(tmp_path, TABLE, tokenizer=document)
    write_safetensors(tmp_path / "model.safetensors", {name: rows})
    load_model(client, tmp_path, engine=ENGINE, model_id="hollow")
    with pytest.raises(EngineCrashed) as caught:
        client.embed_batch("hollow", [("x", "tide"), ("y", "a")])
    assert caught.value.details == {"reason": "zero_output", "item_id": "y"}
    assert client.embed_query("hollow", TEXT).vectors.any()
