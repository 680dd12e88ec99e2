"""What must be refused, with which code, and that a good request is served afterwards as before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from synapse_host.testing.conformance.bench import Bench, Served
from synapse_host.testing.conformance.model_files import ModelUnderTest
from synapse_host.testing.conformance.premises import PLAIN_LENGTH, a_row_is_served, requests_repeat
from synapse_host.testing.conformance.sessions import TokenIds, embed_request, refusal_of

#: What is wrong with a LOAD -> what it is replaced by, and the code of the refusal.
LOAD_FAULTS = {
    "format": ({"format": "no-such-format"}, "model_unsupported"),
    "family": ({"family": "no-such-family"}, "model_unsupported"),
    "dtype": ({"dtype": "f64"}, "config_invalid"),
    "operation": ({"operation": "translate"}, "operation_mismatch"),
    "max_tokens": ({"max_tokens": "-1"}, "config_invalid"),
    "digest": ({"digest": "0" * 64}, "artifact_invalid"),
    "config digest": ({"config_digest": "0" * 64}, "config_invalid"),
}
_ABOUT_THE_MODEL = ("config_invalid", "model_unsupported", "artifact_invalid")


class Refusals:
    """ERR where it belongs, and no harm done by it."""

    @pytest.mark.parametrize("fault", LOAD_FAULTS)
    def test_a_load_that_names_something_unknown_is_refused(self, conformance_bench: Bench, fault: str) -> None:
        conformance_bench.assume(a_row_is_served)
        changes, code = LOAD_FAULTS[fault]
        if fault == "config digest" and conformance_bench.model.config_file is None:
            pytest.skip("the model has no config.json")
        refusal_code = _load_refused(conformance_bench, conformance_bench.model, **changes)
        assert refusal_code == code

    def test_a_configuration_of_zeros_is_refused(self, conformance_bench: Bench) -> None:
        """No size may be 0, so nothing can be loaded by it."""
        model = _seeded(conformance_bench)
        if model.config_file is None:
            pytest.skip("the model has no config.json")
        zeros = {name: 0 if isinstance(value, int) else value for name, value in _config(model).items()}
        folder = conformance_bench.folder / "zeros"
        folder.mkdir()
        assert _load_refused(conformance_bench, model.with_config(folder, zeros)) in _ABOUT_THE_MODEL

    def test_a_damaged_weight_file_is_refused(self, conformance_bench: Bench) -> None:
        """Cut short, with the digest of what is left: the digest alone proves nothing about the content."""
        model = _seeded(conformance_bench)
        if not conformance_bench.description.owned:
            pytest.skip("only an owned backend must understand the file")
        cut = conformance_bench.folder / "cut.safetensors"
        data = model.artifact.read_bytes()
        cut.write_bytes(data[: len(data) // 2])
        assert _load_refused(conformance_bench, model.with_artifact(cut)) == "artifact_invalid"

    def test_a_token_id_outside_the_vocabulary_is_refused(self, conformance_bench: Bench) -> None:
        conformance_bench.check(foreign_ids_are_refused)

    def test_a_row_past_max_tokens_is_refused(self, conformance_bench: Bench) -> None:
        """Not cut to the limit: the host tells callers of every truncation, so a worker must make none."""
        conformance_bench.assume(a_row_is_served)
        (row,) = conformance_bench.rows_of([conformance_bench.model.max_tokens + 1], salt=20)
        what = f"a row of {len(row)} tokens where {conformance_bench.model.max_tokens} are the most"
        with _unharmed(conformance_bench) as served:
            assert refusal_of(what, lambda: served.embed([row])).code == "invalid_request"

    def test_a_model_that_is_not_loaded_is_refused(self, conformance_bench: Bench) -> None:
        with _unharmed(conformance_bench) as served:
            rows = conformance_bench.rows_of([PLAIN_LENGTH])
            refusal = refusal_of("an unknown model", lambda: served.session.embed("no-such-model", rows))
            assert refusal.code == "model_not_loaded", str(refusal)

    @pytest.mark.parametrize("fault", ["pooling", "no rows", "a row of no tokens", "too few ids", "too many ids"])
    def test_a_batch_that_does_not_fit_together_is_refused(self, conformance_bench: Bench, fault: str) -> None:
        with _unharmed(conformance_bench) as served:
            refusal = refusal_of(fault, _bad_batch(conformance_bench, served, fault))
            assert refusal.code == "invalid_request", str(refusal)


def foreign_ids_are_refused(bench: Bench) -> None:
    """An id below 0, or the first past the vocabulary, is refused; whatever it would look up is no token."""
    bench.assume(a_row_is_served)
    vocabulary = bench.model.vocab_size
    if vocabulary is None:
        pytest.skip("the size of the vocabulary is not known: the model has no config.json")
    for token_id in (vocabulary, 2**31 - 1, -1):
        with _unharmed(bench) as served:
            refusal = refusal_of(f"token id {token_id}", partial(served.embed, foreign_rows(token_id)))
            assert refusal.code == "invalid_request", f"token id {token_id}: {refusal}"


def foreign_rows(token_id: int) -> list[TokenIds]:
    """Rows that all have ``token_id`` among ordinary ones."""
    return [np.array([1, token_id, 2], dtype=np.int32)] * 3


@contextmanager
def _unharmed(bench: Bench) -> Iterator[Served]:
    """A worker that must answer a good request afterwards as it did before: one that left a raw frame would not."""
    bench.assume(requests_repeat)
    served, rows = bench.spare(), bench.rows_of([PLAIN_LENGTH], salt=21)
    before = served.embed(rows)
    yield served
    after = served.embed(rows)
    assert bench.promise.kept(before[0], after[0]), "a request after the refusal is answered otherwise than before"


def _load_refused(bench: Bench, model: ModelUnderTest, **changes: str) -> str:
    with _unharmed(bench) as served:
        return refusal_of("the LOAD", lambda: served.session.load(model, bench.dtype, **changes)).code
    raise AssertionError


def _bad_batch(bench: Bench, served: Served, fault: str) -> Callable[[], object]:
    rows = bench.rows_of([PLAIN_LENGTH, 3])
    if fault == "no rows":
        rows = []
    if fault == "a row of no tokens":
        rows[1] = rows[1][:0]
    pooling = "no-such-pooling" if fault == "pooling" else "mean"
    message, raw = embed_request(served.session.next_id(), served.model_ref, rows, pooling, True)
    raw = {"too few ids": raw[:-4], "too many ids": raw + raw[-4:]}.get(fault, raw)
    return lambda: served.session.request(message, raw)


def _seeded(bench: Bench) -> ModelUnderTest:
    bench.assume(a_row_is_served)
    if not bench.model.seeded:
        pytest.skip("only a model made by the suite may be spoiled")
    return bench.model


def _config(model: ModelUnderTest) -> dict[str, object]:
    assert model.config_file is not None
    config: dict[str, object] = json.loads(model.config_file.read_text(encoding="utf-8"))
    return config
