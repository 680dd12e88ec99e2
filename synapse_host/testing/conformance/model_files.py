"""The models the suite loads: tiny ones made from a seed, or the one in a directory the author names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from synapse_host.hookspecs import BackendDescription
from synapse_host.model_files.compiled_package import NAMELESS_FAMILY, read_package_shape
from synapse_host.testing.models.tiny_gguf import write_bert_gguf
from synapse_host.testing.models.tiny_models import TinyBert, tiny_tokenizer, write_safetensors
from synapse_host.testing.models.tiny_rerankers import TinyBertReranker
from synapse_host.testing.models.tiny_static import TinyStatic
from synapse_host.worker_protocol.messages import Load

#: The longest row the suite sends to a model that would take more; the edge after it is then 513 tokens.
LONGEST_ROW = 512
#: Many tokens make a file of 4 MiB, so that a copy of the weights which stays behind is seen in resident memory. More
#: positions than ``LONGEST_ROW``, so that a row past the limit is refused for the limit and not for lack of a position.
SEEDED = TinyBert(1, hidden=32, layers=2, heads=4, intermediate=48, vocab=32_768, positions=520)
#: The model of each family the suite can make one of.
SEEDED_MODELS: Mapping[str, TinyBert | TinyStatic] = MappingProxyType(
    {"bert": SEEDED, "static": TinyStatic(1, hidden=32, vocab=32_768, positions=520)}
)
#: The model that reranks. Its vocabulary is that of the others, so that rows of one are rows of all.
CROSS_ENCODER = TinyBertReranker(3, hidden=32, layers=2, heads=4, intermediate=48, vocab=32_768, positions=520)
CROSS_ENCODER_FAMILY = "bert"
SEEDED_FORMAT = "safetensors-package"
GGUF_FORMAT = "gguf"
#: Families of which it can make one, by format.
SEEDED_FAMILIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {SEEDED_FORMAT: tuple(SEEDED_MODELS), GGUF_FORMAT: ("bert",)}
)
PACKAGE_FORMAT = "mlmodelc"
_WEIGHT_SUFFIXES = (".safetensors", ".gguf")
_PACKAGE_SUFFIX = ".mlmodelc.zip"


class NoModel(Exception):
    """The suite has no model for this backend; the message says what to name with ``--model``."""


@dataclass(frozen=True)
class ModelUnderTest:
    """The files of one model and what the suite must know of it.

    ``vocab_size`` is None when no config.json says it. ``seeded`` tells a model of ours from an author's. ``packages``
    are the files beside the first of a package set.
    """

    artifact: Path
    config_file: Path | None
    format: str
    family: str
    vocab_size: int | None
    max_tokens: int
    seeded: bool
    packages: tuple[Path, ...] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the artifact."""
        return _sha256(self.artifact)

    def load_request(self, req_id: str, dtype: str, /, **changes: str) -> Load:
        """A LOAD of this model; ``changes`` replaces ``digest``, ``format`` or pairs of runtime_config."""
        pairs = {
            "family": self.family,
            "dtype": dtype,
            "max_tokens": str(self.max_tokens),
            "operation": "embed",
            "pooling": "mean",
            "normalize": "true",
            "threads": "0",
        }
        if self.config_file is not None:
            pairs |= {"config_path": str(self.config_file), "config_digest": _sha256(self.config_file)}
        if self.format == PACKAGE_FORMAT:
            files = (self.artifact, *self.packages)
            pairs |= {"artifact_paths": json.dumps([str(file) for file in files])}
            pairs |= {"artifact_digests": json.dumps([_sha256(file) for file in files])}
        digest, kind = changes.pop("digest", self.digest), changes.pop("format", self.format)
        return Load(req_id, str(self.artifact), digest, kind, pairs | changes)

    def with_config(self, folder: Path, config: Mapping[str, Any]) -> ModelUnderTest:
        """The same weights under another config.json, which is written into ``folder``."""
        file = folder / "config.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        return replace(self, config_file=file)

    def with_artifact(self, file: Path) -> ModelUnderTest:
        """The same configuration over another weight file."""
        return replace(self, artifact=file)


