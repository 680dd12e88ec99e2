"""What the backend says of itself before it serves."""

from __future__ import annotations

from synapse_host.testing.conformance.bench import Bench


class Describing:
    """The describe-and-probe child, and HELLO."""

    def test_the_probe_answers(self, conformance_bench: Bench) -> None:
        row = conformance_bench.rows[0]
        assert row.description is not None, f"{row.reason_detail}: {row.message}\n{row.stderr_tail}"

    def test_two_children_describe_the_same(self, conformance_bench: Bench) -> None:
        conformance_bench.check(the_description_is_stable)

    def test_two_children_ask_for_the_same_floor(self, conformance_bench: Bench) -> None:
        first, second = (row.evidence for row in conformance_bench.described)
        assert (first and first.required) == (second and second.required)

    def test_every_required_fact_is_also_observed(self, conformance_bench: Bench) -> None:
        evidence = conformance_bench.described[0].evidence
        missing = set(evidence.required) - set(evidence.observed) if evidence else set()
        assert missing == set(), "a floor means something only beside what was found"

    def test_hello_repeats_the_description(self, conformance_bench: Bench) -> None:
        """Within the deadlines a real host gives: 5 seconds to connect, 5 more for HELLO."""
        description = conformance_bench.description
        conformance_bench.assume(the_description_is_stable)
        raw = conformance_bench.driver.launch(within_host_deadlines=True)
        raw.hang_up()
        assert raw.hello.engine == {
            "engine": description.engine,
            "version": description.engine_version,
            "build_flags": dict(description.build_flags),
        }
        assert raw.hello.kernel_revision == description.kernel_revision
        assert raw.hello.manifest_digest == description.manifest_digest


def the_description_is_stable(bench: Bench) -> None:
    """Two processes describe the same backend."""
    first, second = (row.description for row in bench.described)
    assert first == second, f"synapse_describe must not change from process to process: {first} is not {second}"
