"""A backend module with every hook of the worker, as source text: ``fake_engine`` grown by what it leaves out.

As there, a token of ``FULL_TRICKS`` in the first place makes the engine do what stands beside it; in RERANK it is the
first token of the first candidate, in GENERATE of the prompt. A shape or width of that number does it too.
"""

from __future__ import annotations

from synapse_host.testing.workers.fake_engine import FAKE_ENGINE

#: First token, or shape -> what the engine does instead of an honest answer.
FULL_TRICKS = {
    921: "NaN in the last score",
    922: "one score too few",
    923: "scores as float64",
    924: "one token too many",
    925: "half a character",
    926: "a wrong prompt count",
    927: "no Generation",
    928: "no inventory",
    929: "a layer that is no u32",
    930: "does not give up what was compiled",
    931: "a long text",
    932: "a code of its own",
    933: "a long refusal",
    934: "an unknown finish reason",
}

_DECLARED = 'tasks=("embed", "rerank", "generate"), packed=PackedSupport((256, 930), 8)'

_HOOKS = """

from synapse_host.hookspecs import Generation, PackedSupport


def score(row):
    return sum(int(token) for token in row) / 8


def scores_of(rows, first, progress):
    import numpy as np

    trick(first, progress)
    scores = np.array([score(row) for row in rows], dtype=np.float32)
    if first == 921:
        scores[-1] = np.nan
    if first == 922:
        scores = scores[:-1]
    if first == 923:
        scores = scores.astype(np.float64)
    if first == 932:
        raise PluginError("out_of_luck", "no luck today")
    if first == 933:
        raise PluginError("inference_failed", "\\U0001f4a5" * 100_000)
    progress(len(rows), "inference")
    return scores


@hookimpl
def synapse_rerank(model, sequences, progress):
    return scores_of(sequences, int(sequences[0][0]), progress)


@hookimpl
def synapse_rerank_pairs(model, query, candidates, progress):
    first = int(candidates[0][0]) if len(candidates[0]) else 0
    return scores_of([[1, *query, 2, *row, 2] for row in candidates], first, progress)


@hookimpl
def synapse_generate(model, prompt, options, progress):
    first = int(prompt[0])
    trick(first, progress)
    ids = [int(prompt.sum()) + place for place in range(min(3, options["max_tokens"]))]
    if first == 924:
        ids = [1] * (options["max_tokens"] + 1)
    if first == 927:
        return "text"
    text = {925: "\\ud83d", 931: "x" * 100_000}.get(first, f"{options}")
    reason = "exhausted" if first == 934 else "stop"
    for place in range(len(ids)):
        progress(place + 1, "inference")
    return Generation(ids, reason, len(prompt) + (first == 926), text)


def inventory(size):
    if size == 928:
        return {"executables": 7}
    layers = [-1] if size == 929 else [0, 1]
    return {"executables": [{"id": f"program-{size}", "layers": layers}], "cpu_stages": ("tokenize", "pool")}


@hookimpl
def synapse_admit_shape(model, shape, progress):
    progress(1, "control")
    return inventory(shape)


@hookimpl
def synapse_evict_shape(model, shape, progress):
    progress(1, "control")
    return shape != 930


@hookimpl
def synapse_admit_packed(model, width, progress):
    progress(1, "control")
    return inventory(width)


@hookimpl
def synapse_evict_packed(model, width, progress):
    return width != 930


@hookimpl
def synapse_placement(model):
    return 0.75
"""


def full_engine(*, grammar: bool = False, without: tuple[str, ...] = ()) -> str:
    """The module; ``without`` names hooks it leaves out, ``grammar`` makes its models claim to obey grammars."""
    source = FAKE_ENGINE.replace('tasks=("embed",)', _DECLARED) + _HOOKS
    if grammar:
        source = source.replace("    dims = DIMS\n", "    dims = DIMS\n    grammar = True\n")
    for hook in without:
        source = source.replace(f"@hookimpl\ndef {hook}(", f"def _no_{hook}(")
    return source