def seeded_model(folder: Path, description: BackendDescription, seed: int) -> ModelUnderTest:
    """A tiny model of a family the backend serves, written into ``folder``; raises ``NoModel`` when there is none."""
    made = next((name for name in SEEDED_FAMILIES if name in description.model_formats), "")
    family = next((name for name in SEEDED_FAMILIES.get(made, ()) if name in description.families), None)
    if family is None:
        ours = " and ".join(f"{', '.join(families)} in {name}" for name, families in SEEDED_FAMILIES.items())
        raise NoModel(
            f"backend {description.backend!r} serves families {', '.join(description.families) or 'none'} in formats "
            f"{', '.join(description.model_formats) or 'none'}; the suite makes {ours} only: "
            "name a directory with a small model of yours by --model"
        )
    if made == GGUF_FORMAT:
        folder.mkdir(parents=True)
        return _seeded_gguf(folder / "model.gguf", replace(SEEDED, seed=seed))
    return _written(folder, replace(SEEDED_MODELS[family], seed=seed), family)


def seeded_cross_encoder(folder: Path, description: BackendDescription) -> ModelUnderTest | None:
    """A tiny model that reranks, written into ``folder``; None for a backend the suite has none for."""
    fitting = SEEDED_FORMAT in description.model_formats and CROSS_ENCODER_FAMILY in description.families
    if "rerank" not in description.tasks or not fitting:
        return None
    return _written(folder, CROSS_ENCODER, CROSS_ENCODER_FAMILY)


def _written(folder: Path, model: TinyBert | TinyStatic, family: str) -> ModelUnderTest:
    folder.mkdir(parents=True)
    weights, config = folder / "model.safetensors", folder / "config.json"
    write_safetensors(weights, model.tensors())
    config.write_text(json.dumps(model.config()), encoding="utf-8")
    return ModelUnderTest(weights, config, SEEDED_FORMAT, family, model.vocab, LONGEST_ROW, True)


def _seeded_gguf(file: Path, model: TinyBert) -> ModelUnderTest:
    """The same model in the format that carries its own configuration and vocabulary."""
    tokens = list(tiny_tokenizer(model.vocab)["model"]["vocab"])
    write_bert_gguf(file, model.config(), model.tensors(), tokens)
    return ModelUnderTest(file, None, GGUF_FORMAT, "bert", model.vocab, LONGEST_ROW, True)


def model_in(directory: Path, description: BackendDescription) -> ModelUnderTest:
    """The model in ``directory``: one file of weights or a set of packages, and config.json when there is one.

    The family is the config's ``model_type`` where the backend declares it and the first declared one otherwise.
    Raises ``NoModel``.
    """
    if PACKAGE_FORMAT in description.model_formats:
        return _packages_in(directory)
    weights = sorted(path for path in directory.glob("*") if path.suffix in _WEIGHT_SUFFIXES)
    if len(weights) != 1:
        raise NoModel(
            f"--model {str(directory)!r} holds {len(weights)} files of weights ({', '.join(_WEIGHT_SUFFIXES)}); "
            "name a directory with exactly one"
        )
    config_file = directory / "config.json"
    config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.exists() else {}
    declared = config.get("model_type")
    family = declared if declared in description.families else next(iter(description.families), "")
    return ModelUnderTest(
        weights[0],
        config_file if config else None,
        description.model_formats[0],
        family,
        config.get("vocab_size"),
        min(LONGEST_ROW, config.get("max_position_embeddings", LONGEST_ROW)),
        False,
    )


def _packages_in(directory: Path) -> ModelUnderTest:
    """The zipped packages of ``directory``; the first in the order of names is the artifact."""
    packages = sorted(directory.glob(f"*{_PACKAGE_SUFFIX}"))
    if not packages:
        raise NoModel(f"--model {str(directory)!r} holds no {_PACKAGE_SUFFIX}; name a directory with a package set")
    lengths = [_length_of(package) for package in packages]
    first, *others = packages
    return ModelUnderTest(
        first, None, PACKAGE_FORMAT, NAMELESS_FAMILY, None, min(LONGEST_ROW, max(lengths)), False, tuple(others)
    )


def _length_of(package: Path) -> int:
    with package.open("rb") as file:
        return read_package_shape(file).length


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
