"""A model as the host knows it: its files with their digests, how it is computed, and the identity that follows."""

from __future__ import annotations

import json

from synapse_host.hookspecs import BatchPolicy, DType, Pooling, Task
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.model_files.compiled_package import MODEL_FORMAT as MLMODELC
from synapse_host.model_files.gguf_model import MODEL_FORMAT as GGUF
from synapse_host.tokenization.pair_template import PairTemplate
from synapse_host.tokenization.text_prompts import TextPrompts
from synapse_host.values import value_object

#: Compiles each padded length of a model when the host admits it (readings, 8).
DIRECT_ENGINE = "ane-direct-worker"
#: Files of a package set that are no packages: what they were made of.
CHECKPOINT_SUFFIX = ".safetensors"
#: Groups of a model whose backend has measured no policy of its own (original facts, section 4).
DEFAULT_POLICY = BatchPolicy(rows=8, token_budget=3072)


@value_object
class WeightShard:
    """One file of a checkpoint in several: its name in the index, and what was found there."""

    file: str
    path: str
    sha256: str
    size: int


@value_object
class RegisteredModel:
    """One registered model; everything here is stored and survives a restart.

    A format that carries its own configuration has the model file as its config file. With ``shards`` the model file is
    their index; of a package set they are the files beside the first.
    """

    model_id: str
    backend: str
    engine: EngineIdentity
    device_class: str
    task: Task
    family: str
    format: str
    model_path: str
    model_sha256: str
    model_size: int
    tokenizer_path: str
    tokenizer_sha256: str
    config_path: str
    config_sha256: str
    pooling: Pooling
    normalize: bool
    max_tokens: int
    vocab_size: int
    dtype: DType
    quant: str
    kernel_revision: str | None
    manifest_digest: str | None
    numeric_profile_json: str
    numeric_profile_id: str
    fingerprint: str
    #: The backend's measured advice on group sizes; it moves speed, never numbers.
    batch: BatchPolicy
    created_ms: int
    shards: tuple[WeightShard, ...] = ()
    #: The entry whose lane this is; None for a model an operator loaded. Lanes of the catalog are not stored as models.
    catalog_id: str | None = None
    #: What a preload is checked against at load, in the place of a probe; None for any other model.
    profile: str | None = None

    @property
    def pair_template(self) -> PairTemplate:
        """How a model that reranks wants its pairs; part of the numeric profile."""
        return PairTemplate.from_json(json.loads(self.numeric_profile_json)["prompt_template"])

    @property
    def prompts(self) -> TextPrompts:
        """What a model that embeds wants before a text; part of the numeric profile."""
        return TextPrompts.from_json(json.loads(self.numeric_profile_json).get("prefix_template"))

    @property
    def has_config(self) -> bool:
        """Whether there is a config.json."""
        return self.format not in (GGUF, MLMODELC) or self.config_path != self.model_path

    @property
    def checks_itself(self) -> bool:
        """Whether it is held against published figures when it is loaded: a lane of the catalog, or with a profile."""
        return self.catalog_id is not None or bool(self.profile)

    @property
    def certifiable(self) -> bool:
        """Whether its class is certified at all.

        Text from an engine that is not owned is not (reading 28), nor is what checks itself.
        """
        return not self.checks_itself and (self.task != "generate" or self.manifest_digest is not None)

    def runtime_config(self, *, threads: int, packages: str | None = None) -> dict[str, str]:
        """The string pairs of LOAD (reference page of the worker protocol); ``packages`` is a folder for them."""
        config = {"config_path": self.config_path, "config_digest": self.config_sha256} if self.has_config else {}
        pairs = {
            **config,
            "family": self.family,
            "dtype": self.dtype,
            "max_tokens": str(self.max_tokens),
            "pooling": self.pooling,
            "normalize": "true" if self.normalize else "false",
            "operation": self.task,
            "threads": str(threads),
        }
        separator = self.pair_template.separator if self.task == "rerank" else None
        if separator is not None:
            pairs["pair_separator"] = str(separator)
        if self.engine.engine == DIRECT_ENGINE:
            pairs["shape_admission"] = "explicit"
        if packages is not None:
            pairs["package_cache_root"] = packages
        if self.format == MLMODELC:
            archives = [(self.model_path, self.model_sha256)]
            archives += [(file.path, file.sha256) for file in self.shards if not file.file.endswith(CHECKPOINT_SUFFIX)]
            pairs["artifact_paths"] = json.dumps([path for path, _ in archives])
            pairs["artifact_digests"] = json.dumps([sha256 for _, sha256 in archives])
        elif self.shards:
            pairs["shards"] = json.dumps({shard.file: [shard.path, shard.sha256] for shard in self.shards})
        return pairs
