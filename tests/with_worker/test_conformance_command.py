"""The command line of the conformance suite, and that its plugin leaves every other run of pytest alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from synapse_host.testing.bad_backends import plain_backend
from synapse_host.testing.bad_backends.planted import edited
from synapse_host.testing.conformance.model_files import SEEDED
from synapse_host.testing.fake_distributions import install_backend
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.pytest_plugin import names_the_suite
from synapse_host.testing.suite_runs import run_suite

SUITE = ("--pyargs", "synapse_host.testing.conformance")
OWN_OPTION = "def pytest_addoption(parser):\n    parser.addoption('--backend', default='theirs')\n"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A folder in which the backend ``plain`` is installed."""
    install_backend(tmp_path / "site", "plain", edited(Path(plain_backend.__file__), "plain", {}))
    return tmp_path / "site"


def test_the_plugin_imports_pytest_and_nothing_else_of_weight() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import synapse_host.testing.pytest_plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["synapse_host", "synapse_host.testing", "synapse_host.testing.pytest_plugin"]


def test_other_projects_keep_their_own_options(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(OWN_OPTION)
    (tmp_path / "test_theirs.py").write_text("def test_it(request):\n    assert request.config.option.backend == 'x'\n")
    run = run_suite("--backend=x", folder=tmp_path)
    assert (run.status, run.passed) == (pytest.ExitCode.OK, ["test_it"]), run.output


def test_an_option_that_the_project_has_too_is_said(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(OWN_OPTION)
    run = run_suite(*SUITE, "--backend", "plain", folder=tmp_path)
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert "subclass synapse_host.testing.conformance.suite.ConformanceSuite" in run.output


def test_the_suite_asks_for_the_name_of_a_backend(tmp_path: Path) -> None:
    run = run_suite(*SUITE, folder=tmp_path)
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert "needs --backend NAME" in run.output


def test_a_class_that_names_no_backend_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from synapse_host.testing.conformance.suite import ConformanceSuite\nclass TestMine(ConformanceSuite): pass\n"
    )
    run = run_suite("-x", folder=tmp_path)
    assert "TestMine.backend is empty; set it to the name of the backend's entry point" in run.output


def test_a_model_of_the_author_is_used_and_not_spoiled(plain: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "mine", SEEDED)
    before = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    run = run_suite(*SUITE, "--backend", "plain", f"--model={tmp_path / 'mine'}", folder=tmp_path, site=plain)
    assert (run.status, run.failed) == (pytest.ExitCode.OK, []), run.output
    assert "only a model made by the suite may be spoiled" in run.output
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()} == before


@pytest.mark.parametrize(("files", "said"), [([], "0 files of weights"), (["a.gguf", "b.safetensors"], "2 files of")])
def test_a_directory_without_one_weight_file_is_refused(
    plain: Path, tmp_path: Path, files: list[str], said: str
) -> None:
    for name in ["notes.txt", *files]:
        (tmp_path / name).write_text("x")
    run = run_suite(*SUITE, "--backend=plain", f"--model={tmp_path}", folder=tmp_path, site=plain)
    assert run.failed == ["test_a_load_announces_dims_and_buckets"], run.output
    assert said in run.output


def test_a_dtype_the_backend_lacks_is_refused(plain: Path, tmp_path: Path) -> None:
    run = run_suite(*SUITE, "--backend=plain", "--dtype=bf16", folder=tmp_path, site=plain)
    assert run.failed == ["test_a_load_announces_dims_and_buckets"], run.output
    assert "does not serve dtype 'bf16'" in run.output


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("synapse_host.testing.conformance", True),
        ("synapse_host.testing.conformance.test_backend", True),
        ("site-packages/synapse_host/testing/conformance/test_backend.py::TestBackend", True),
        ("tests/test_conformance.py", False),
    ],
)
def test_the_suite_is_named_as_a_package_or_as_a_path(argument: str, named: bool) -> None:
    assert names_the_suite(["-q", argument]) is named
