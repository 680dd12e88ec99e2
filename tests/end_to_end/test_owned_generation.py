"""Text from an engine of this project's own is certified token by token against the reference before it is served."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import NotCertified, ProbeRequired
from synapse_host.testing.command_runs import run_synapse
from synapse_host.testing.fake_distributions import install_backend
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3, write_qwen3
from synapse_host.testing.running_host import RunningHost, load_model

pytestmark = pytest.mark.slow

#: The cpu plugin, whose every text ends in a token of its own after fifty right ones.
STRAYING = """
from dataclasses import replace

from synapse_host.hookspecs import hookimpl
from synapse_owned_cpu import plugin as _plugin
from synapse_owned_cpu.plugin import *


@hookimpl
def synapse_describe():
    return replace(_plugin.synapse_describe(), backend="straying", engine="straying-cpu")


@hookimpl
def synapse_generate(model, prompt, options, progress):
    made = _plugin.synapse_generate(model, prompt, options, progress)
    if len(made.token_ids) > 50:
        made.token_ids[50] = (made.token_ids[50] + 1) % 200
    return made
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHost]:
    folder = tmp_path_factory.mktemp("owned")
    (folder / "site").mkdir()
    install_backend(folder / "site", "straying", STRAYING)
    for name, end in (("tiny", 258), ("brief", 3)):
        write_qwen3(folder / name, TinyQwen3(5, 32, 1, 4, 2, 8, 48, 259, 300, tied=True))
        config = folder / name / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), "eos_token_id": end}), encoding="utf-8")
    search = os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH")]))
    with RunningHost(folder / "home", {"PYTHONPATH": search}) as running:
        with running.client() as client:
            for model, engine in (("tiny", "cpu"), ("tiny", "straying"), ("brief", "cpu")):
                load_model(
                    client,
                    folder / model,
                    engine=engine,
                    task="generate",
                    model_id=f"{model}-{engine}",
                    dtype="f32",
                    max_tokens=256,
                    certify=False,
                )
        yield running


def probed(client: Client, model: str) -> dict[str, Any]:
    job = client.wait_for_probe(client.probe_start([model])["job_id"])
    outcome: dict[str, Any] = job["lanes"][0]
    return outcome


def test_it_is_refused_then_certified_then_served(host: RunningHost) -> None:
    with host.client() as client:
        with pytest.raises(ProbeRequired):
            client.generate("tiny-cpu", "a", max_tokens=2)
        outcome = probed(client, "tiny-cpu")
        assert (outcome["certified"], outcome["blocking_reason"]) == (True, None)
        evidence = outcome["certification"]["evidence"]["text"]
        assert (evidence["prompts"], evidence["tokens_per_prompt"], evidence["tokens"] > 640) == (20, 64, True)
        assert outcome["performance"]["throughput_tok_s"] > 0
        assert client.generate("tiny-cpu", "a", max_tokens=5).n_gen <= 5
        (row,) = [row for row in client.models_list()["models"] if row["model_id"] == "tiny-cpu"]
        assert (row["task"], row["certified"]) == ("generate", True)


def test_one_token_that_strays_is_found_and_named(host: RunningHost) -> None:
    with host.client() as client:
        outcome = probed(client, "tiny-straying")
        assert (outcome["certified"], outcome["blocking_reason"], outcome["performance"]) == (
            False,
            "token_mismatch",
            None,
        )
        found = outcome["certification"]["evidence"]["first_divergence"]
        assert found["position"] == 50
        assert found["expected_token_ids"][:50] == found["actual_token_ids"][:50]
        assert found["expected_token_ids"][50] != found["actual_token_ids"][50]
        assert found["prompt"]
        with pytest.raises(NotCertified, match="token_mismatch"):
            client.generate("tiny-straying", "a", max_tokens=2)
    shown = run_synapse("probe", "tiny-straying", home=host.home)
    assert shown.returncode != 0
    assert "token_mismatch" in shown.stdout + shown.stderr


def test_a_model_that_ends_its_texts_at_once_shows_nothing(host: RunningHost) -> None:
    with host.client() as client:
        outcome = probed(client, "brief-cpu")
        assert (outcome["certified"], outcome["blocking_reason"]) == (False, "fixture_unavailable")
