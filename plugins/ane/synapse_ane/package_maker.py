"""Makes a package set of a checkpoint: one zipped ``.mlmodelc`` for each length, and what to tell model.load of them.

    python -m synapse_ane.package_maker MODEL_DIRECTORY OUTPUT_DIRECTORY --lengths 128,256,512 [--task rerank] ...

Compiling needs a Mac. With ``--interpreted`` the set is one for the interpreter, which only a developer's host loads.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from synapse_ane.closed_program import WholeModel, checked, record_whole
from synapse_ane.core_ml_runtime import COMPILED_SUFFIX, CoreMLRuntime
from synapse_ane.device import Device
from synapse_ane.evidence import judge, read_machine
from synapse_ane.program import MAIN, save_package
from synapse_host.hookspecs import Pooling, Task
from synapse_host.model_files.architectures import FAMILY_OF_MODEL_TYPE
from synapse_host.model_files.shard_index import INDEX_SUFFIX, MAX_INDEX_BYTES, read_shard_index
from synapse_host.owned_engine.family_table import family_named
from synapse_host.owned_engine.weights import CheckpointWeights

#: Date of every file in an archive: the same programs make the same bytes.
_NO_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class MadePackage:
    """One archive of a set."""

    path: Path
    sha256: str
    length: int


def make_set(
    model: WholeModel, weights: CheckpointWeights, lengths: Sequence[int], output: Path, runtime: CoreMLRuntime
) -> list[MadePackage]:
    """Write the archives ``tokens-<length>.mlmodelc.zip`` into ``output``, in the order of ``lengths``.

    Raises:
        ValueError: the model cannot be recorded, or for rows of such a length.
        RuntimeError: Core ML does not compile here.

    """
    checked(model, max(lengths))
    output.mkdir(parents=True, exist_ok=True)
    return [_made(model, weights, length, output, runtime) for length in lengths]


def _made(
    model: WholeModel, weights: CheckpointWeights, length: int, output: Path, runtime: CoreMLRuntime
) -> MadePackage:
    name = f"tokens-{length}"
    with tempfile.TemporaryDirectory(dir=output, prefix=".building-") as building:
        package, compiled = Path(building) / f"{name}.mlpackage", Path(building) / f"{name}{COMPILED_SUFFIX}"
        save_package({MAIN: record_whole(model, weights, length)}, package)
        runtime.compile(package, compiled)
        archive = Path(building) / f"{compiled.name}.zip"
        zip_compiled(compiled, archive)
        path = archive.rename(output / archive.name)
    return MadePackage(path, sha256(path.read_bytes()).hexdigest(), length)


def zip_compiled(compiled: Path, archive: Path) -> None:
    """Pack a compiled model as a set wants it: one folder at the top, weights as they are, no dates."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for file in sorted(compiled.rglob("*")):
            if file.is_file():
                entry = zipfile.ZipInfo(f"{compiled.name}/{file.relative_to(compiled).as_posix()}", _NO_DATE)
                entry.external_attr = 0o600 << 16
                packed.writestr(entry, file.read_bytes())


def make_set_of(
    directory: Path,
    output: Path,
    lengths: Sequence[int],
    runtime: CoreMLRuntime,
    *,
    task: Task = "embed",
    pooling: Pooling = "mean",
    kinds: bool = False,
) -> list[MadePackage]:
    """``make_set`` of the checkpoint in ``directory``, in one file of weights or in several with their index.

    Raises:
        ValueError: as ``make_set``, and for a config.json of no family, or an index or files that are not of the other.
        OSError: a file is not there or cannot be written.
        RuntimeError: as ``make_set``.

    """
    config = json.loads((directory / "config.json").read_text("utf-8"))
    family = FAMILY_OF_MODEL_TYPE.get(config.get("model_type"))
    if family is None:
        known = ", ".join(sorted(FAMILY_OF_MODEL_TYPE))
        raise ValueError(f"{directory}: model_type {config.get('model_type')!r} is of no family; known: {known}")
    model = WholeModel(family_named(family), config, task, pooling, kinds)
    weights = _weights_in(directory)
    try:
        return make_set(model, weights, lengths, output, runtime)
    finally:
        weights.close()


def _weights_in(directory: Path) -> CheckpointWeights:
    whole, index = directory / "model.safetensors", directory / f"model{INDEX_SUFFIX}"
    with ExitStack() as files:
        if whole.exists() or not index.exists():
            return CheckpointWeights.open(files.enter_context(whole.open("rb")).fileno(), whole.stat().st_size)
        if index.stat().st_size > MAX_INDEX_BYTES:
            raise ValueError(f"{index} has more than {MAX_INDEX_BYTES} bytes; use the published file")
        read = read_shard_index(index.read_bytes())
        shards = {file: files.enter_context((directory / file).open("rb")).fileno() for file in read.files}
        return CheckpointWeights.open_sharded(read, shards)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the set and print what ``files`` of model.load wants: names beside ``path``, with their digests."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.kinds and options.task != "rerank":
        parser.error("--kinds tells the texts of a pair apart, and --task embed has none; say --task rerank")
    # Before minutes of work that could not be compiled.
    refusal = None if options.interpreted else judge(read_machine()).message
    if refusal is not None:
        parser.error(f"{refusal}; for a set that only the interpreter runs, say --interpreted")
    try:
        made = _made_as_asked(options)
    except (ValueError, OSError, RuntimeError) as refused:
        parser.error(str(refused))
    listed = [{"url": each.path.name, "sha256": each.sha256} for each in made]
    sys.stdout.write(json.dumps({"model": listed[0], "extra": listed[1:]}, indent=2) + "\n")
    return 0


def _made_as_asked(options: argparse.Namespace) -> list[MadePackage]:
    return make_set_of(
        options.model,
        options.output,
        options.lengths,
        Device("interpreter" if options.interpreted else "neural-engine").runtime(),
        task=options.task,
        pooling=options.pooling,
        kinds=options.kinds,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m synapse_ane.package_maker", description=__doc__)
    parser.add_argument("model", type=Path, help="directory with the weights, in one file or several, and config.json")
    parser.add_argument("output", type=Path, help="directory the archives are written to")
    parser.add_argument("--lengths", type=_lengths, default=(128, 256, 512), help="padded lengths, joined by commas")
    parser.add_argument("--task", choices=("embed", "rerank"), default="embed")
    parser.add_argument("--pooling", choices=("mean", "cls", "last"), default="mean")
    parser.add_argument("--kinds", action="store_true", help="tell the two texts of a pair apart (BERT rerankers)")
    parser.add_argument(
        "--interpreted", action="store_true", help="for the interpreter: no Mac needed, none can load it"
    )
    return parser


def _lengths(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts) or len(set(parts)) != len(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of positive, different lengths, such as 128,256,512")
    return tuple(map(int, parts))


if __name__ == "__main__":
    sys.exit(main())
