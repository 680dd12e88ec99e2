"""What a process may have imported by the time it is ready: start-up time and memory are promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "synapse_host"
HTTP_CLIENTS = ("aiohttp", "http.client", "httpx", "httpx2", "requests", "urllib.request", "urllib3")
#: Not paid for before the host accepts (design section 11).
NOT_AT_HOST_START = ("numpy", "openvino", "pytest", "rich", "tokenizers", "typer", *HTTP_CLIENTS)
#: Never in a worker, whatever it does. orjson may be: its 3 ms at the start are earned back in some hundred requests.
NOT_IN_A_WORKER = ("anyio", "openvino", "pydantic", "rich", "sqlalchemy", "sqlmodel", "tokenizers", "typer")
#: A worker says HELLO before it needs numbers.
NOT_AT_WORKER_START = ("numpy", *NOT_IN_A_WORKER, *HTTP_CLIENTS)

_PROGRAM = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(sys.modules)))
"""


def loaded_by(*modules: str) -> set[str]:
    """Names in ``sys.modules`` of a fresh interpreter that imported ``modules``."""
    command = [sys.executable, "-P", "-c", _PROGRAM, *modules]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stderr
    return set(json.loads(outcome.stdout.splitlines()[-1]))


def host_start() -> list[str]:
    """The composition root; while there is none, what the host will certainly start with."""
    if (PACKAGE / "host.py").exists():
        return ["synapse_host.host"]
    modules = sorted(f"synapse_host.server.{path.stem}" for path in (PACKAGE / "server").glob("[!_]*.py"))
    return [*modules, *(["synapse_host.settings"] if (PACKAGE / "settings.py").exists() else [])]


def worker_start() -> list[str]:
    """The two ways a child of the host starts: to serve and to probe."""
    entry = ["synapse_host.worker.__main__"] if (PACKAGE / "worker" / "__main__.py").exists() else []
    return [*entry, "synapse_host.worker.probe"]


def test_there_is_a_host_to_check() -> None:
    assert host_start(), "neither synapse_host.host nor settings and server modules exist: nothing would be checked"


@pytest.mark.parametrize("banned", NOT_AT_HOST_START)
def test_the_host_starts_without(banned: str, host_modules: set[str]) -> None:
    assert banned not in host_modules


@pytest.mark.parametrize("banned", NOT_AT_WORKER_START)
def test_a_worker_starts_without(banned: str, worker_modules: set[str]) -> None:
    assert banned not in worker_modules


@pytest.mark.parametrize("banned", NOT_IN_A_WORKER)
def test_no_module_of_the_worker_imports(banned: str, all_worker_modules: set[str]) -> None:
    assert banned not in all_worker_modules


@pytest.mark.parametrize("banned", ["numpy", "anyio", "pydantic", "orjson"])
def test_the_plugin_contract_costs_no(banned: str, contract_modules: set[str]) -> None:
    assert banned not in contract_modules


def test_a_banned_import_would_be_seen() -> None:
    assert "numpy" in loaded_by("synapse_host.ops.reference_ops")


@pytest.fixture(scope="module")
def host_modules() -> set[str]:
    return loaded_by(*host_start())


@pytest.fixture(scope="module")
def worker_modules() -> set[str]:
    return loaded_by(*worker_start())


@pytest.fixture(scope="module")
def all_worker_modules() -> set[str]:
    modules = [f"synapse_host.worker.{path.stem}" for path in (PACKAGE / "worker").glob("*.py")]
    return loaded_by(*(name for name in modules if not name.endswith("__init__")))


@pytest.fixture(scope="module")
def contract_modules() -> set[str]:
    return loaded_by("synapse_host.hookspecs")
