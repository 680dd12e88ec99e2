"""The backend conformance suite over both Neural Engine backends, their programs run by the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
from synapse_ane.interpreted_runtime import InterpretedRuntime
from synapse_ane.package_maker import make_set_of

from synapse_host.testing.conformance.suite import ConformanceSuite
from synapse_host.testing.models.tiny_models import TinyBert, write_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]

INTERPRETED = {"allow_interpreter": "true"}
TINY = TinyBert(1, hidden=32, layers=1, heads=2, intermediate=48, vocab=400, positions=520)


class InterpretedSuite(ConformanceSuite):
    """The suite without the seventy batches over which memory is watched: minutes for the interpreter."""

    settings = INTERPRETED
    test_embedding_again_needs_no_more_memory = None  # type: ignore[assignment]


class TestAne(InterpretedSuite):
    """Programs of every length, made when a row first needs it."""

    backend = "ane"

    # Eleven loads are eleven compilations of one program; the other backend's loads are watched.
    test_loading_again_needs_no_more_memory = None  # type: ignore[assignment]


class TestAneCoreML(InterpretedSuite):
    """A set of three packages."""

    backend = "ane-coreml"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def a_set(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("set")
        (folder / "made-of").mkdir()
        write_model(folder / "made-of", TINY)
        made = make_set_of(folder / "made-of", folder, (32, 128, 512), InterpretedRuntime())
        assert {each.path.parent for each in made} == {folder}
        cls.model = Path(folder)
