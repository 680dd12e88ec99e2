"""Checks of preloads that name a profile."""

from __future__ import annotations

import json

from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.catalog_rules.scene import Scene, Stage, check
from synapse_host.testing.models.tiny_catalog import OTHER, TinyCatalog

MINE = "my-other"
PROFILE = f"{OTHER}.{reference_plugin.synapse_describe().engine}"


def settings_of(tiny: TinyCatalog, profile: str | None = PROFILE, catalog_id: str = OTHER, **changes: str) -> str:
    """The TOML of a host that preloads the model of an entry under an id that is not the catalog's."""
    entry = tiny.catalog().entry(catalog_id)
    assert entry is not None
    told = {
        "model_id": MINE,
        "source": "file",
        "path": str(tiny.source(entry, "model.safetensors").parent),
        "engine": "reference",
        "pooling": "cls",
        **({} if profile is None else {"profile": profile}),
        **changes,
    }
    return "[[preload.models]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items())


async def preloaded(scene: Scene) -> list[dict[str, object]]:
    """The rows of ``models.list`` once the preloads of the settings are through."""
    await scene.host.preloads.run(scene.host.settings.preload.models)
    rows: list[dict[str, object]] = (await scene.call("models.list"))["models"]
    return rows


@check("profile_checked", "self_check")
async def a_preload_with_a_profile_is_checked_at_once(stage: Stage) -> None:
    async with stage.scene(config=settings_of(stage.tiny)) as scene:
        (row,) = await preloaded(scene)
        assert (row["profile"], row["certified"]) == (PROFILE, True)


@check("profile_of_engine")
async def a_profile_of_another_engine(stage: Stage) -> None:
    async with stage.scene(config=settings_of(stage.tiny, f"{OTHER}.owned-metal")) as scene:
        assert await preloaded(scene) == []
