"""Progress is a claim about finished work: it keeps a worker alive, so it must be true."""

from __future__ import annotations

from synapse_host.testing.conformance.bench import Bench
from synapse_host.testing.conformance.premises import MANY, a_row_is_served, progress_only_grows
from synapse_host.testing.conformance.refusals import foreign_ids_are_refused, foreign_rows
from synapse_host.testing.conformance.sessions import refusal_of


class Progress:
    """What the plugin says to ``progress``, before the worker judges it or holds it back."""

    def test_progress_only_grows(self, conformance_bench: Bench) -> None:
        conformance_bench.check(progress_only_grows)

    def test_a_load_reports_setup_alone(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(a_row_is_served)
        served = conformance_bench.spare()
        served.reload()
        assert {phase for _, phase in served.session.reports()} <= {"setup"}

    def test_a_batch_of_many_rows_reports_progress(self, conformance_bench: Bench) -> None:
        """A slow machine would otherwise be silent for longer than the host waits."""
        conformance_bench.assume(a_row_is_served)
        _embed_many(conformance_bench)
        assert conformance_bench.shared().session.reports(), f"a batch of {MANY} rows reported nothing"

    def test_the_same_batch_reports_the_same_progress(self, conformance_bench: Bench) -> None:
        """Work is counted, never time. The first run is left out: it may compile."""
        conformance_bench.assume(a_row_is_served)
        first, second = [_embed_many(conformance_bench) for _ in range(3)][1:]
        assert first == second, f"two equal batches reported {first} and {second}"

    def test_a_refused_request_reports_no_work(self, conformance_bench: Bench) -> None:
        """No row of the request can be computed, so nothing can have been finished."""
        conformance_bench.assume(foreign_ids_are_refused)
        served = conformance_bench.spare()
        refusal_of("a negative token id", lambda: served.embed(foreign_rows(-1)))
        done = [completed for completed, phase in served.session.reports() if phase == "inference"]
        assert done == [], f"a request that was refused as a whole reported {done} as finished"


def _embed_many(bench: Bench) -> list[tuple[int, str]]:
    served = bench.shared()
    served.embed(bench.rows_of([length % 32 + 1 for length in range(MANY)], salt=30))
    return served.session.reports()
