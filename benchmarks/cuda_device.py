"""One CUDA device in under six minutes: agreement with the reference, kernels against peaks, tokens a second.

    pip install -e . -e plugins/owned_cuda torch transformers && python -m benchmarks.cuda_device

It needs cupy-cuda12x (the plugin brings it), torch for CUDA and transformers. cuda-NAME.json and a page beside it go
into ``docs/evidence``, whole after every finding, so a run that is cut short has still said something. With
``--stand-in`` every part runs in small on NumPy in CuPy's place, with the kernels on the CPU, where there is no GPU: it
shows that the script works, and no figure of it means anything.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from synapse_owned_cuda import plugin
from synapse_owned_cuda.device import Device

from benchmarks import cuda_kernels, cuda_parity, cuda_speed
from benchmarks.cuda_evidence import Evidence, part_of

EVIDENCE = Path(__file__).parents[1] / "docs" / "evidence"
#: Seconds of each part, the longest first cut off: 340 in all.
BUDGETS = {"agreement": 100.0, "kernels": 40.0, "checkpoints": 50.0, "speed": 75.0, "transformers": 75.0}
_PACKAGES = ("synapse-host", "synapse-host-owned-cuda", "cupy-cuda12x", "torch", "transformers", "numpy")


def main(arguments: Sequence[str] | None = None) -> Evidence:
    """Run every part and return what was found."""
    asked = _parser().parse_args(arguments)
    with ExitStack() as kept:
        folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="synapse-cuda-")))
        device = kept.enter_context(_opened(asked.stand_in, folder))
        facts = _facts(asked.stand_in)
        evidence = Evidence(asked.out or (folder / "evidence" if asked.stand_in else EVIDENCE), facts, asked.stand_in)
        evidence.write()
        card = cuda_kernels.known_card(str(facts["name"]))
        _run(evidence, "agreement", cuda_parity.parity(asked.stand_in, folder))
        for subject in cuda_speed.subjects(asked.stand_in):
            call = cuda_kernels.TINY_CALL if asked.stand_in else cuda_kernels.CALL
            rows = cuda_kernels.kernels(device, subject.shape.config, call, card)
            _run(evidence, f"kernels of {subject.name}", rows, BUDGETS["kernels"] / 2)
        directories: dict[str, Path] = {}
        with part_of(evidence, "checkpoints", BUDGETS["checkpoints"]):
            directories = cuda_speed.write_subjects(asked.stand_in, folder)
        _run(evidence, "speed", cuda_speed.ours(asked.stand_in, directories))
        _run(evidence, "transformers", cuda_speed.transformers(asked.stand_in, directories))
        sys.stdout.write(f"{evidence.page()}\n{evidence.path}\n")
    return evidence


def _run(evidence: Evidence, name: str, rows: Iterator[dict[str, Any]], seconds: float | None = None) -> None:
    with part_of(evidence, name, BUDGETS[name] if seconds is None else seconds):
        for row in rows:
            evidence.add(name, row)
            sys.stderr.write(f"{name}: {row}\n")


@contextmanager
def _opened(stand_in: bool, folder: Path) -> Iterator[Device]:
    """The device of the run; of a stand-in, the one every model is loaded on as well."""
    if not stand_in:
        from synapse_owned_cuda.cupy_device import CupyDevice
        from synapse_owned_cuda.driver import read_driver
        from synapse_owned_cuda.evidence import best_place

        yield CupyDevice(best_place(read_driver().gpus))
        return
    from synapse_owned_cuda.cpu_shim.launching import CpuDevice, build_launcher
    from synapse_owned_cuda.cpu_shim.numpy_device import NumpyDevice

    opened = plugin._open_device
    (folder / "launcher").mkdir()
    with CpuDevice(build_launcher(folder / "launcher")) as cpu:
        device = NumpyDevice(cpu)
        plugin._open_device = partial(_same, device)
        try:
            yield device
        finally:
            plugin._open_device = opened


def _same(device: Device) -> Device:
    return device


def _facts(stand_in: bool) -> dict[str, Any]:
    if stand_in:
        return {"name": "stand-in"} | _versions()
    from synapse_owned_cuda.driver import read_driver
    from synapse_owned_cuda.evidence import best_place

    from synapse_host.identity.nvidia_gpus import nvidia_gpus

    driver, gpus = read_driver(), nvidia_gpus()
    first = driver.gpus[best_place(driver.gpus)]
    return {
        "name": first.name,
        "memory MiB": first.memory_mb,
        "compute capability": f"{first.major}.{first.minor}",
        "driver API": driver.api,
        "driver": gpus[0].driver if gpus else "unknown",
    } | _versions()


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Agreement, kernels and speed of the CUDA engine on one GPU.")
    parser.add_argument("--stand-in", action="store_true", help="NumPy and the CPU in the device's place, all in small")
    parser.add_argument("--out", type=Path, help="folder of the evidence; docs/evidence unless given")
    return parser


if __name__ == "__main__":
    main()
