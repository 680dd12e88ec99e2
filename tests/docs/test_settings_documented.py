from __future__ import annotations

import json
import re
from pathlib import Path

from synapse_host.settings import SECTIONS, environment_name, load_settings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
ROW = re.compile(
    r"^\| `(?P<key>\w+\.\w+)` \| `(?P<default>[^`]+)` \| `(?P<variable>\w+)` \| (?P<meaning>[^|]+) \|$", re.M
)
EXAMPLE = re.compile(r"```toml\n(?P<text>.*?)```", re.S)


def test_the_page_holds_every_setting_and_nothing_else() -> None:
    documented = {
        row["key"]: (row["default"], row["variable"], row["meaning"]) for row in ROW.finditer(PAGE.read_text("utf-8"))
    }
    expected = {
        f"{section}.{key}": (json.dumps(field.default), environment_name(section, key), field.description)
        for section, model in SECTIONS.items()
        for key, field in model.model_fields.items()
    }
    assert documented == expected


def test_the_pages_example_is_accepted(tmp_path: Path) -> None:
    example = EXAMPLE.search(PAGE.read_text("utf-8"))
    assert example is not None
    (tmp_path / "synapse.toml").write_text(example["text"])
    settings = load_settings({"SYNAPSE_HOME": str(tmp_path)})
    assert settings.inline.max_items == 32
    assert settings.log.level == "debug"
