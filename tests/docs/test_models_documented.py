"""The table of models names every model_type the host loads, and no other."""

from __future__ import annotations

from pathlib import Path

from synapse_host.model_files.architectures import FAMILY_OF_MODEL_TYPE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "models.md"


def documented_types() -> list[str]:
    rows = [line.split("|")[1].strip() for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    return [cell.strip("`") for cell in rows[2:]]


def test_every_model_type_has_one_row() -> None:
    assert sorted(documented_types()) == sorted(FAMILY_OF_MODEL_TYPE)
