"""GENERATE on a real worker of the reference backend, against the tokens transformers generated."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.models.recorded_qwen3 import recorded_qwen3
from synapse_host.testing.models.tiny_qwen3 import write_qwen3
from synapse_host.testing.workers.running_worker import PATIENCE_S, generate, running
from synapse_host.worker_protocol.messages import Load, Loaded, Text

pytestmark = pytest.mark.anyio

FIXTURES = Path(__file__).parents[1] / "fixtures"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def test_a_worker_generates_what_transformers_does(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    prompt, wanted = recorded.prompts[1].tolist(), recorded.generated[1].tolist()
    stop = next(place for place in range(8, len(wanted)) if wanted[place] not in wanted[:place])
    write_qwen3(tmp_path, recorded.model, eos_token_id=wanted[stop])
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    pairs = {
        "family": "qwen3",
        "dtype": "f32",
        "max_tokens": "128",
        "operation": "generate",
        "config_path": str(config),
        "config_digest": digest(config),
    }
    spec = WorkerSpec(
        "reference",
        "synapse-reference-m",
        tmp_path / "s.sock",
        accept_deadline_s=PATIENCE_S,
        hello_deadline_s=PATIENCE_S,
    )
    async with running(spec) as worker:
        request = Load("l", str(weights), digest(weights), "safetensors-package", pairs)
        loaded, _ = await worker.request(request, operation="load")
        assert isinstance(loaded, Loaded)
        assert (loaded.dims, loaded.buckets) == (0, None)
        short = await generate(worker, loaded.model_ref, prompt, 5)
        assert short == Text("generate-1", "", len(prompt), 5, "length", wanted[:5])
        ended = await generate(worker, loaded.model_ref, prompt, 60)
        assert ended == Text("generate-1", "", len(prompt), stop, "stop", wanted[:stop])
        with pytest.raises(WorkerRefusal, match="token id 333 of the prompt") as refused:
            await generate(worker, loaded.model_ref, [1, 333], 5)
        assert refused.value.code == "invalid_request"
