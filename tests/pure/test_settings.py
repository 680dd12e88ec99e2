from __future__ import annotations

import os
from pathlib import Path

import pytest

from synapse_host.errors import SettingsInvalid
from synapse_host.settings import load_settings, resolve_paths
from synapse_host.socket_paths import MAX_SOCKET_PATH_BYTES, host_socket_path


def _write(home: Path, text: str) -> dict[str, str]:
    (home / "synapse.toml").write_text(text)
    return {"SYNAPSE_HOME": str(home)}


def test_defaults_without_a_file(tmp_path: Path) -> None:
    settings = load_settings({"SYNAPSE_HOME": str(tmp_path)})
    assert settings.inline.max_items == 64
    assert settings.server.max_frame == 64 * 1024 * 1024
    assert settings.paths.config_file == tmp_path / "synapse.toml"


def test_home_holds_every_file(tmp_path: Path) -> None:
    paths = resolve_paths({"SYNAPSE_HOME": str(tmp_path)})
    for path in (paths.config_file, paths.data_dir, paths.cache_dir, paths.runtime_dir, paths.lock_file):
        assert path.is_relative_to(tmp_path)
    assert paths.host_socket == paths.runtime_dir / "synapse" / "host.sock"


def test_without_home_the_platform_decides() -> None:
    paths = resolve_paths({})
    assert paths.config_file.name == "synapse.toml"
    assert paths.data_dir.is_absolute()


def test_file_sets_and_environment_wins(tmp_path: Path) -> None:
    environ = _write(tmp_path, "[inline]\nmax_items = 10\nmax_tokens = 100\n[log]\nlevel = 'debug'\n")
    settings = load_settings({**environ, "SYNAPSE_INLINE_MAX_ITEMS": "20", "SYNAPSE_SERVER_DRAIN_S": "0.5"})
    assert (settings.inline.max_items, settings.inline.max_tokens) == (20, 100)
    assert settings.server.drain_s == 0.5
    assert settings.log.level == "debug"


def test_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    settings = load_settings({"SYNAPSE_HOME": str(tmp_path), "SYNAPSE_INLINE_MAX_ITEMS": ""})
    assert settings.inline.max_items == 64


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False), ("false", False)])
def test_a_switch_may_be_a_number_of_the_shell(tmp_path: Path, text: str, value: bool) -> None:
    named = {"SYNAPSE_ALIASES_ADMIN_ENABLED": text, "SYNAPSE_MICROLLM_GRAMMAR_ENABLED": text}
    settings = load_settings({"SYNAPSE_HOME": str(tmp_path), **named})
    assert (settings.aliases.admin_enabled, settings.microllm.grammar_enabled) == (value, value)


def test_workers_own_variable_is_no_setting(tmp_path: Path) -> None:
    load_settings({"SYNAPSE_HOME": str(tmp_path), "SYNAPSE_WORKER_ID": "w", "SYNAPSE_TEST_REQUIRE": "cpu"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[inline]\nmax_item = 3\n", ["inline.max_item ", "unknown key", "max_items"]),
        ("[inlin]\nmax_items = 3\n", ["'inlin'", "known sections"]),
        ("knob = 'quiet'\n", ["'knob'"]),
        ("[inline]\nmax_items = '64'\n", ["inline.max_items = '64'"]),
        ("[inline]\nmax_items = true\n", ["inline.max_items = True"]),
        ("[inline]\nmax_items = 0\n", ["inline.max_items = 0", "greater than or equal to 1"]),
        ("[server]\ningress_bytes = 5000\n", ["section server", "5000", "less than one frame"]),
        ("[log]\nlevel = 'loud'\n", ["log.level = 'loud'"]),
        ("inline = 3\n", ["'inline' is 3", "[inline]"]),
        ("[inline\n", ["cannot be read as TOML"]),
    ],
)
def test_wrong_file_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(_write(tmp_path, text))
    message = str(caught.value)
    assert str(tmp_path / "synapse.toml") in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SYNAPSE_INLINE_MAX_ITEM", "3", "SYNAPSE_INLINE_MAX_ITEM is no setting"),
        ("SYNAPSE_INLINE_MAX_ITEMS", "many", "SYNAPSE_INLINE_MAX_ITEMS = 'many'"),
        ("SYNAPSE_HOME", "relative/dir", "'relative/dir'"),
        ("SYNAPSE_CONFIG_FILE", "/no/such/file.toml", "/no/such/file.toml"),
    ],
)
def test_wrong_variable_is_refused_by_name(tmp_path: Path, name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsInvalid, match=words):
        load_settings({"SYNAPSE_HOME": str(tmp_path), name: value})


def test_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"absent\.toml"):
        load_settings({"SYNAPSE_HOME": str(tmp_path)}, tmp_path / "absent.toml")


def test_variable_cannot_smuggle_in_another_key(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid):
        load_settings({"SYNAPSE_HOME": str(tmp_path), "SYNAPSE_INLINE_MAX_ITEMS": "3\nother = 4"})


@pytest.mark.parametrize("length", [20, 80, 81, 82, 83, 84, 300])
def test_socket_path_always_fits_an_address(length: int) -> None:
    runtime_dir = Path("/" + "d" * (length - 1))
    path = host_socket_path(runtime_dir)
    assert len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES
    direct = runtime_dir / "synapse" / "host.sock"
    assert (path == direct) == (len(os.fsencode(direct)) <= MAX_SOCKET_PATH_BYTES)


def test_long_directories_do_not_share_a_socket() -> None:
    assert host_socket_path(Path("/" + "a" * 200)) != host_socket_path(Path("/" + "b" * 200))
