"""An entry whose document has the identity of its tokenizer: it serves with that one, and refuses another."""

from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.testing.catalog_rules.scene import Stage, expect
from synapse_host.testing.models.tiny_catalog import OTHER, write_tiny_catalog
from synapse_host.tokenization.library_tokenizer import sanitized_digest

pytestmark = pytest.mark.anyio
LANE = f"{OTHER}-reference"


@pytest.mark.parametrize("other", [False, True])
async def test_the_tokenizer_that_is_read_is_the_one_the_pin_names(tmp_path: Path, other: bool) -> None:
    tiny = write_tiny_catalog(tmp_path / "tiny")
    entry = tiny.catalog().entry(OTHER)
    assert entry is not None
    own = sanitized_digest(tiny.source(entry, "tokenizer.json").read_bytes())
    before = {row.backend: row.fingerprint for row in entry.backends}["reference"]
    tiny.take_tokenizer(OTHER, "0" * 64 if other else own)
    async with Stage(tiny).scene(OTHER) as scene:
        pin = scene.pin(LANE)
        assert pin != before
        if not other:
            assert (await scene.embed(OTHER))["fingerprint"] == pin
            return
        refusal = await scene.not_embedded(OTHER)
        actual = (refusal.details or {})["actual_fingerprint"]
        expect(refusal, "artifact_invalid", model_id=LANE, expected_fingerprint=pin, actual_fingerprint=actual)
        assert scene.workers_started == 0
