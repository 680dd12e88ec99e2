"""Every kind of model that cannot be loaded is refused by name, and the host serves on with the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from synapse_host.errors import SynapseError
from synapse_host.testing.fake_distributions import backend_source, install_backend, install_project
from synapse_host.testing.models.spoiled_models import (
    Spoil,
    entry,
    safetensors_bytes,
    spoiled_copy,
    with_config,
    with_file,
    with_header,
    with_tensors,
    without_file,
)
from synapse_host.testing.models.tiny_models import TinyBert, tiny_tokenizer
from synapse_host.testing.refusal import Refusal, refusal
from synapse_host.testing.running_host import python_path
from synapse_host.testing.steady_host import SteadyHost, steady_host

#: The model of the shared fixture, to make spoiled weights from.
TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64)
EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_backend"
SECRET = "nothing a model may read"
ARTIFACT = "file expected_sha256 actual_sha256 expected_size actual_size recovery_op"
TENSOR = "encoder.layer.1.output.dense.weight"


@pytest.fixture(scope="module")
def steady(
    tmp_path_factory: pytest.TempPathFactory, tiny_directory: Path, certified: Callable[[Path], Path]
) -> Iterator[SteadyHost]:
    """A host that also sees two backends of somebody else: the example, and one with numbers of its own."""
    site = tmp_path_factory.mktemp("site")
    install_project(site, EXAMPLE)
    install_backend(site, "foreign", backend_source("foreign"))
    home = certified(tmp_path_factory.mktemp("bad-models"))
    with steady_host(home, tiny_directory, **python_path(site)) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Case:
    """One load that must be refused: what is spoiled, what is asked beside ``path``, and how it is refused."""

    expected: Refusal
    spoil: Spoil = lambda directory: None
    params: dict[str, Any] = field(default_factory=dict)


def artifact(*words: str, spoil: Spoil = lambda directory: None, **params: Any) -> Case:
    return Case(refusal("artifact_invalid", "job", *words, details=ARTIFACT), spoil, params)


def invalid(details: str, *words: str, spoil: Spoil = lambda directory: None, **params: Any) -> Case:
    return Case(refusal("invalid_request", "job", *words, details=details), spoil, params)


def at_once(code: str, details: str | None, *words: str, **params: Any) -> Case:
    place = "channel" if details is None else "result"
    return Case(refusal(code, place, *words, details=details), params=params)


def escape(directory: Path) -> None:
    secret = directory.parent / f"{directory.name}-secret.json"
    secret.write_text(SECRET)
    (directory / "config.json").unlink()
    (directory / "config.json").symlink_to(secret)


def directory_as_file(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer.json").mkdir()


def twice(header: bytes) -> bytes:
    first = header.index(b'"embeddings.LayerNorm.bias"')
    return header[:first] + b'"embeddings.LayerNorm.weight"' + header[first + len(b'"embeddings.LayerNorm.bias"') :]


def repeated_name(directory: Path) -> None:
    path = directory / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    path.write_bytes(safetensors_bytes(twice(data[8 : 8 + length]), data[8 + length :]))


def cut(keep: int) -> Spoil:
    def spoil(directory: Path) -> None:
        path = directory / "model.safetensors"
        path.write_bytes(path.read_bytes()[:keep])

    return spoil


def tokenizer_of(vocab: int) -> Spoil:
    return with_file("tokenizer.json", json.dumps(tiny_tokenizer(vocab)).encode())


CASES = {
    # What can be told from the parameters alone.
    "no path": at_once("invalid_request", "parameter", "path", path=None),
    "no engine": at_once("invalid_request", None, "params.engine", "missing", engine=...),
    "unknown field": at_once("invalid_request", None, "params.pooled", "'mean'", pooled="mean"),
    "unknown pooling": at_once("invalid_request", None, "params.pooling", "'sum'", pooling="sum"),
    "unknown task": at_once("invalid_request", None, "params.task", "'guess'", task="guess"),
    "unknown dtype": at_once("invalid_request", None, "params.dtype", "'int4'", dtype="int4"),
    "number for normalize": at_once("invalid_request", None, "params.normalize", "1", normalize=1),
    "bool for max_tokens": at_once("invalid_request", None, "params.max_tokens", "True", max_tokens=True),
    "zero max_tokens": at_once("invalid_request", None, "params.max_tokens", "= 0", max_tokens=0),
    "huge max_tokens": at_once("invalid_request", None, "params.max_tokens", str(2**63), max_tokens=2**63),
    "id with slashes": at_once("invalid_request", None, "params.model_id", "'../other'", model_id="../other"),
    "id that begins with a dot": at_once("invalid_request", None, "params.model_id", "'.x'", model_id=".x"),
    "id with a line end": at_once("invalid_request", None, "params.model_id", r"'x\n'", model_id="x\n"),
    "short digest": at_once("invalid_request", None, "params.expected_digest", "'abc'", expected_digest="abc"),
    "source hf without a repository": at_once("invalid_request", "parameter", "'hf'", "repo", source="hf"),
    "source url without an address": at_once("invalid_request", "file", "model.safetensors", "url", source="url"),
    "unknown source": at_once("invalid_request", None, "params.source", "'ftp'", source="ftp"),
    "extra files": at_once("invalid_request", "parameter", "files.extra", "1 file", files={"extra": ["a.bin"]}),
    "file by address": at_once(
        "invalid_request", "file", "https://example.org/m", files={"model": "https://example.org/m"}
    ),
    # Engines.
    "unknown engine": invalid("engine", "'ort'", "reference", engine="ort"),
    "engine of another platform": Case(
        refusal("backend_unavailable", "job", "metal", details="catalog_id lane_id backends"),
        params={"engine": "owned-metal"},
    ),
    "engine of another platform by another name": Case(
        refusal("backend_unavailable", "job", "metal", details="catalog_id lane_id backends"),
        params={"engine": "owned"},
    ),
    "model of another family": invalid("family found", "'qwen3'", "'bert'", family="qwen3"),
    "engine that is not owned": invalid("engine task", "'engine-of-foreign'", "vouch", engine="foreign"),
    "task the engine does not serve": invalid("engine task", "generate", engine="example-static", task="generate"),
    "family the engine does not run": invalid("engine family", "'bert'", "static", engine="example-static"),
    "dtype that is not available": invalid("dtype dtypes", "'f16'", "f32", dtype="f16"),
    # Paths.
    "relative path": invalid("path", "'models/tiny'", "absolute", path="models/tiny"),
    "path that climbs out": invalid("file", "'../x.json'", files={"config": "../x.json"}),
    "absolute name": invalid("file", "'/etc/passwd'", files={"config": "/etc/passwd"}),
    "blank name": at_once("invalid_request", None, "params.files.config", "''", files={"config": ""}),
    "link that leads out": invalid("file", "'config.json'", "outside", spoil=escape),
    "directory for a file": invalid("file", "'tokenizer.json'", spoil=directory_as_file),
    "missing directory": invalid("path", "/no/such/directory", path="/no/such/directory"),
    "file for a directory": invalid("path", "/etc/passwd", path="/etc/passwd"),
    "path with a very long name": invalid("path", "nnnn", path="/" + "n" * 300),
    "path with a NUL": invalid("path", r"\x00", path="/tmp/\0"),
    "name with a NUL": invalid("file", r"\x00", files={"config": "a\0b"}),
    # Missing and wrong files.
    "missing weights": artifact("'model.safetensors'", spoil=without_file("model.safetensors")),
    "missing tokenizer": artifact("'tokenizer.json'", spoil=without_file("tokenizer.json")),
    "missing config": artifact("'config.json'", spoil=without_file("config.json")),
    "missing named file": artifact("'other.safetensors'", files={"model": "other.safetensors"}),
    "wrong expected_digest": artifact("0" * 64, "model.safetensors", expected_digest="0" * 64),
    "wrong digest of the weights": artifact(
        "1" * 64, files={"model": {"url": "model.safetensors", "sha256": "1" * 64}}
    ),
    "wrong digest of the tokenizer": artifact(
        "2" * 64, files={"tokenizer": {"url": "tokenizer.json", "sha256": "2" * 64}}
    ),
    "wrong digest of the config": artifact("3" * 64, files={"config": {"url": "config.json", "sha256": "3" * 64}}),
    # Safetensors that lie.
    "empty weights": artifact("0 bytes", spoil=cut(0)),
    "cut in the header": artifact("header claims", spoil=cut(100)),
    "cut in the data": artifact("past the", spoil=cut(20_000)),
    "header longer than the file": artifact(
        "header claims",
        str(2**40),
        spoil=with_file("model.safetensors", safetensors_bytes(b"{}", b"", length=2**40)),
    ),
    "header that is no JSON": artifact(
        "not JSON",
        spoil=with_file("model.safetensors", safetensors_bytes(b"{nonsense", b"")),
    ),
    "pickle in its place": artifact("header claims", spoil=with_file("model.safetensors", b"\x80\x04\x95" + b"a" * 99)),
    "negative offset": artifact("-8", spoil=with_header(lambda h: entry(h).update(data_offsets=[-8, 0]))),
    "offset past the end": artifact(
        str(2**50), spoil=with_header(lambda h: entry(h, -1).update(data_offsets=[0, 2**50]))
    ),
    "overlapping tensors": artifact(
        "overlaps",
        spoil=with_header(lambda h: entry(h, 1).update(data_offsets=entry(h, 0)["data_offsets"], shape=[120, 32])),
    ),
    "hole between tensors": artifact("hole", spoil=with_header(lambda h: h.pop("embeddings.LayerNorm.bias"))),
    "shape of another size": artifact("[7, 7]", spoil=with_header(lambda h: entry(h).update(shape=[7, 7]))),
    "product past 64 bits": artifact(
        str(2**40),
        spoil=with_header(lambda h: entry(h).update(shape=[2**40, 2**40])),
    ),
    "unknown dtype of a tensor": artifact("'F12'", spoil=with_header(lambda h: entry(h).update(dtype="F12"))),
    "tensor named twice": artifact("more than once", spoil=repeated_name),
    # Tensors that do not fit the config.
    "missing tensor": artifact(TENSOR, spoil=with_tensors(TINY, lambda tensors: tensors.pop(TENSOR))),
    "misshapen tensor": artifact(
        TENSOR,
        "(32, 63)",
        "(32, 64)",
        spoil=with_tensors(TINY, lambda tensors: tensors.update({TENSOR: tensors[TENSOR][:, :63].copy()})),
    ),
    "transposed tensor": artifact(
        TENSOR,
        "(64, 32)",
        spoil=with_tensors(TINY, lambda tensors: tensors.update({TENSOR: tensors[TENSOR].T.copy()})),
    ),
    "integer tensor": artifact(
        "I32",
        spoil=with_header(lambda h: [value.update(dtype="I32") for value in h.values()]),
    ),
    # Tokenizers.
    "tokenizer of another vocabulary": invalid(
        "file token_id vocab_size",
        "149",
        "120",
        spoil=tokenizer_of(150),
    ),
    "tokenizer that is no JSON": invalid("file", "not JSON", spoil=with_file("tokenizer.json", b"<html>404</html>")),
    "tokenizer that is no tokenizer": invalid("file", "tokenizer.json", spoil=with_file("tokenizer.json", b'{"a": 1}')),
    "tokenizer that is very deep": invalid("file", "not JSON", spoil=with_file("tokenizer.json", b"[" * 200_000)),
    # Configs.
    "config that is no JSON": invalid("file", "not JSON", spoil=with_file("config.json", b"model_type: bert")),
    "config that is not UTF-8": invalid("file", "0xff", spoil=with_file("config.json", b'{"a": "\xff"}')),
    "config that is a list": invalid("file", "a list", spoil=with_file("config.json", b"[1]")),
    "config that is very deep": invalid("file", "not JSON", spoil=with_file("config.json", b"[" * 200_000)),
    "config that is very large": artifact("larger than", spoil=with_file("config.json", b" " * (17 << 20))),
    "unsupported architecture": invalid(
        "architecture supported", "'llama'", "bert", spoil=with_config(model_type="llama")
    ),
    "architecture of another kind": invalid(
        "architecture supported", "['bert']", spoil=with_config(model_type=["bert"])
    ),
    "no architecture": invalid("architecture supported", "BertModel", spoil=with_config(model_type=...)),
    "size that is missing": invalid("file field", "hidden_size", "None", spoil=with_config(hidden_size=...)),
    "size that is negative": invalid("file field", "num_hidden_layers", "-1", spoil=with_config(num_hidden_layers=-1)),
    "size that is a bool": invalid("file field", "vocab_size", "True", spoil=with_config(vocab_size=True)),
    "size past every integer": invalid(
        "file field", "vocab_size", "1" + "0" * 30, spoil=with_config(vocab_size=10**30)
    ),
    "max_tokens past the positions": invalid("max_tokens max_positions", "65", "64", max_tokens=65),
    "max_tokens below the special tokens": invalid("max_tokens special_tokens", "2", max_tokens=2),
    "vocabulary past the weights": artifact("embeddings.word_embeddings.weight", spoil=with_config(vocab_size=100_000)),
    "very many layers": artifact("encoder.layer.2.", spoil=with_config(num_hidden_layers=2**31 - 1)),
    "no heads": invalid("reason", "num_attention_heads", "0", spoil=with_config(num_attention_heads=0)),
    "heads that do not divide": invalid("reason", "5", "32", spoil=with_config(num_attention_heads=5)),
    "heads that are no number": invalid("reason", "'four'", spoil=with_config(num_attention_heads="four")),
    "unknown activation": invalid("reason", "'swish'", spoil=with_config(hidden_act="swish")),
    "activation of another kind": invalid("reason", "['gelu']", spoil=with_config(hidden_act=["gelu"])),
    "relative positions": invalid(
        "reason", "'relative_key'", spoil=with_config(position_embedding_type="relative_key")
    ),
    "epsilon that is no number": invalid("reason", "'tiny'", spoil=with_config(layer_norm_eps="tiny")),
    "negative epsilon": invalid("reason", "-1", spoil=with_config(layer_norm_eps=-1.0)),
    "no token types": invalid("reason", "type_vocab_size", "0", spoil=with_config(type_vocab_size=0)),
}


def load_answer(steady: SteadyHost, path: Path, case: Case) -> dict[str, Any]:
    """The whole answer of a load, or its job's last status where a job began."""
    asked = {"source": "file", "path": str(path), "engine": "reference", "model_id": "attempt", **case.params}
    params = {name: value for name, value in asked.items() if value is not ... and value is not None}
    try:
        job = steady.client.model_load(**params)
    except SynapseError as error:
        return _as_answer(error, job=False)
    assert case.expected.place == "job", job
    with pytest.raises(SynapseError) as caught:
        steady.client.wait_for_load(job["job_id"])
    status = steady.client.model_status(job_id=job["job_id"])
    assert status["state"] == "failed"
    assert caught.value.to_wire() == status["error"]
    return {"result": status}


def _as_answer(error: SynapseError, *, job: bool) -> dict[str, Any]:
    if error.channel or (error.code == "invalid_request" and error.details is None):
        return {"error": error.to_wire()}
    return {"result": {"module_generation": 1, "error": error.to_wire()}}


@pytest.mark.parametrize("name", CASES)
def test_a_load_is_refused_as_the_table_says(steady: SteadyHost, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = spoiled_copy(steady.directory, tmp_path / "model", case.spoil)
    error = case.expected.check(load_answer(steady, path, case))
    assert SECRET not in json.dumps(error)
    steady.check()
