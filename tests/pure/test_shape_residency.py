"""Shapes of the Neural Engine: the budget is never passed, nobody is forgotten, and the order is kept."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from synapse_host.lanes.shape_residency import Action, Compile, Evict, Fail, Grant, Limits, Shape, ShapeResidency

GTE, QWEN = "gte", "qwen"
LADDER = (128, 256, 512, 1024, 2048, 4096, 8192)


def residency(**limits: int) -> ShapeResidency:
    made = ShapeResidency(Limits(**limits))
    made.register(GTE, layers=22, smallest=128)
    made.register(QWEN, layers=28, smallest=128)
    return made


def admit(shapes: ShapeResidency, ticket: int, shape: Shape) -> None:
    assert shapes.want(ticket, shape) == [Compile(shape)]
    assert shapes.compiled() == [Grant(ticket)]


def test_requests_for_one_shape_share_one_compilation() -> None:
    shapes = residency()
    wanted = Shape(GTE, 128)
    assert shapes.want(1, wanted) == [Compile(wanted)]
    assert shapes.want(2, wanted) == []
    assert shapes.compiled() == [Grant(1), Grant(2)]
    assert shapes.want(3, wanted) == [Grant(3)]


@pytest.mark.parametrize(("model", "fit"), [(GTE, 4), (QWEN, 3)])
def test_as_many_shapes_fit_as_the_hardware_takes(model: str, fit: int) -> None:
    shapes = residency()
    for ticket, length in enumerate(LADDER[:fit]):
        admit(shapes, ticket, Shape(model, length))
    assert shapes.want(9, Shape(model, LADDER[fit])) == []
    # All are leased: the first to be released goes, and its executables with it.
    assert shapes.release(1) == [Evict(Shape(model, LADDER[1]))]
    assert shapes.evicted() == [Compile(Shape(model, LADDER[fit]))]


def test_the_least_recently_used_goes_and_the_smallest_rung_last() -> None:
    shapes = residency()
    for ticket, length in enumerate(LADDER[:4]):
        admit(shapes, ticket, Shape(GTE, length))
    for ticket in range(4):
        shapes.release(ticket)
    assert shapes.want(10, Shape(GTE, 256)) == [Grant(10)]
    shapes.release(10)
    assert shapes.want(11, Shape(GTE, 2048)) == [Evict(Shape(GTE, 512))]
    shapes.evicted()
    shapes.compiled()
    assert shapes.want(12, Shape(GTE, 4096)) == [Evict(Shape(GTE, 1024))]


def test_what_was_leased_until_now_was_used_last() -> None:
    shapes = residency()
    for ticket, length in enumerate(LADDER[:4]):
        admit(shapes, ticket, Shape(GTE, length))
    for ticket in (0, 3, 2, 1):
        shapes.release(ticket)
    assert shapes.want(9, Shape(GTE, 2048)) == [Evict(Shape(GTE, 1024))]


def test_the_smallest_rung_goes_where_nothing_else_can() -> None:
    shapes = residency(executables=30)
    admit(shapes, 1, Shape(GTE, 128))
    shapes.release(1)
    assert shapes.want(2, Shape(QWEN, 512)) == [Evict(Shape(GTE, 128))]


def test_nobody_takes_a_lease_before_the_head_that_waits_for_room() -> None:
    shapes = residency(executables=30)
    admit(shapes, 1, Shape(GTE, 128))
    assert shapes.want(2, Shape(GTE, 256)) == []
    assert shapes.want(3, Shape(GTE, 128)) == []
    assert shapes.release(1) == [Evict(Shape(GTE, 128))]
    assert shapes.evicted() == [Compile(Shape(GTE, 256))]
    assert shapes.compiled() == [Grant(2)]
    assert shapes.release(2) == [Evict(Shape(GTE, 256))]


def test_a_lease_of_what_is_there_passes_a_compilation() -> None:
    shapes = residency()
    admit(shapes, 1, Shape(GTE, 128))
    assert shapes.want(2, Shape(GTE, 256)) == [Compile(Shape(GTE, 256))]
    assert shapes.want(3, Shape(GTE, 128)) == [Grant(3)]


def test_whoever_stood_behind_the_head_passes_it_once_it_has_its_room() -> None:
    shapes = residency(executables=70)
    for ticket, length in ((1, 128), (2, 256), (3, 512)):
        admit(shapes, ticket, Shape(GTE, length))
    assert shapes.want(4, Shape(GTE, 1024)) == []
    assert shapes.want(5, Shape(GTE, 512)) == []
    assert shapes.release(2) == [Evict(Shape(GTE, 256))]
    assert shapes.evicted() == [Compile(Shape(GTE, 1024)), Grant(5)]


def test_a_failed_compilation_fails_its_waits_alone() -> None:
    shapes = residency()
    shapes.want(1, Shape(GTE, 256))
    shapes.want(2, Shape(QWEN, 128))
    assert shapes.compile_failed("no") == [Fail(1, "no"), Compile(Shape(QWEN, 128))]
    assert shapes.spent == 28


def test_what_can_never_fit_is_refused_at_once() -> None:
    shapes = residency(executables=25)
    (refused,) = shapes.want(1, Shape(QWEN, 128))
    assert isinstance(refused, Fail)
    assert "28" in refused.reason
    assert "25" in refused.reason


def test_the_end_of_the_worker_gives_everything_back_and_fails_every_wait() -> None:
    shapes = residency()
    admit(shapes, 1, Shape(GTE, 128))
    shapes.want(2, Shape(GTE, 256))
    assert shapes.exited("gone") == [Fail(2, "gone")]
    assert (shapes.spent, shapes.resident, shapes.release(1)) == (0, frozenset(), [])
    admit(shapes, 3, Shape(GTE, 256))


def test_what_a_lost_worker_held_is_taken_until_its_process_is_gone() -> None:
    shapes = residency()
    admit(shapes, 1, Shape(GTE, 128))
    shapes.want(2, Shape(GTE, 256))
    assert shapes.worker_lost("lost") == [Fail(2, "lost")]
    assert shapes.spent == 44
    (refused,) = shapes.want(3, Shape(GTE, 128))
    assert isinstance(refused, Fail)
    assert shapes.release(1) == []
    assert shapes.exited("gone") == []
    assert shapes.spent == 0
    admit(shapes, 4, Shape(GTE, 128))


def test_a_model_that_leaves_is_nobodys_victim_and_gives_its_room_back_when_it_is_gone() -> None:
    shapes = residency(executables=40)
    admit(shapes, 1, Shape(GTE, 128))
    assert shapes.want(2, Shape(GTE, 256)) == []
    assert shapes.want(3, Shape(QWEN, 128)) == []
    assert shapes.leaving(GTE, "leaving") == [Fail(2, "leaving")]
    assert shapes.release(1) == []
    (refused,) = shapes.want(4, Shape(GTE, 128))
    assert isinstance(refused, Fail)
    assert shapes.spent == 22
    assert shapes.unloaded(GTE) == [Compile(Shape(QWEN, 128))]
    assert (shapes.spent, shapes.resident) == (28, frozenset())


class AnyOrder(RuleBasedStateMachine):
    """Events in every order, beside a plain account of who waits and who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = residency()
        self.tickets = 0
        self.waiting: dict[int, Shape] = {}
        self.leased: dict[int, Shape] = {}

    def follow(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Grant):
                self.leased[action.ticket] = self.waiting.pop(action.ticket)
            elif isinstance(action, Fail):
                del self.waiting[action.ticket]
            elif isinstance(action, Evict):
                assert action.shape not in self.leased.values()

    @rule(model=st.sampled_from([GTE, QWEN]), length=st.sampled_from(LADDER))
    def want(self, model: str, length: int) -> None:
        self.tickets += 1
        self.waiting[self.tickets] = Shape(model, length)
        self.follow(self.shapes.want(self.tickets, Shape(model, length)))

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.leased)))
        del self.leased[ticket]
        self.follow(self.shapes.release(ticket))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[ticket]
        self.follow(self.shapes.cancel(ticket))

    @precondition(lambda self: self.shapes.compiling)
    @rule(works=st.booleans())
    def compilation_ends(self, works: bool) -> None:
        self.follow(self.shapes.compiled() if works else self.shapes.compile_failed("no"))

    @precondition(lambda self: self.shapes.evicting)
    @rule()
    def eviction_ends(self) -> None:
        self.follow(self.shapes.evicted())

    @rule()
    def worker_ends(self) -> None:
        self.leased.clear()
        self.follow(self.shapes.exited("gone"))
        assert not self.waiting

    @invariant()
    def limits_hold(self) -> None:
        shapes = [*self.shapes.resident, *([self.shapes.compiling] if self.shapes.compiling else [])]
        costs = {GTE: 22, QWEN: 28}
        assert self.shapes.spent == sum(costs[shape.model] for shape in shapes) <= 100
        assert len(shapes) == len(set(shapes)) <= 8
        assert all(sum(shape.model == model for shape in shapes) <= 4 for model in costs)
        assert set(self.leased.values()) <= self.shapes.resident

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """Where somebody waits, something is going on or a lease is out whose end moves the queue."""
        assert not self.waiting or self.shapes.compiling or self.shapes.evicting or self.leased

    def teardown(self) -> None:
        """When everything that goes on ends and every lease is given back, nobody is left waiting."""
        for _ in range(1000):
            if self.shapes.compiling:
                self.follow(self.shapes.compiled())
            elif self.shapes.evicting:
                self.follow(self.shapes.evicted())
            elif self.leased:
                ticket = min(self.leased)
                del self.leased[ticket]
                self.follow(self.shapes.release(ticket))
        assert not self.waiting


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
