"""What the gate lets in: bytes first, then the predicted start, then the predicted finish."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.admission.admission import Refused, decide_bytes, decide_time, request_bytes
from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.admission.gate import Budget, Gate
from synapse_host.admission.prediction import HEADROOM, DeviceLoad, Prediction, Work, predict
from synapse_host.admission.turn import Turn
from synapse_host.admission.work_class import WorkClass
from synapse_host.errors import DeadlineExceeded, InvalidRequest, QueueFull

INTERACTIVE, BULK, JOB = WorkClass.INTERACTIVE, WorkClass.BULK, WorkClass.JOB
NONE = MappingProxyType(dict.fromkeys(WorkClass, 0))
IDLE = DeviceLoad(permits=1, free=True, running_ms=(), groups=NONE, waiting_ms=NONE)


def busy(
    left: tuple[float, float] = (100.0, 0.0),
    *,
    permits: int = 1,
    waiting: dict[WorkClass, float] | None = None,
    **more: float,
) -> DeviceLoad:
    """A device on which something runs, and ``waiting`` holds one group of so many milliseconds of each class."""
    ms = dict.fromkeys(WorkClass, 0.0) | (waiting or {})
    groups = {work_class: int(held > 0) for work_class, held in ms.items()}
    return DeviceLoad(permits, False, (left,), groups, ms, **more)  # type: ignore[arg-type]


def test_a_free_device_begins_at_once_and_ends_after_the_estimate() -> None:
    assert predict(Work(INTERACTIVE, [25.0]), IDLE) == Prediction(0.0, 0.0, 25.0)


def test_what_runs_counts_with_what_is_left_of_it_stretched() -> None:
    assert predict(Work(INTERACTIVE, [1.0]), busy((100.0, 40.0))).latest_start_ms == pytest.approx(HEADROOM * 100 - 40)
    assert predict(Work(INTERACTIVE, [1.0]), busy((100.0, 900.0))).latest_start_ms == 0.0


def test_what_is_expected_is_not_stretched() -> None:
    load = busy((100.0, 40.0), waiting={INTERACTIVE: 10.0})
    assert predict(Work(INTERACTIVE, [1.0]), load).start_ms == pytest.approx(70.0)


def test_an_interactive_request_waits_for_its_like_and_for_no_bulk_that_just_went() -> None:
    load = busy((0.0, 0.0), waiting={INTERACTIVE: 10.0, BULK: 500.0}, bulk_went_last=True, bulk_ms=100.0)
    assert predict(Work(INTERACTIVE, [1.0]), load).latest_start_ms == pytest.approx(HEADROOM * 10)


@pytest.mark.parametrize(
    ("passed", "aged_ms", "bulk_turns"), [(0, 0.0, 0), (2, 0.0, 1), (0, 240.0, 1), (2, 240.0, 2), (3, 800.0, 2)]
)
def test_bulk_turns_before_an_interactive_request_are_those_the_rule_allows(
    passed: int, aged_ms: float, bulk_turns: int
) -> None:
    load = busy((0.0, 0.0), waiting={INTERACTIVE: 10.0}, passed_over=passed, passed_over_ms=aged_ms, bulk_ms=100.0)
    expected = HEADROOM * (10 + bulk_turns * 100)
    assert predict(Work(INTERACTIVE, [1.0]), load).latest_start_ms == pytest.approx(expected)


def test_time_that_bulk_itself_takes_lets_no_more_bulk_in() -> None:
    load = busy((1000.0, 0.0), waiting={INTERACTIVE: 10.0}, bulk_ms=100.0, bulk_went_last=True)
    one_more = HEADROOM * (1000 + 10 + 100)
    assert predict(Work(INTERACTIVE, [1.0]), load).latest_start_ms == pytest.approx(one_more)
    of_bulk = replace(load, bulk_running=True)
    assert predict(Work(INTERACTIVE, [1.0]), of_bulk).latest_start_ms == pytest.approx(HEADROOM * (1000 + 10))


def test_bulk_reckons_with_bulk_before_it_with_jobs_between_and_with_interactive_passing() -> None:
    load = busy((0.0, 0.0), waiting={BULK: 100.0}, interactive_ms=4.0, interactive_most_ms=5.0)
    assert predict(Work(BULK, [50.0]), load).latest_start_ms == pytest.approx(HEADROOM * (100 + 2 * 3 * 5))
    with_job = busy((0.0, 0.0), waiting={BULK: 100.0}, interactive_ms=4.0, interactive_most_ms=5.0, job_ms=80.0)
    assert predict(Work(BULK, [50.0]), with_job).latest_start_ms == pytest.approx(HEADROOM * (100 + 2 * (2 * 15 + 80)))


def test_what_is_expected_goes_by_the_usual_query_and_what_is_promised_by_the_largest() -> None:
    load = busy((0.0, 0.0), interactive_ms=4.0, interactive_most_ms=5.0)
    told = predict(Work(BULK, [50.0]), load)
    assert (told.start_ms, told.latest_start_ms) == (pytest.approx(3 * 4), pytest.approx(HEADROOM * 3 * 5))


def test_slow_interactive_work_passes_bulk_over_for_its_age_and_one_turn_at_most() -> None:
    load = busy((0.0, 0.0), interactive_ms=200.0, interactive_most_ms=400.0)
    assert predict(Work(BULK, [50.0]), load).latest_start_ms == pytest.approx(HEADROOM * (250 + 400))


def test_the_groups_of_a_request_have_others_between_them() -> None:
    quiet = predict(Work(BULK, [50.0, 50.0, 50.0]), IDLE)
    assert quiet == Prediction(0.0, 0.0, 150.0)
    asked = DeviceLoad(1, True, (), NONE, NONE, interactive_ms=4.0, interactive_most_ms=5.0)
    assert predict(Work(BULK, [50.0] * 3), asked).finish_ms == pytest.approx(150 + 2 * HEADROOM * 15)


def test_two_permits_halve_what_is_ahead() -> None:
    one, two = (predict(Work(INTERACTIVE, [1.0]), busy(permits=permits)).start_ms for permits in (1, 2))
    assert two == pytest.approx(one / 2)


@pytest.mark.parametrize(
    ("size", "in_flight", "reason"), [(1001, 0, "never_fits"), (600, 401, "bytes"), (600, 400, None)]
)
def test_bytes_that_do_not_fit_are_refused_with_both_numbers(size: int, in_flight: int, reason: str | None) -> None:
    refused = decide_bytes(size, in_flight=in_flight, budget=1000)
    assert (refused.reason if refused else None) == reason
    assert refused is None or refused.predicted > refused.limit


@pytest.mark.parametrize(
    ("load", "max_queue_ms", "remaining_ms", "reason"),
    [
        (busy(), 99, 30_000, "queue"),
        (IDLE, 5000, 24, "deadline"),
        (busy(), 5000, 174, "deadline"),
        (busy(), 99, 1, "queue"),
    ],
)
def test_a_time_refusal_says_which_limit_was_passed(
    load: DeviceLoad, max_queue_ms: float, remaining_ms: float, reason: str
) -> None:
    refused = decide_time(Work(INTERACTIVE, [25.0]), load, max_queue_ms=max_queue_ms, remaining_ms=remaining_ms)
    assert isinstance(refused, Refused)
    assert refused.reason == reason
    assert refused.predicted > refused.limit


@given(
    queue=st.floats(0, 10_000),
    remaining=st.floats(-100, 60_000),
    waiting=st.floats(0, 5000),
    work_class=st.sampled_from([INTERACTIVE, BULK]),
    groups=st.lists(st.floats(0.1, 500), min_size=1, max_size=5),
)
def test_what_is_admitted_is_predicted_to_keep_every_limit(
    queue: float, remaining: float, waiting: float, work_class: WorkClass, groups: list[float]
) -> None:
    load = busy(waiting={work_class: waiting}, bulk_ms=90.0, interactive_ms=4.0, interactive_most_ms=9.0)
    decision = decide_time(Work(work_class, groups), load, max_queue_ms=queue, remaining_ms=remaining)
    if isinstance(decision, Prediction):
        assert decision.start_ms <= queue
        assert decision.finish_ms <= remaining


@given(more=st.floats(0, 1000), work_class=st.sampled_from([INTERACTIVE, BULK]))
def test_more_work_ahead_never_makes_the_start_earlier(more: float, work_class: WorkClass) -> None:
    less = predict(Work(work_class, [1.0]), busy(waiting={work_class: 50.0}, bulk_ms=90.0))
    longer = predict(Work(work_class, [1.0]), busy(waiting={work_class: 50.0 + more}, bulk_ms=90.0))
    assert longer.start_ms >= less.start_ms


@pytest.mark.parametrize("groups", [1, 3])
def test_an_idle_device_refuses_by_a_deadline_that_was_named_and_an_estimate_that_is_known(groups: int) -> None:
    def decided(load: DeviceLoad, *, known: bool, named: bool, remaining_ms: float = 1000.0) -> Prediction | Refused:
        work = Work(INTERACTIVE, [60_000.0] * groups, known)
        return decide_time(work, load, max_queue_ms=1e9, remaining_ms=remaining_ms, deadline_named=named)

    assert isinstance(decided(IDLE, known=True, named=True), Refused)
    for known, named in ((False, True), (True, False), (False, False)):
        assert isinstance(decided(IDLE, known=known, named=named), Prediction)
        # Others wait behind a busy device, and its deadline is promised to them.
        assert isinstance(decided(busy(), known=known, named=named), Refused)
        # What nothing could meet is refused at once all the same.
        assert isinstance(decided(IDLE, known=known, named=named, remaining_ms=0.9), Refused)


def test_a_longer_text_costs_its_characters_and_each_item_its_overhead() -> None:
    assert request_bytes(["", "abc"]) == 128 + 131


def budget(deadline_ms: int = 1000, max_queue_ms: int = 1000) -> Budget:
    return Budget(deadline_at=deadline_ms / 1000, deadline_ms=deadline_ms, max_queue_ms=max_queue_ms)


def gate() -> Gate:
    return Gate(byte_budget=1000, clock=lambda: 0.0)


def device(*, running_ms: float | None = None) -> DeviceTurns:
    turns = DeviceTurns(clock=lambda: 0.0)
    if running_ms is not None:
        turns.ask(Turn(lambda: None, estimate_ms=running_ms))
    return turns


def test_the_gate_returns_its_bytes_when_the_block_ends_or_fails() -> None:
    it = gate()
    with it.hold(700):
        assert it.bytes_in_flight == 700
    with pytest.raises(RuntimeError), it.hold(700):
        raise RuntimeError
    assert it.bytes_in_flight == 0


def test_the_gate_refuses_with_both_numbers_and_books_nothing() -> None:
    it = gate()
    with pytest.raises(InvalidRequest) as never:
        it.hold(1001)
    assert never.value.details == {"bytes": 1001, "byte_budget": 1000}
    with it.hold(700), pytest.raises(QueueFull, match="1100 bytes would be in flight and the budget is 1000"):
        it.hold(400)
    assert it.bytes_in_flight == 0


def test_bytes_are_held_until_everyone_who_needs_them_is_done() -> None:
    it = gate()
    with it.hold(700) as hold:
        hold.share()
    assert it.bytes_in_flight == 700
    hold.release()
    assert it.bytes_in_flight == 0


def test_a_deadline_of_one_millisecond_is_refused_with_the_number() -> None:
    with pytest.raises(DeadlineExceeded, match="deadline_ms of 1;"):
        gate().admit(device(), Work(INTERACTIVE, [1.5]), budget(deadline_ms=1))


def test_max_queue_ms_refuses_before_the_deadline_does() -> None:
    with pytest.raises(DeadlineExceeded, match="max_queue_ms of 10;"):
        gate().admit(device(running_ms=25.0), Work(INTERACTIVE, [25.0]), budget(max_queue_ms=10))


@pytest.mark.anyio
async def test_the_groups_of_jobs_wait_for_room_and_leave_half_of_it_to_requests() -> None:
    it, ran = gate(), []

    async def group(size: int, name: str) -> None:
        async with it.executing_group(size):
            ran.append(name)
            assert it.bytes_in_flight <= 1000
            await release.wait()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            release = anyio.Event()
            for name in ("first", "second"):
                tasks.start_soon(group, 300, name)
            await anyio.wait_all_tasks_blocked()
            assert ran == ["first"]
            with it.hold(600):
                assert it.bytes_in_flight == 900
            release.set()
    assert ran == ["first", "second"]
    assert it.bytes_in_flight == 0


@pytest.mark.anyio
async def test_a_group_that_is_given_up_lets_the_next_one_run() -> None:
    it, ran = gate(), []

    async def group(name: str) -> None:
        async with it.executing_group(400):
            ran.append(name)

    with anyio.fail_after(30):
        async with it.executing_group(500), anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as impatient:
                    impatient.start_soon(group, "impatient")
                    await anyio.wait_all_tasks_blocked()
                    tasks.start_soon(group, "next")
                    await anyio.wait_all_tasks_blocked()
                    scope.cancel()
            assert ran == []
            tasks.cancel_scope.cancel()
        async with it.executing_group(5000):
            assert it.bytes_in_flight == 1000
    assert it.bytes_in_flight == 0
