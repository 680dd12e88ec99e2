"""Which models compute on the Neural Engine, and how."""

from __future__ import annotations

import json
from pathlib import Path

from synapse_host.errors import ArtifactInvalid, InvalidRequest
from synapse_host.lanes.shape_residency import Limits
from synapse_host.models.registered_model import DIRECT_ENGINE, RegisteredModel

#: Runs packages that were compiled elsewhere.
PACKAGE_ENGINE = "ane-coreml-worker"
#: The family that is a table of tokens alone.
WITHOUT_LAYERS = "static"
NEURAL_ENGINES = frozenset({DIRECT_ENGINE, PACKAGE_ENGINE})


def on_neural_engine(model: RegisteredModel) -> bool:
    """Whether a model computes there."""
    return model.engine.engine in NEURAL_ENGINES


def admits_shapes(model: RegisteredModel) -> bool:
    """Whether each padded length of a model is compiled, and dropped, by itself."""
    return model.engine.engine == DIRECT_ENGINE


def layers_of(model: RegisteredModel) -> int:
    """Layers of ``model``, by its config.json: what each of its shapes takes of the executables there may be.

    A family without layers has one program.

    Raises:
        ArtifactInvalid: the file is gone, or says no number of layers.
        InvalidRequest: no shape of it could ever be compiled.

    """
    if model.family == WITHOUT_LAYERS:
        return 1
    try:
        layers = json.loads(Path(model.config_path).read_bytes())["num_hidden_layers"]
    except (OSError, ValueError, LookupError, TypeError) as problem:
        raise ArtifactInvalid(
            f"{model.config_path!r} does not say how many layers model {model.model_id!r} has ({problem!r}); restore "
            "the file and load the model again"
        ) from problem
    if not isinstance(layers, int) or isinstance(layers, bool) or layers < 1:
        raise ArtifactInvalid(f"num_hidden_layers of {model.config_path!r} is {layers!r}, not a positive whole number")
    most = Limits().executables
    if layers > most:
        raise InvalidRequest(
            f"model {model.model_id!r} has {layers} layers, and the Neural Engine has room for {most} at a time; load "
            "it on another backend"
        )
    return layers
