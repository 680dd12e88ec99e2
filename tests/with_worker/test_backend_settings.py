"""What an operator set for a backend reaches its probe, its HELLO and its load, and nobody else's."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from synapse_host.backends.backend_settings import parse_settings, setting_arguments
from synapse_host.backends.capability import probe_all, probe_backend
from synapse_host.backends.discovery import list_backends
from synapse_host.backends.loaded_plugin import load_plugin
from synapse_host.settings import load_settings
from synapse_host.socket_paths import worker_socket_path
from synapse_host.supervision.launch import launch
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.fake_distributions import backend_source, install_backend

TOLD = {"allow_cpu": "true"}


def asking_source(name: str) -> str:
    """A backend whose description, evidence and refusal to load repeat what it was told."""
    source = backend_source(name, "def synapse_describe():", "def synapse_describe(settings):")
    source = source.replace('build_flags={"kind": "fake"}', "build_flags=dict(settings)")
    source = source.replace("def synapse_probe_capability():", "def synapse_probe_capability(settings):")
    source = source.replace('observed={"cores": 2}', 'observed={"cores": 2, "told": dict(settings)}')
    source = source.replace("def synapse_load(spec, progress):", "def synapse_load(progress, settings, spec):")
    return source.replace("raise NotImplementedError", "raise NotImplementedError(dict(settings))", 1)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    install_backend(folder, "asking", asking_source("asking"))
    install_backend(folder, "plain", backend_source("plain"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(folder), *sys.path]))
    return folder


def test_settings_survive_a_command_line() -> None:
    settings = {"b": "two words = x", "a": ""}
    arguments = setting_arguments(settings)
    assert arguments == ["--setting", "a=", "--setting", "b=two words = x"]
    assert parse_settings(arguments[1::2]) == settings


@pytest.mark.parametrize("pair", ["allow_cpu", "=true", ""])
def test_what_is_no_pair_is_refused_by_name(pair: str) -> None:
    with pytest.raises(ValueError, match=f"--setting '{pair}'"):
        parse_settings([pair])


@pytest.mark.parametrize("text", ["1", "true"])
def test_the_switch_of_metal_goes_to_both_metal_backends(text: str, tmp_path: Path) -> None:
    environ = {"SYNAPSE_HOME": str(tmp_path), "SYNAPSE_METAL_ALLOW_CPU": text}
    told = {backend: told for backend, told in load_settings(environ).of_backends.items() if told}
    assert told == {"metal": TOLD, "metal-decode": TOLD}


@pytest.mark.parametrize("text", ["0", "false", ""])
def test_a_setting_left_at_its_default_is_not_passed_on(text: str, tmp_path: Path) -> None:
    environ = {"SYNAPSE_HOME": str(tmp_path), "SYNAPSE_METAL_ALLOW_CPU": text}
    assert not any(load_settings(environ).of_backends.values())


@pytest.mark.anyio
async def test_the_probe_is_told_and_a_report_made_under_other_settings_is_not_believed(
    site: Path, tmp_path: Path
) -> None:
    entry = next(found for found in list_backends() if found.name == "asking")
    for settings in (TOLD, {}, TOLD):
        row = await probe_backend(entry, cache_dir=tmp_path / "cache", settings=settings)
        assert row.description is not None
        assert row.evidence is not None
        assert (row.description.build_flags, row.evidence.observed["told"]) == (settings, settings)


@pytest.mark.anyio
async def test_a_backend_hears_of_its_own_settings_alone(site: Path, tmp_path: Path) -> None:
    rows = await probe_all(cache_dir=tmp_path / "cache", settings={"asking": TOLD, "plain": {"other": "x"}})
    found = {row.backend: row for row in rows}
    assert found["plain"].runnable
    assert found["asking"].description is not None
    assert found["asking"].description.build_flags == TOLD


@pytest.mark.anyio
async def test_hello_repeats_what_the_probe_said(site: Path, tmp_path: Path) -> None:
    spec = WorkerSpec(
        "asking", "w", worker_socket_path(tmp_path, "w"), settings=TOLD, accept_deadline_s=60, hello_deadline_s=60
    )
    async with anyio.create_task_group() as tasks:
        launched = await launch(spec, tasks)
        assert launched.hello.engine["build_flags"] == TOLD
        launched.stream.close()
        await launched.process.end(own_end=False)


def test_load_is_told_too(site: Path) -> None:
    with pytest.raises(NotImplementedError, match="allow_cpu"):
        load_plugin("asking", TOLD).hook("synapse_load")(spec=None, progress=None)
