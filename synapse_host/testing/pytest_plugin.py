"""The pytest plugin of the backend conformance suite: its options and its fixture.

pytest loads this module in every run of every environment that has the package. So it imports nothing but pytest, and
the options, whose names other projects use too, exist only in a run that names the suite.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from synapse_host.testing.conformance.bench import Bench
    from synapse_host.testing.conformance.subject import Subject

SUITE = "synapse_host.testing.conformance"

pytest.register_assert_rewrite(SUITE)


# Last, so that options of the same name in the conftest.py of a project are there and can be told of.
@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: Sequence[str]) -> None:
    """Add the options to a run that names the suite."""
    if not names_the_suite(args):
        return
    group = parser.getgroup("synapse-host", "conformance of a synapse-host backend")
    try:
        group.addoption("--backend", dest="conformance_backend", metavar="NAME", help="entry-point name of the backend")
        group.addoption(
            "--model", dest="conformance_model", metavar="DIR", type=Path, help="a small model; default: from a seed"
        )
        group.addoption(
            "--dtype", dest="conformance_dtype", choices=("f32", "bf16", "f16"), help="default: the backend's first"
        )
    except (ValueError, argparse.ArgumentError) as taken:
        raise pytest.UsageError(
            f"the options of the suite are this project's own too ({taken}); "
            f"run the suite from another directory or subclass {SUITE}.suite.ConformanceSuite"
        ) from taken


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a run of the suite that names no backend."""
    if hasattr(config.option, "conformance_backend") and not config.option.conformance_backend:
        raise pytest.UsageError(f"{SUITE} needs --backend NAME; synapse-host backends lists the names")


def names_the_suite(args: Sequence[str]) -> bool:
    """Whether a command line asks for the suite, as a package or as a path."""
    return any(SUITE in argument.replace("/", ".").replace("\\", ".") for argument in args)


@pytest.fixture(scope="class")
def conformance_bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The bench of a class of the suite: the backend, its models and its running workers."""
    from synapse_host.testing.conformance.bench import open_bench

    with open_bench(_subject(request), tmp_path_factory.mktemp("conformance")) as bench:
        yield bench


def _subject(request: pytest.FixtureRequest) -> Subject:
    from synapse_host.testing.conformance.subject import Subject

    option = request.config.option
    if not request.cls.backend and hasattr(option, "conformance_backend"):
        return Subject(option.conformance_backend, option.conformance_model, option.conformance_dtype)
    subject: Subject = request.cls.subject()
    return subject
