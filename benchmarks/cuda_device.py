"""One CUDA device in under six minutes: agreement with the reference, kernels against peaks, tokens a second.

    pip install -e . -e plugins/owned_cuda torch transformers && python -m benchmarks.cuda_device

It needs cupy-cuda12x (the plugin brings it), torch for CUDA and transformers. cuda-NAME.json and a page beside it go
into ``docs/evidence``, whole after every finding, so a run that is cut short has still said something. With
``--stand-in`` every part runs in small on NumPy in CuPy's place, with the kernels on the CPU, where there is no GPU: it
shows that the script works, and no figure of it means anything.

Exit status: 0 when everything agreed and ran, 1 when something of ours disagreed, failed or was cut off, 2 when there
is no device to run on, 3 when the whole run had to be stopped. What torch and transformers lack fails nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from synapse_owned_cuda import plugin
from synapse_owned_cuda.device import Device

from benchmarks import cuda_kernels, cuda_parity, cuda_speed
from benchmarks.cuda_evidence import Evidence, part_of, watched

EVIDENCE = Path(__file__).parents[1] / "docs" / "evidence"
#: Seconds of each part, the longest first cut off: 340 in all.
BUDGETS = {"agreement": 100.0, "kernels": 40.0, "checkpoints": 50.0, "speed": 75.0, "transformers": 75.0}
#: Seconds of the whole run, the device's opening included: parts get what is left of the first; the second ends it.
WHOLE, LAST = 345.0, 355.0
NO_DEVICE = 2
_PACKAGES = ("synapse-host", "synapse-host-owned-cuda", "cupy-cuda12x", "torch", "transformers", "numpy")


class NoDevice(Exception):
    """The backend cannot run on this machine; the message says what is missing and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every part, print the page and what failed; returns the exit status."""
    asked = _parser().parse_args(arguments)
    try:
        evidence = measured(asked.stand_in, asked.out)
    except NoDevice as refused:
        sys.stderr.write(f"{refused}; --stand-in tries this script without a GPU\n")
        return NO_DEVICE
    kept = f"{evidence.path}\n" if evidence.path.exists() else "nothing is kept of a stand-in's run without --out\n"
    sys.stdout.write(f"{evidence.page()}\n{kept}")
    failures = evidence.failures()
    sys.stderr.write("".join(f"FAILED {failure}\n" for failure in failures))
    return 1 if failures else 0


def measured(stand_in: bool, out: Path | None = None) -> Evidence:
    """Run every part and return what was found; raises ``NoDevice`` where there is none to run on."""
    began = time.monotonic()
    with ExitStack() as kept:
        folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="synapse-cuda-")))
        facts = _facts(stand_in)
        evidence = Evidence(out or (folder / "evidence" if stand_in else EVIDENCE), facts, stand_in)
        evidence.write()
        kept.enter_context(watched(evidence, LAST))
        device = kept.enter_context(_opened(stand_in, folder))
        _Run(evidence, began + WHOLE).parts(device, stand_in, folder)
    return evidence


class _Run:
    """One run's parts; each ends within its own seconds and those of the whole."""

    def __init__(self, evidence: Evidence, deadline: float) -> None:
        self._evidence, self._deadline = evidence, deadline

    def parts(self, device: Device, stand_in: bool, folder: Path) -> None:
        """All of them, one after another."""
        card = cuda_kernels.known_card(str(self._evidence.device["name"]))
        self._part("agreement", cuda_parity.parity(stand_in, folder))
        for subject in cuda_speed.subjects(stand_in):
            call = cuda_kernels.TINY_CALL if stand_in else cuda_kernels.CALL
            rows = cuda_kernels.kernels(device, subject.shape.config, call, card)
            self._part(f"kernels of {subject.name}", rows, BUDGETS["kernels"] / 2)
        directories: dict[str, Path] = {}
        with part_of(self._evidence, "checkpoints", self._left(BUDGETS["checkpoints"])):
            directories = cuda_speed.write_subjects(stand_in, folder)
        self._part("speed", cuda_speed.ours(stand_in, directories))
        self._part("transformers", cuda_speed.transformers(stand_in, directories))

    def _part(self, name: str, rows: Iterator[dict[str, Any]], seconds: float | None = None) -> None:
        with part_of(self._evidence, name, self._left(BUDGETS[name] if seconds is None else seconds)):
            for row in rows:
                self._evidence.add(name, row)
                sys.stderr.write(f"{name}: {row}\n")

    def _left(self, seconds: float) -> float:
        return min(seconds, self._deadline - time.monotonic())


@contextmanager
def _opened(stand_in: bool, folder: Path) -> Iterator[Device]:
    """The device of the run; of a stand-in, the one every model is loaded on as well."""
    if not stand_in:
        try:
            opened_device = plugin._open_device()
        except Exception as failure:
            raise NoDevice(f"CuPy cannot use the device: {failure}") from failure
        yield opened_device
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
    from synapse_owned_cuda.evidence import judge, read_machine

    from synapse_host.identity.nvidia_gpus import nvidia_gpus

    machine, gpus = read_machine({}), nvidia_gpus()
    verdict, first = judge(machine), machine.gpu
    if verdict.status == "refused" or first is None:
        raise NoDevice(str(verdict.message))
    return {
        "name": first.name,
        "memory MiB": first.memory_mb,
        "compute capability": f"{first.major}.{first.minor}",
        "driver API": machine.driver.api,
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
    parser.add_argument(
        "--out", type=Path, help="folder of the evidence; docs/evidence unless given, nowhere for --stand-in"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
