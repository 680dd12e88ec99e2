"""Record what Hugging Face transformers computes for the seeded tiny Qwen3 models: the fixture the tests compare with.

Needs torch and transformers, which neither the project nor its tests use::

    python -m venv fixtures-venv
    fixtures-venv/bin/pip install torch transformers -e .
    fixtures-venv/bin/python scripts/make_qwen3_fixtures.py

Writes ``tiny_qwen3_reference.npz`` under tests/fixtures. For each model: token ids of sequences of 1 to 700 tokens,
each run alone and without padding, in float32 and float64; the unit vector of the last row; the logits of two token ids
after the last row; and greedy continuations of prompts in float64. A prompt whose two best logits come closer than
``CLOSE`` at any step is left out, since rounding could turn it.

The float32 numbers are those of transformers as it is. It keeps its norms and angles in float32 even in a model made
double, so for float64 those two are replaced by the same formulas in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, TinyQwen3

TARGET = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "tiny_qwen3_reference.npz"
#: Sequences of each model and their greatest length.
SEQUENCES, LONGEST = 24, 700
#: Prompts of each model, the tokens generated after each, and the least distance of the two best logits.
PROMPTS, GENERATED, CLOSE = 6, 64, 1e-3


def main() -> None:
    """Write the file."""
    arrays: dict[str, np.ndarray] = {}
    for name, tiny in TINY_QWEN3S.items():
        arrays |= {f"{name}/{key}": value for key, value in _arrays(tiny).items()}
    np.savez_compressed(TARGET, **arrays)


def _arrays(tiny: TinyQwen3) -> dict[str, np.ndarray]:
    model = _model(tiny)
    generator = np.random.default_rng(tiny.seed)
    lengths = np.unique(np.linspace(1, min(tiny.positions, LONGEST), SEQUENCES).round().astype(int))
    sequences = [generator.integers(0, tiny.vocab, length).tolist() for length in lengths]
    readout = np.array([tiny.vocab - 2, 7])
    vectors, logits = _outputs(model.float(), sequences, readout)
    _make_double(model, tiny)
    vectors64, logits64 = _outputs(model, sequences, readout)
    prompts, continuations = _greedy(model, generator, tiny)
    return {
        **_packed("", sequences),
        "vectors_f32": vectors.astype(np.float32),
        "vectors_f64": vectors64,
        "readout": readout,
        "logits_f32": logits.astype(np.float32),
        "logits_f64": logits64,
        **_packed("prompt_", prompts),
        "generated": np.array(continuations, dtype=np.uint16),
    }


def _model(tiny: TinyQwen3) -> transformers.Qwen3ForCausalLM:
    config = transformers.Qwen3Config(**tiny.config())
    config._attn_implementation = "eager"
    model = transformers.Qwen3ForCausalLM(config)
    state = {name: torch.from_numpy(tensor) for name, tensor in tiny.tensors().items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - ({"lm_head.weight"} if tiny.tied else set()):
        raise RuntimeError(f"tensors of the two models differ: {missing} missing, {unexpected} unexpected")
    model.tie_weights()
    return model.eval()


def _make_double(model: transformers.Qwen3ForCausalLM, tiny: TinyQwen3) -> None:
    model.double()
    rates = tiny.theta ** (-torch.arange(0, tiny.head_dim, 2, dtype=torch.float64) / tiny.head_dim)

    def angles(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turned = position_ids[0].double()[:, None] * rates
        both = torch.cat([turned, turned], dim=-1)[None]
        return both.cos(), both.sin()

    model.model.rotary_emb.forward = angles
    for module in model.modules():
        if type(module).__name__ == "Qwen3RMSNorm":
            module.forward = functools.partial(_normed, module.weight, tiny.eps)


def _normed(weight: torch.Tensor, eps: float, x: torch.Tensor) -> torch.Tensor:
    return weight * (x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt())


@torch.no_grad()
def _outputs(
    model: transformers.Qwen3ForCausalLM, sequences: Sequence[Sequence[int]], readout: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    vectors, logits = [], []
    for ids in sequences:
        last = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        vectors.append((last / last.norm()).numpy().astype(np.float64))
        logits.append(model.lm_head(last)[torch.from_numpy(readout)].numpy().astype(np.float64))
    return np.stack(vectors), np.stack(logits)


@torch.no_grad()
def _greedy(
    model: transformers.Qwen3ForCausalLM, generator: np.random.Generator, tiny: TinyQwen3
) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and what follows them, each step computed from the whole sequence without a cache."""
    prompts: list[list[int]] = []
    continuations: list[list[int]] = []
    while len(prompts) < PROMPTS:
        prompt = generator.integers(0, tiny.vocab, int(generator.integers(1, 60))).tolist()
        made = _continued(model, prompt)
        if made is not None:
            prompts.append(prompt)
            continuations.append(made)
    return prompts, continuations


def _continued(model: transformers.Qwen3ForCausalLM, prompt: Sequence[int]) -> list[int] | None:
    ids = list(prompt)
    for _ in range(GENERATED):
        two = model(input_ids=torch.tensor([ids])).logits[0, -1].topk(2)
        if two.values[0] - two.values[1] < CLOSE:
            return None
        ids.append(int(two.indices[0]))
    return ids[len(prompt) :]


def _packed(prefix: str, sequences: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    return {
        f"{prefix}ids": np.concatenate([np.asarray(ids, dtype=np.uint16) for ids in sequences]),
        f"{prefix}lengths": np.array([len(ids) for ids in sequences], dtype=np.int32),
    }


if __name__ == "__main__":
    main()
