"""Models come, go and come again."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest

from synapse_host.testing.conformance.bench import Bench
from synapse_host.testing.conformance.premises import PLAIN_LENGTH, a_model_is_loaded, a_row_is_served, requests_repeat
from synapse_host.testing.conformance.sessions import Refused, Vectors, refusal_of


class LifeCycle:
    """LOAD, UNLOAD and PING."""

    def test_a_load_announces_dims_and_buckets(self, conformance_bench: Bench) -> None:
        conformance_bench.check(a_model_is_loaded)

    def test_an_unloaded_model_is_refused(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(a_row_is_served)
        served = conformance_bench.spare()
        served.session.unload(served.model_ref)
        refusal = refusal_of("an unloaded model", lambda: served.embed(conformance_bench.rows_of([PLAIN_LENGTH])))
        served.reload()
        assert refusal.code == "model_not_loaded", str(refusal)

    def test_unloading_an_unknown_model_is_refused(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(a_row_is_served)
        session = conformance_bench.spare().session
        refusal = refusal_of("unloading an unknown model", lambda: session.unload("no-such-model"))
        assert refusal.code == "model_not_loaded", str(refusal)

    def test_a_reloaded_model_gives_the_same_vectors(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(requests_repeat)
        before = _vectors(conformance_bench)
        conformance_bench.spare().reload()
        assert _kept(conformance_bench, before, _vectors(conformance_bench)), "a reload changed the vectors"

    def test_a_second_load_leaves_the_first_model_its_vectors(self, conformance_bench: Bench) -> None:
        """The first model may be gone after it; it may not answer with the vectors of the second."""
        conformance_bench.assume(requests_repeat)
        served, rows = conformance_bench.spare(), conformance_bench.rows_of([PLAIN_LENGTH])
        before = served.embed(rows)
        second = served.session.load(conformance_bench.other_model, conformance_bench.dtype)
        others = served.session.embed(second.model_ref, rows)
        after = None
        with suppress(Refused):
            after = served.embed(rows)
        served.session.unload(second.model_ref)
        served.reload()
        assert after is None or _kept(conformance_bench, before, after), "the first model answers as the second does"
        if conformance_bench.other_model != conformance_bench.model:
            assert others.tobytes() != before.tobytes(), "two models of different weights give the same vectors"

    def test_a_ping_counts_the_models(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(a_row_is_served)
        served = conformance_bench.spare()
        loaded = served.session.ping()
        served.session.unload(served.model_ref)
        unloaded = served.session.ping()
        served.reload()
        assert loaded.models_loaded == unloaded.models_loaded + 1
        assert loaded.rss_mb > 0

    def test_an_unloaded_model_lets_go_of_its_file(self, conformance_bench: Bench) -> None:
        conformance_bench.check(the_file_is_let_go)


def the_file_is_let_go(bench: Bench) -> None:
    """After UNLOAD the weight file is neither open in the worker nor mapped."""
    bench.assume(a_row_is_served)
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    served = bench.spare()
    served.embed(bench.rows_of([PLAIN_LENGTH]))
    served.session.unload(served.model_ref)
    held = _held_by(served.session.pid, bench.model.artifact.resolve())
    served.reload()
    assert held == [], f"after UNLOAD the weight file is still {' and '.join(held)}; free it before returning True"


def _held_by(pid: int, file: Path) -> list[str]:
    process = Path("/proc") / str(pid)
    held = ["mapped"] if str(file) in (process / "maps").read_text() else []
    targets = [link.readlink() for link in (process / "fd").iterdir() if link.is_symlink()]
    return [*held, "open"] if file in targets else held


def _vectors(bench: Bench) -> Vectors:
    return bench.spare().embed(bench.rows_of([PLAIN_LENGTH, 3]))


def _kept(bench: Bench, wanted: Vectors, found: Vectors) -> bool:
    return all(bench.promise.kept(a, b) for a, b in zip(wanted, found, strict=True))
