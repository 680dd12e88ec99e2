"""Where models come from and where they are kept: file, variables of ours, and variables other programs read too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from synapse_host.errors import SettingsInvalid
from synapse_host.settings import Settings, forget_secrets, load_settings


def loaded(home: Path, text: str = "", **environ: str) -> Settings:
    (home / "synapse.toml").write_text(text)
    return load_settings({"SYNAPSE_HOME": str(home), **environ})


def test_the_defaults_are_the_hub_and_a_folder_of_the_cache(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    assert (settings.downloads.endpoint, settings.downloads.mirror) == ("https://huggingface.co", "")
    assert settings.model_cache == tmp_path / "cache" / "models"
    assert settings.cache.max_bytes == 32 * 1024**3
    assert settings.hub_token is None


@pytest.mark.parametrize(
    ("text", "environ", "endpoint"),
    [
        ("", {"HF_ENDPOINT": "https://b"}, "https://b"),
        ("", {"HF_ENDPOINT": ""}, "https://huggingface.co"),
        ('[downloads]\nendpoint = "https://a"\n', {"HF_ENDPOINT": "https://b"}, "https://a"),
        ('[downloads]\nmirror = "http://m"\n', {"HF_ENDPOINT": "https://b"}, "https://b"),
        ('[downloads]\nendpoint = "https://a"\n', {"SYNAPSE_DOWNLOADS_ENDPOINT": "https://c"}, "https://c"),
    ],
)
def test_the_nearest_word_about_the_hub_counts(
    tmp_path: Path, text: str, environ: dict[str, str], endpoint: str
) -> None:
    assert loaded(tmp_path, text, **environ).downloads.endpoint == endpoint


@pytest.mark.parametrize(
    "address", ["ftp://a", "hub.example", "https://", "https://a?x=1", "https://a#b", "http://a:99999", ""]
)
def test_what_is_no_web_address_is_refused_by_name(tmp_path: Path, address: str) -> None:
    with pytest.raises(SettingsInvalid, match=r"downloads\.endpoint"):
        loaded(tmp_path, f'[downloads]\nendpoint = "{address}"\n')


def test_a_relative_cache_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="not an absolute path"):
        loaded(tmp_path, '[cache]\ndirectory = "models"\n')
    assert loaded(tmp_path, '[cache]\ndirectory = "/srv/models"\n').model_cache == Path("/srv/models")


def test_the_token_is_read_once_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = loaded(tmp_path, HF_TOKEN=" hf_secret\n")
    assert settings.hub_token is not None
    assert settings.hub_token.get_secret_value() == "hf_secret"
    assert "hf_secret" not in repr(settings) + str(settings) + settings.model_dump_json()
    assert loaded(tmp_path, HF_TOKEN="  ").hub_token is None
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    forget_secrets()
    assert "HF_TOKEN" not in os.environ
