"""Recordings are kept up to a room and made anew after it, and what a model holds on the device stays bounded."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_vulkan import backend as backend_module
from synapse_vulkan import plugin
from synapse_vulkan.opening import open_runtime
from synapse_vulkan.pace import Pace
from synapse_vulkan.recordings import Recordings

from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import TinyBert, write_model

TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=512)
loaded = partial(loaded_model, plugin, max_tokens=512, settings={"allow_software_device": "true"})


class FakeReplay:
    def __init__(self, dispatches: int) -> None:
        self.dispatches = dispatches
        self.closed = False

    def close(self) -> None:
        assert not self.closed, "freed twice"
        self.closed = True


def test_the_one_used_longest_ago_is_freed_first() -> None:
    recordings, made = Recordings(room=10), dict[str, Any]()

    def get(key: str, dispatches: int = 4) -> None:
        recordings.get(key, lambda: made.setdefault(key, FakeReplay(dispatches)))

    get("a")
    get("b")
    get("a")
    get("c")
    assert [name for name, replay in made.items() if replay.closed] == ["b"]
    get("d", 7)
    assert [name for name, replay in made.items() if replay.closed] == ["a", "b", "c"]
    assert (len(recordings), recordings.dispatches) == (1, 7)
    recordings.close()
    assert all(replay.closed for replay in made.values())
    assert recordings.dispatches == 0


def test_one_larger_than_the_room_is_kept_while_it_is_the_last() -> None:
    recordings, large = Recordings(room=10), FakeReplay(99)
    make: Any = lambda: large  # noqa: E731 - the shortest stand-in for a recording
    assert recordings.get("large", make) is large
    assert not large.closed


def live_handles(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What is made on the device from now on less what is destroyed, by kind."""
    device, alive = open_runtime().device, Counter[str]()
    create, destroy = device.create, device.destroy

    def counted_create(kind: str, fields: dict[str, Any]) -> Any:
        alive[kind] += 1
        return create(kind, fields)

    def counted_destroy(kind: str, handle: Any) -> None:
        alive[kind] -= 1
        destroy(kind, handle)

    monkeypatch.setattr(device, "create", counted_create)
    monkeypatch.setattr(device, "destroy", counted_destroy)
    return alive


@pytest.mark.usefixtures("vulkan_device")
def test_many_shapes_hold_no_more_than_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path, TINY)
    # 16 lengths alone and two by two: 32 shapes.
    batches = [batch_of(seeded_rows([length] * rows, 97)) for length in range(8, 256, 16) for rows in (1, 2)]
    with loaded(tmp_path) as model:
        wanted = [plugin.synapse_embed(model, batch, ignore_progress).tobytes() for batch in batches]
    # However busy the machine is, no recording is made anew for it.
    monkeypatch.setattr(Pace, "learn", lambda *arguments: False)
    alive = live_handles(monkeypatch)
    kept = Recordings(room=100)
    monkeypatch.setattr(backend_module, "Recordings", lambda: kept)
    with loaded(tmp_path) as model:
        held = set[tuple[int, int]]()
        for _ in range(3):
            for batch, bits in zip(batches, wanted, strict=True):
                assert plugin.synapse_embed(model, batch, ignore_progress).tobytes() == bits
                assert kept.dispatches <= 100
                assert alive["DescriptorPool"] == alive["CommandPool"] == len(kept)
            held.add((len(kept), open_runtime().device.allocated))
        assert len(held) == 1
        assert 2 <= len(kept) < len(batches) / 2
    assert alive["DescriptorPool"] == alive["CommandPool"] == 0


@pytest.mark.usefixtures("vulkan_device")
def test_a_recording_whose_submissions_take_too_long_is_cut_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock by which the device needs a second where a quarter was expected."""
    from synapse_vulkan import replay as replay_module

    write_model(tmp_path, TINY)
    batch = batch_of(seeded_rows([250] * 4, 97))
    monkeypatch.setattr(open_runtime(), "pace", Pace(4e7))
    with loaded(tmp_path) as model:
        wanted = plugin.synapse_embed(model, batch, ignore_progress)
        few = submissions(model, batch, monkeypatch)
        slow = iter(np.arange(0.0, 1e6, 0.75).tolist())
        with monkeypatch.context() as patch:
            patch.setattr(replay_module.time, "perf_counter", lambda: next(slow))
            plugin.synapse_embed(model, batch, ignore_progress)
        many = submissions(model, batch, monkeypatch)
        found = plugin.synapse_embed(model, batch, ignore_progress)
    assert few < many < 6 * few
    assert found.tobytes() == wanted.tobytes()


def submissions(model: Any, batch: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    device, seen = open_runtime().device, list[Any]()
    submit = device.submit
    with monkeypatch.context() as patch:
        patch.setattr(device, "submit", lambda commands: seen.append(commands) or submit(commands))
        plugin.synapse_embed(model, batch, ignore_progress)
    return len(seen)
