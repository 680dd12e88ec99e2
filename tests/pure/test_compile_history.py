"""Which waits met a compilation: the running one, one that ended meanwhile, and those nobody remembers."""

from __future__ import annotations

from synapse_host.lanes.compile_history import REMEMBERED, CompileHistory


def test_a_wait_without_a_compilation_met_none() -> None:
    history = CompileHistory()
    assert history.blocking(128, 0.0) is None
    history.began(256, 1.0)
    history.ended(2.0)
    assert history.blocking(128, 2.0) is None
    assert history.blocking(128, 3.0) is None


def test_a_wait_meets_what_is_compiled_and_what_was_compiled_during_it() -> None:
    history = CompileHistory()
    history.began(256, 1.0)
    assert history.blocking(128, 5.0) == 256
    history.ended(6.0)
    assert history.blocking(128, 5.0) == 256
    history.began(512, 7.0)
    assert history.blocking(128, 6.5) == 512


def test_the_latest_is_named() -> None:
    history = CompileHistory()
    for number, shape in enumerate((128, 256, 512)):
        history.began(shape, 10.0 * number)
        history.ended(10.0 * number + 5.0)
    assert history.blocking(1024, 0.0) == 512


def test_more_compilations_than_are_remembered_count_as_met() -> None:
    history = CompileHistory()
    for number in range(REMEMBERED + 1):
        history.began(128, float(number))
        history.ended(number + 0.5)
    assert history.blocking(1024, 0.2) == 128
    past = CompileHistory()
    past.began(128, 0.0)
    past.ended(9.0)
    for _ in range(REMEMBERED):
        past.began(256, 0.0)
        past.ended(0.1)
    # The only one that overlapped is forgotten.
    assert past.blocking(1024, 5.0) == 1024


def test_an_end_without_a_beginning_changes_nothing() -> None:
    history = CompileHistory()
    history.ended(1.0)
    assert history.blocking(128, 0.0) is None
