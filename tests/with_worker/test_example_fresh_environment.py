"""The example as its users get it: built and installed by pip into an environment made a moment before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_static import TinyStatic

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "third_party_backend"
DEADLINE_S = 200
#: Prints the row of the example, as the host would show it, and where its module came from.
ROW = """
import importlib.util, json, pathlib, sys
import anyio
from synapse_host.backends.backend_row import rows_as_json
from synapse_host.backends.capability import probe_backend
from synapse_host.backends.discovery import list_backends

async def main():
    (entry,) = [entry for entry in list_backends() if entry.name == "example-static"]
    (row,) = rows_as_json([await probe_backend(entry, cache_dir=pathlib.Path(sys.argv[1]))])
    print(json.dumps([row, importlib.util.find_spec("example_static.plugin").origin]))

anyio.run(main)
"""

#: Starts a host of that environment, loads and certifies the table in a folder, and prints what it was served.
SERVED = """
import json, pathlib, sys
from synapse_host.testing.running_host import RunningHost, load_model

with RunningHost(pathlib.Path(sys.argv[1]) / "home") as host, host.client() as client:
    load_model(client, pathlib.Path(sys.argv[2]), engine="example-static", model_id="table")
    answer = client.embed_query("table", "the tide came in")
print(json.dumps([answer.provenance["engine"], answer.vectors.tolist()]))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the environment's folders are named otherwise there"),
]


def run(python: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments], cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the example in it; host and dependencies are borrowed from ours."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    installed = run(python, "-m", "pip", "install", "-q", "--no-deps", str(EXAMPLE), folder=folder)
    if installed.returncode and "SYNAPSE_TEST_REQUIRE" not in os.environ:
        pytest.skip(f"pip found nothing to build a package with: {installed.stderr[-300:]}")
    assert installed.returncode == 0, installed.stderr
    # Not a plain path: ours may hold packages in development, which their own .pth files name.
    (own,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (own / "borrowed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python


def test_it_is_discovered_and_its_evidence_read(python: Path, tmp_path: Path) -> None:
    done = run(python, "-c", ROW, str(tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    row, origin = json.loads(done.stdout)
    assert (row["engine"], row["runnable"]) == ("example-static", True)
    assert row["observed"]["cores"] >= row["required"]["cores"]
    assert Path(origin).is_relative_to(python.parents[1])


def test_it_passes_the_suite_over_real_workers_of_that_environment(python: Path, tmp_path: Path) -> None:
    suite = str(EXAMPLE / "test_example_static.py")
    done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", suite, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_a_host_of_that_environment_certifies_it_and_serves_from_it(python: Path, tmp_path: Path) -> None:
    table = TinyStatic(seed=6, hidden=8, vocab=300, positions=100)
    write_model(tmp_path / "table", table)
    done = run(python, "-c", SERVED, str(tmp_path), str(tmp_path / "table"), folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    engine, vectors = json.loads(done.stdout)
    assert engine == {"engine": "example-static", "version": "0.1.0", "build_flags": {"precision": "f32", "sum": "f64"}}
    assert [len(vector) for vector in vectors] == [table.hidden]
