"""Four ways llama.cpp's process can end, through a real host: one typed error each, then quarantine, others served.

The backend is the plugin itself, its guards taken out, that goes wrong in a way of its own when a prompt says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import EngineCrashed, ProbeRequired
from synapse_host.testing.fake_distributions import install_backend
from synapse_host.testing.models.tiny_gguf import TinyDecoder, write_tiny_decoder
from synapse_host.testing.running_host import RunningHost, load_model

pytestmark = pytest.mark.slow

DECODER = TinyDecoder(seed=4, layers=1)
#: First word of a prompt -> why the worker ended and with what exit.
WAYS = {
    "A": ("exited", "signal SIGABRT"),
    "S": ("exited", "signal SIGSEGV"),
    "K": ("exited", "signal SIGKILL"),
    "H": ("silence", None),
}
PROMPTS = {"A": "A failed assertion", "S": "Segfault", "K": "Killed, as for memory", "H": "Hang"}

HARMFUL = """
import ctypes, os, signal, sys, time
from dataclasses import replace

import numpy as np

from synapse_llama_worker import context, limits, plugin as _plugin
from synapse_llama_worker.plugin import *
from synapse_host.hookspecs import hookimpl

WAYS = {ord(letter): letter for letter in "ASKH"}
_arrays = context.CallArrays
context.CallArrays = lambda library, capacity, sequences: _arrays(library, 4 * capacity, sequences)


@hookimpl
def synapse_describe():
    return replace(_plugin.synapse_describe(), backend="harmful", engine="harmful.worker")


@hookimpl
def synapse_generate(model, prompt, options, progress):
    way = WAYS.get(int(prompt[0]))  # in a byte-level vocabulary the id of a byte is the byte
    print("about to go wrong: " + "-" * 9000 + str(way), file=sys.stderr, flush=True)
    if way == "A":  # more tokens than the batch the context was made with: the library's own assertion
        limits.check_call = limits.check_ids = lambda *_: None
        model.context("none").compute([np.full(2 * model.context("none").limits.batch, 5, np.int32)])
    if way == "S":
        ctypes.string_at(8)
    if way == "K":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "H":
        signal.pause()
    return _plugin.synapse_generate(model, prompt, options, progress)
"""

#: Two minutes of silence are what a worker gets; a test gives it three seconds.
BRIEF_SILENCE = """
from synapse_host.supervision.silence import SilenceWindows
SilenceWindows.__init__.__defaults__ = (600.0, 3.0)
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHost]:
    folder = tmp_path_factory.mktemp("deaths")
    site, brief = folder / "site", folder / "brief"
    site.mkdir()
    brief.mkdir()
    install_backend(site, "harmful", HARMFUL)
    (brief / "sitecustomize.py").write_text(BRIEF_SILENCE, encoding="utf-8")
    write_tiny_decoder(folder / "model", DECODER)
    search = os.pathsep.join(filter(None, [str(brief), str(site), os.environ.get("PYTHONPATH")]))
    with RunningHost(folder / "home", {"PYTHONPATH": search}) as running:
        with running.client() as client:
            for name, engine in (("healthy", "llama"), *((way, "harmful") for way in WAYS)):
                load_model(client, folder / "model", engine=engine, task="generate", model_id=name, certify=False)
        yield running


@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_one_typed_error_and_two_of_them_quarantine(host: RunningHost, way: str) -> None:
    reason, ended = WAYS[way]
    with host.client() as client, host.client() as other:
        well = other.generate("healthy", "the", max_tokens=4).text
        assert client.generate(way, "well", max_tokens=4).text == other.generate("healthy", "well", max_tokens=4).text
        for _ in range(2):
            crash = crash_of(client, way)
            details = crash.details or {}
            assert (crash.code, crash.error_class, details["reason"]) == ("engine_crashed", "transient", reason)
            assert ended is None or details["exit"] == ended
            assert len(details["output_tail"].encode()) <= 8192
            assert "---" in details["output_tail"]
            assert way != "A" or "GGML_ASSERT" in details["output_tail"]
            assert other.generate("healthy", "the", max_tokens=4).text == well
        with pytest.raises(ProbeRequired):
            client.generate(way, "well", max_tokens=4)
        assert other.generate("healthy", "the", max_tokens=4).text == well
        client.model_unload(way)
        assert client.generate(way, "the", max_tokens=4).text == well


def crash_of(client: Client, way: str) -> EngineCrashed:
    with pytest.raises(EngineCrashed) as crash:
        client.generate(way, PROMPTS[way], max_tokens=4)
    return crash.value


def test_the_healthy_lane_has_no_strike(host: RunningHost) -> None:
    with host.client() as client:
        lanes = client.call("admission.status")["health"]["lanes"]
    (healthy,) = [lane for lane in lanes if lane["model_id"] == "healthy"]
    assert healthy["strikes"] == 0, json.dumps(healthy)
