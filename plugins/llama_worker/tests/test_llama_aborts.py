"""What ends llama.cpp's process is refused and the worker lives; without the guards it dies with a typed error."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest

from synapse_host.errors import EngineCrashed
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.testing.fake_distributions import install_backend
from synapse_host.testing.gguf_runs import gguf_spec, load_gguf
from synapse_host.testing.models.gguf_file import write_gguf
from synapse_host.testing.models.tiny_gguf import TinyDecoder, write_bert_gguf, write_tiny_decoder
from synapse_host.testing.models.tiny_models import TinyBert, tiny_tokenizer
from synapse_host.testing.workers.running_worker import details_of, embed, generate, rerank, running

pytestmark = pytest.mark.anyio

BERT = TinyBert(7, hidden=32, layers=1, heads=4, intermediate=48, vocab=300, positions=40)
DECODER = TinyDecoder(seed=1, layers=1)

#: The plugin with its checks of calls and ids taken out, as a backend of another name.
UNGUARDED = """
from synapse_llama_worker import context, limits
from synapse_llama_worker.plugin import *
from synapse_llama_worker import plugin as _plugin
from dataclasses import replace
from synapse_host.hookspecs import hookimpl

limits.check_call = limits.check_ids = limits.check_rows = lambda *_: None
_arrays = context.CallArrays
context.CallArrays = lambda library, capacity, sequences: _arrays(library, 4 * capacity, sequences)


@hookimpl
def synapse_describe():
    return replace(_plugin.synapse_describe(), backend="unguarded", engine="unguarded.worker")
"""


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    file = tmp_path / "bert.gguf"
    write_bert_gguf(file, BERT.config(), BERT.tensors(), list(tiny_tokenizer(BERT.vocab)["model"]["vocab"]))
    return file


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    write_tiny_decoder(tmp_path / "decoder", DECODER)
    return tmp_path / "decoder" / "model.gguf"


async def refusal_of(call: Any) -> WorkerRefusal:
    with pytest.raises(WorkerRefusal) as refused:
        await call
    return refused.value


async def test_what_would_abort_an_encoder_is_refused(tmp_path: Path, bert: Path) -> None:
    async with running(gguf_spec(tmp_path, "llama")) as worker:
        model = await load_gguf(worker, bert, "bert", "embed", 40)
        good = await embed(worker, model, [2, 9, 3])
        calls = {
            "a position past the table": [5] * 41,
            "more tokens than a physical batch": [5] * 600,
            "an id past the vocabulary": [5, 300],
            "the largest id": [5, 2**31 - 1],
            "a negative id": [5, -1],
        }
        for name, row in calls.items():
            refusal = await refusal_of(embed(worker, model, [5, 6], row))
            assert refusal.code == "invalid_request", name
            assert refusal.message.startswith('item "1": '), name
        assert (await refusal_of(rerank(worker, model, [5], [6]))).code == "operation_mismatch"
        assert await embed(worker, model, [2, 9, 3]) == good


async def test_what_would_abort_a_decoder_is_refused(tmp_path: Path, decoder: Path) -> None:
    async with running(gguf_spec(tmp_path, "llama")) as worker:
        model = await load_gguf(worker, decoder, "llama", "generate", 64)
        good = await generate(worker, model, [5, 6, 7], 8)
        assert good.n_gen == len(good.generated_token_ids or [])
        # The grammar that a sampler of the library dereferences as a null pointer.
        refusal = await refusal_of(generate(worker, model, [5], 4, grammar="root ::= ((("))
        assert refusal.code == "unsupported_request"
        for prompt, most in (([5] * 64, 1), ([5] * 60, 5), ([5] * 5000, 1), ([266], 4), ([-1], 4)):
            assert (await refusal_of(generate(worker, model, prompt, most))).code == "invalid_request"
        assert await generate(worker, model, [5, 6, 7], 8) == good


def spoil_file(decoder: Path, spoil: str) -> None:
    data = decoder.read_bytes()
    values = DECODER.values()
    if spoil == "no vocabulary":
        write_gguf(decoder, values | {"tokenizer.ggml.model": "none"}, DECODER.tensors())
    elif spoil == "twice the same token":
        tokens = [*DECODER.tokens[:-2], DECODER.tokens[0], DECODER.tokens[-1]]
        write_gguf(decoder, values | {"tokenizer.ggml.tokens": tokens}, DECODER.tensors())
    else:
        name = b"blk.0.attn_norm.weight"
        at = data.index(name) + len(name) + 4 + 8 + 4
        spoiled = {
            "cut": data[: len(data) // 2],
            "magic": b"GGUX" + data[4:],
            "offset": data[:at] + struct.pack("<Q", 2**50) + data[at + 8 :],
            "counts": data[:16] + struct.pack("<Q", 2**62) + data[24:],
        }
        decoder.write_bytes(spoiled[spoil])


@pytest.mark.parametrize("spoil", ["cut", "magic", "offset", "counts", "no vocabulary", "twice the same token"])
async def test_a_corrupt_file_is_refused_before_the_engine_reads_it(tmp_path: Path, decoder: Path, spoil: str) -> None:
    spoil_file(decoder, spoil)
    async with running(gguf_spec(tmp_path, "llama")) as worker:
        refusal = await refusal_of(load_gguf(worker, decoder, "llama", "generate", 64))
        assert refusal.code == "artifact_invalid"
        assert "published" in refusal.message
        write_tiny_decoder(decoder.parent, DECODER)
        await load_gguf(worker, decoder, "llama", "generate", 64)


async def test_a_file_the_engine_refuses_is_told_in_its_words(tmp_path: Path, decoder: Path) -> None:
    """Whole, and missing a tensor: the header proves nothing about what an architecture needs."""
    tensors = DECODER.tensors()
    del tensors["blk.0.ffn_up.weight"]
    write_gguf(decoder, DECODER.values(), tensors)
    async with running(gguf_spec(tmp_path, "llama")) as worker:
        refusal = await refusal_of(load_gguf(worker, decoder, "llama", "generate", 64))
        assert refusal.code == "artifact_invalid"
        assert "blk.0.ffn_up.weight" in refusal.message


async def test_more_context_than_the_model_has_is_refused(tmp_path: Path, decoder: Path) -> None:
    async with running(gguf_spec(tmp_path, "llama")) as worker:
        refusal = await refusal_of(load_gguf(worker, decoder, "llama", "generate", 257))
        assert (refusal.code, "257 passes the 256" in refusal.message) == ("config_invalid", True)


@pytest.mark.parametrize(("row", "said"), [([5] * 41, "GGML_ASSERT"), ([5] * 600, "encoder requires n_ubatch")])
async def test_without_the_guards_the_process_aborts_and_the_error_says_how(
    tmp_path: Path, bert: Path, row: list[int], said: str
) -> None:
    """The guards are what keeps the process alive, and an abort is one typed error with the last of its output."""
    site = tmp_path / "site"
    site.mkdir()
    install_backend(site, "unguarded", UNGUARDED)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    async with running(gguf_spec(tmp_path, "unguarded", env={"PYTHONPATH": path})) as worker:
        model = await load_gguf(worker, bert, "bert", "embed", 40)
        await embed(worker, model, [2, 9, 3])
        details = details_of(await crash_of(worker, model, row))
        assert details["reason"] == "exited"
        assert "SIGABRT" in str(details["exit"]) or "-6" in str(details["exit"])
        assert said in details["output_tail"]


async def crash_of(worker: Worker, model: str, row: list[int]) -> EngineCrashed:
    with pytest.raises(EngineCrashed) as crash:
        await embed(worker, model, row)
    return crash.value
