"""Generation through the host beside the same library in a process of its own, on the same file and prompts.

The file has the size of a small language model and weights from a seed: speed does not depend on what they say, and
decoding is bound by reading them. The tokens of both sides are held equal.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.result import Bar, Result, Spread
from benchmarks.side_process import SideProcess
from synapse_host.client.blocking_client import Client
from synapse_host.testing.models.tiny_gguf import TinyDecoder, write_tiny_decoder
from synapse_host.testing.running_host import RunningHost, load_model

#: The issue's bars: tokens per second through the host over those in process, and milliseconds on a one-token reply.
LEAST_RATIO = 0.97
MOST_ADDED_MS = 2.0
#: About 75 million weights, 300 MB: what a small model in 4 to 8 bits has to read for a token.
SMALL = TinyDecoder(seed=5, hidden=640, layers=15, heads=8, groups=2, intermediate=2048, positions=1024)
#: Computes next to nothing, so that what is added to a reply is not lost in the noise of the engine.
TINY = TinyDecoder(seed=6, positions=1024)
CONTEXT, MADE, THREADS, WARM_UP = 1024, 64, 2, 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """Tokens to make after a prompt's ids."""

    prompt: list[int]
    tokens: int


@dataclass(frozen=True, slots=True)
class Made:
    """The ids made, and the seconds they took."""

    ids: list[int]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Turn:
    """Seconds one prompt took through the host and in process, and the tokens each made."""

    host: float
    library: float
    tokens: int


def make_library(file: Path) -> Callable[[Wanted], Made]:
    """The library's own class with the host's settings, decoding greedily."""
    from llama_cpp import Llama

    engine = Llama(str(file), n_ctx=CONTEXT, n_threads=THREADS, n_threads_batch=THREADS, flash_attn=True, verbose=False)
    return lambda wanted: _directly(engine, wanted)


def _directly(engine: Any, wanted: Wanted) -> Made:
    started = time.perf_counter()
    engine.reset()
    made: list[int] = []
    for token in engine.generate(wanted.prompt, temp=0.0, reset=True):
        if token == engine.token_eos():
            break
        made.append(token)
        if len(made) == wanted.tokens:
            break
    return Made(made, time.perf_counter() - started)


def measure(prompts: int) -> Result:
    """Each prompt through the host and in process, in turn: ``MADE`` tokens of a small model, one of a tiny one."""
    with tempfile.TemporaryDirectory(prefix="synapse-bench-") as root:
        environment = {"SYNAPSE_WORKER_THREADS": str(THREADS)}
        with RunningHost(Path(root) / "home", environment) as host, host.client() as client:
            long = _turns(client, Path(root) / "small", SMALL, prompts, MADE)
            short = _turns(client, Path(root) / "tiny", TINY, prompts * 10, 1)
    return _result(long, short)


def _turns(client: Client, folder: Path, sizes: TinyDecoder, prompts: int, tokens: int) -> list[_Turn]:
    write_tiny_decoder(folder, sizes)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    load_model(client, folder, engine="llama", task="generate", model_id=folder.name, certify=False)
    texts = [f"{number}: the thing in the ring and another" for number in range(prompts + WARM_UP)]
    with SideProcess(make_library, folder / "model.gguf") as library:
        return [
            _turn(client, library, folder.name, text, Wanted(tokenizer.encode(text).ids, tokens)) for text in texts
        ][WARM_UP:]


def _turn(client: Client, library: Callable[[Wanted], Made], model: str, text: str, wanted: Wanted) -> _Turn:
    started = time.perf_counter()
    reply = client.generate(model, text, max_tokens=wanted.tokens)
    seconds = time.perf_counter() - started
    made = library(wanted)
    if list(reply.generated_token_ids) != made.ids:
        raise ValueError(f"after {text!r} the host made {list(reply.generated_token_ids)} and the library {made.ids}")
    return _Turn(seconds, made.seconds, len(made.ids))


def _result(long: list[_Turn], short: list[_Turn]) -> Result:
    through = Spread.of(turn.tokens / turn.host for turn in long)
    alone = Spread.of(turn.tokens / turn.library for turn in long)
    ratio = Spread.of(turn.library / turn.host for turn in long)
    one = statistics.median(turn.host for turn in short) * 1e3
    one_alone = statistics.median(turn.library for turn in short) * 1e3
    rows = [
        ("through the host, tok/s", through.shown(1)),
        ("the library in process, tok/s", alone.shown(1)),
        ("ratio", ratio.shown(3)),
        ("one token through the host, ms", f"{one:.2f}"),
        ("one token in process, ms", f"{one_alone:.2f}"),
    ]
    figures = {
        "prompts": len(long),
        "host_tok_s": through.median,
        "library_tok_s": alone.median,
        "ratio": ratio.median,
        "one_token_host_ms": one,
        "one_token_library_ms": one_alone,
    }
    bars = (
        Bar("generation through the host over the library in process", ratio.median, LEAST_RATIO, "at least"),
        Bar("added to a one-token reply", one - one_alone, MOST_ADDED_MS, "at most", " ms"),
    )
    about = f"{len(long)} prompts, {MADE} tokens after each by a small model; {len(short)}, one token by a tiny model"
    return Result("generation", about, ("greedy decoding", "median (range)"), rows, figures, bars)
