"""The conformance suite against bad backends: each mistake fails the one test that is named for it, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from synapse_host.testing.bad_backends import plain_backend
from synapse_host.testing.bad_backends.planted import MORE_PLANTED, PLANTED, BadBackend, edited
from synapse_host.testing.conformance.suite import ConformanceSuite
from synapse_host.testing.fake_distributions import backend_source, install_backend
from synapse_host.testing.suite_runs import SuiteRun, run_suite

SUITE = ("--pyargs", "synapse_host.testing.conformance")
PLAIN = Path(plain_backend.__file__)
#: Tests that no plugin can fail: what they ask for is done by the worker itself, whatever the plugin does.
KEPT_BY_THE_WORKER = {
    "test_a_batch_that_does_not_fit_together_is_refused",
    "test_a_busy_worker_ends_with_its_connection",
    "test_a_load_that_names_something_unknown_is_refused",
    "test_a_model_that_is_not_loaded_is_refused",
    "test_a_ping_counts_the_models",
    "test_an_idle_worker_ends_with_its_connection",
    "test_an_unloaded_model_is_refused",
    "test_shutdown_ends_the_worker_after_the_request_in_hand",
    "test_unloading_an_unknown_model_is_refused",
}

Run = Callable[[str], SuiteRun]
AT_ONCE = 3


def run_over(folder: Path, name: str, source: str) -> SuiteRun:
    """The suite over a backend of this source, installed as the only one of its name."""
    install_backend(folder, name, source)
    return run_suite(*SUITE, "--backend", name, folder=folder, site=folder)


def started(planted: Mapping[str, BadBackend], folder: Path) -> Iterator[Run]:
    """Runs over ``planted``: the one that is asked for and the two behind it at once, for much of a run is waiting."""
    runs: dict[str, Future[SuiteRun]] = {}
    names = list(planted)

    def run(name: str) -> SuiteRun:
        # No further ahead: where the tests are shared out, another process asks for the rest.
        for near in names[names.index(name) :][:AT_ONCE]:
            if near not in runs:
                runs[near] = pool.submit(run_over, folder / near, near, planted[near].source(near))
        return runs[name].result()

    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        yield run
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from started(PLANTED, tmp_path_factory.mktemp("twelve"))


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from started(MORE_PLANTED, tmp_path_factory.mktemp("more"))


def test_there_are_twelve_and_each_is_caught_by_another_test() -> None:
    assert len(PLANTED) == 12
    caught_by = [bad.caught_by for bad in (*PLANTED.values(), *MORE_PLANTED.values())]
    assert len(set(caught_by)) == len(caught_by)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTED)
def test_a_bad_backend_fails_the_test_named_for_it(twelve: Run, name: str) -> None:
    run = twelve(name)
    assert run.failed == [PLANTED[name].caught_by], run.output
    assert run.status == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MORE_PLANTED)
def test_one_more_bad_backend_fails_the_test_named_for_it(more: Run, name: str) -> None:
    run = more(name)
    assert run.failed == [MORE_PLANTED[name].caught_by], run.output


def test_the_good_backend_they_are_made_from_passes(tmp_path: Path) -> None:
    run = run_over(tmp_path, "plain", edited(PLAIN, "plain", {}))
    assert (run.status, run.failed) == (pytest.ExitCode.OK, []), run.output
    assert len(run.passed) >= 54
    # Its numbers are its own, its file need not be sound, and it does not rerank: five tests say that they are not
    # for it.
    assert "5 skipped" in run.output


@pytest.mark.slow
def test_a_last_bit_that_moves_in_a_batch_breaks_the_promise_of_equal_bits_alone(tmp_path: Path) -> None:
    edits = {"    return vectors\n": "    return vectors * np.float32(1 + 2**-22) if len(vectors) > 1 else vectors\n"}
    promising = run_over(tmp_path / "promising", "wobbly", edited(PLAIN, "wobbly", edits))
    assert promising.failed == ["test_a_row_is_the_same_alone_and_in_a_batch"], promising.output
    edits["batch_invariant=True"] = "batch_invariant=False"
    honest = run_over(tmp_path / "honest", "wobbly", edited(PLAIN, "wobbly", edits))
    assert (honest.status, honest.failed) == (pytest.ExitCode.OK, []), honest.output


def test_every_test_of_the_suite_has_a_mistake_that_fails_it() -> None:
    tests = {name for name in dir(ConformanceSuite) if name.startswith("test_")}
    caught = {re.sub(r"\[.*", "", bad.caught_by) for bad in (*PLANTED.values(), *MORE_PLANTED.values())}
    assert tests - caught - {"test_the_probe_answers"} == KEPT_BY_THE_WORKER


def test_an_edit_that_finds_no_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="has 'no such text' 0 times"):
        edited(PLAIN, "plain", {"no such text": ""})


def test_a_backend_that_cannot_be_loaded_fails_one_test_and_skips_the_rest(tmp_path: Path) -> None:
    run = run_over(tmp_path, "broken", "import no_such_library")
    assert run.failed == ["test_the_probe_answers"], run.output
    assert "No module named 'no_such_library'" in run.output
    assert run.passed == []


def test_a_backend_that_refuses_the_machine_is_not_failed_for_it(tmp_path: Path) -> None:
    source = backend_source(
        "absent",
        'CapabilityEvidence("ok", required={"cores": 1}, observed={"cores": 2})',
        'CapabilityEvidence("refused", {}, {}, reason="device_missing", message="plug the device in")',
    )
    run = run_over(tmp_path, "absent", source)
    assert (run.status, run.failed) == (pytest.ExitCode.OK, []), run.output
    assert "plug the device in" in run.output


def test_a_backend_of_other_families_is_told_to_name_a_model(tmp_path: Path) -> None:
    run = run_over(tmp_path, "other", edited(PLAIN, "other", {'families=("bert",)': 'families=("mamba",)'}))
    assert run.failed == ["test_a_load_announces_dims_and_buckets"], run.output
    assert "name a directory with a small model of yours by --model" in run.output


def test_an_unknown_backend_is_told_which_there_are(tmp_path: Path) -> None:
    run = run_suite(*SUITE, "--backend", "nosuch", folder=tmp_path)
    assert run.failed == ["test_the_probe_answers"], run.output
    assert "no backend 'nosuch' is installed; there are " in run.output
