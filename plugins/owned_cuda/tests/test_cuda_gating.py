"""Whether a machine may run the CUDA backend, against drivers compiled to answer what such machines would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from synapse_owned_cuda import evidence, plugin
from synapse_owned_cuda.driver import DriverFacts, Gpu, read_driver
from synapse_owned_cuda.evidence import Machine, judge, read_machine

from synapse_host.backends.description_check import check_description, check_evidence
from synapse_host.errors import SynapseError
from synapse_host.settings import load_settings
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.running_host import RunningHost

FAILED = ("refused", "device_missing", "cuda_driver_failed")
SOURCE = Path(__file__).with_name("fake_libcuda.c")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake driver is a Linux library")
Fake = Callable[..., Path]
#: name: (how the driver is compiled, status, reason, fine word, a word of the message)
DRIVERS: dict[str, tuple[dict[str, int | None], str, str | None, str | None, str]] = {
    "good": ({}, "ok", None, None, "no GPU had run"),
    "the floor itself": ({"API": 12040, "MAJOR": 7, "MINOR": 5}, "ok", None, None, "certify a model"),
    "old driver": ({"API": 12030}, "refused", "device_below_floor", "cuda_driver_too_old", "12030"),
    "old driver that does not start": (
        {"API": 11080, "INIT": 803},
        "refused",
        "device_below_floor",
        "cuda_driver_too_old",
        "update the driver",
    ),
    "the oldest driver there was": ({"API": 1000}, "refused", "device_below_floor", "cuda_driver_too_old", "API 1000"),
    "driver of no version": ({"API": 0}, *FAILED, "its API is 0, which is no version of CUDA"),
    "driver of a negative version": ({"API": -1}, *FAILED, "its API is -1, which is no version of CUDA"),
    "driver of an absurd version": ({"API": 2147483647}, *FAILED, "its API is 2147483647"),
    "card of a negative capability": (
        {"MAJOR": -1},
        *FAILED,
        "'Fake GPU 0' has compute capability -1.9, which is none",
    ),
    "card of an absurd capability": ({"MAJOR": 4096}, *FAILED, "compute capability 4096.9"),
    "card of an absurd minor": ({"MINOR": -5}, *FAILED, "compute capability 8.-5"),
    "card without memory": ({"MEMORY_MB": 0}, *FAILED, "'Fake GPU 0' has 0 MB of memory"),
    "card of absurd memory": ({"MEMORY_MB": 1 << 40}, *FAILED, f"has {1 << 40} MB of memory"),
    "driver that counts backwards": ({"COUNT": -2}, *FAILED, "counts -2 devices"),
    "driver that counts absurdly": ({"COUNT": 2147483647}, *FAILED, "counts 2147483647 devices"),
    "old card": (
        {"MAJOR": 7, "MINOR": 0},
        "refused",
        "device_below_floor",
        "cuda_compute_capability_too_low",
        "Fake GPU 0 has compute capability 7.0",
    ),
    "a new card beside an old one": ({"MAJOR": 7, "MINOR": 4, "COUNT": 2}, "ok", None, None, ""),
    "driver without device": ({"INIT": 100}, "refused", "device_missing", "cuda_no_device", "finds no device"),
    "driver that counts no device": ({"COUNT": 0}, "refused", "device_missing", "cuda_no_device", "finds no device"),
    "driver that does not start": (
        {"INIT": 999},
        "refused",
        "device_missing",
        "cuda_driver_failed",
        "cuInit answered 999",
    ),
    "driver that lacks a call": (
        {"NO_MEMORY_CALL": None},
        "refused",
        "device_missing",
        "cuda_driver_failed",
        "no cuDeviceTotalMem_v2",
    ),
}


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Compiles a driver; returns the folder of its libcuda.so.1."""

    def compile_driver(**answers: int | None) -> Path:
        defines = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in answers.items()]
        library = tmp_path / "libcuda.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, *defines, SOURCE], check=True)
        return tmp_path

    return compile_driver


@pytest.mark.parametrize("name", DRIVERS)
def test_a_driver_is_judged_by_what_it_answers(name: str, fake: Fake) -> None:
    answers, status, reason, detail, word = DRIVERS[name]
    driver = read_driver(str(fake(**answers) / "libcuda.so.1"))
    found = check_evidence(judge(Machine("linux", driver, cupy="14.2.0")), "cuda")
    assert (found.status, found.reason, found.reason_detail) == (status, reason, detail)
    assert word in str(found.message)
    assert set(found.required) <= set(found.observed)


def test_the_evidence_is_that_of_the_contract(fake: Fake) -> None:
    driver = read_driver(str(fake(API=12080, MAJOR=8, MINOR=9) / "libcuda.so.1"))
    observed = judge(Machine("linux", driver, cupy="14.2.0")).observed
    assert observed == {
        "platform": "linux",
        "driver_api": 12080,
        "compute_capability": {"major": 8, "minor": 9},
        "device": "Fake GPU 0",
        "memory_mb": 24 * 1024,
        "devices": 1,
        "cupy": "14.2.0",
    }


def test_without_a_driver_there_is_none() -> None:
    found = judge(Machine("linux", read_driver("libno-such-driver.so.1")))
    assert (found.reason, found.reason_detail) == ("device_missing", "cuda_no_driver")


def test_another_platform_is_refused_first() -> None:
    found = judge(Machine("darwin", DriverFacts(loaded=False)))
    assert found.reason == "not_supported_on_platform"


def test_a_machine_without_cupy_is_refused_last() -> None:
    found = judge(Machine("linux", DriverFacts(True, 12080, (Gpu("new", 8192, 9, 0),))))
    assert (found.reason, found.reason_detail) == ("worker_missing", "cuda_runtime_missing")
    assert "synapse-host[cuda]" in str(found.message)


def test_the_pair_of_settings_stands_in_for_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "cupy_version", lambda: "14.2.0")
    machine = read_machine({"driver_api": "12050", "compute_capability": "8.6"})
    assert machine.gpu is not None
    assert (machine.driver.api, machine.gpu.major, machine.gpu.minor) == (12050, 8, 6)
    found = judge(machine)
    assert found.status == "ok"
    assert "cuda.driver_api" in str(found.message)
    assert "cuda.driver_api" in str(found.observed["device"])
    low = judge(read_machine({"driver_api": "12000", "compute_capability": "8.6"}))
    assert low.reason_detail == "cuda_driver_too_old"


@pytest.mark.parametrize("half", [{"driver_api": "12050"}, {"compute_capability": "8.6"}])
def test_one_of_the_pair_counts_for_nothing(half: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = DriverFacts(True, 12060, (Gpu("real", 8192, 9, 0),))
    monkeypatch.setattr(evidence, "read_driver", lambda: real)
    assert read_machine(half).driver is real


def test_the_verdict_rests_on_what_hides_devices_and_on_the_drivers_library() -> None:
    found = check_evidence(evidence.probe({"driver_api": "12050", "compute_capability": "8.6"}), "cuda")
    assert "CUDA_*" in found.premises.environment
    assert any(name.endswith("libcuda.so.1") for name in found.premises.files) is (sys.platform == "linux")


@pytest.mark.parametrize(
    ("api", "capability", "wrong"),
    [
        ("twelve", "8.6", "driver_api 'twelve'"),
        ("-1", "8.6", "driver_api '-1'"),
        ("12050", "8", "compute_capability '8'"),
        ("12050", "8.6.1", "compute_capability '8.6.1'"),
        ("12050", "٧.٥", "compute_capability '٧.٥'"),  # noqa: RUF001
    ],
)
def test_a_setting_that_is_no_number_refuses_by_its_name_alone(api: str, capability: str, wrong: str) -> None:
    found = check_evidence(evidence.probe({"driver_api": api, "compute_capability": capability}), "cuda")
    assert (found.status, found.reason, found.reason_detail) == ("refused", "worker_missing", "setting_invalid")
    assert str(found.message).startswith(f"cuda.{wrong}")
    name = wrong.partition(" ")[0].upper()
    assert str(found.message).endswith(f"; correct it (in the environment it is SYNAPSE_CUDA_{name})")
    assert str(found.message).count("cuda.") == 1


@pytest.mark.parametrize(
    ("cupy", "detail"),
    [(old, "cuda_runtime_too_old") for old in ("13.6.0", "0.1", "x")] + [("14.0.0rc1", None)],
)
def test_an_old_cupy_is_refused_with_both_versions(cupy: str, detail: str | None) -> None:
    found = judge(Machine("linux", DriverFacts(True, 12080, (Gpu("new", 8192, 9, 0),)), cupy=cupy))
    assert found.reason_detail == detail
    assert detail is None or f"CuPy {cupy} is not of release 14" in str(found.message)


def test_the_pair_comes_from_the_environment_through_the_host(tmp_path: Path) -> None:
    environ = {
        "SYNAPSE_HOME": str(tmp_path),
        "SYNAPSE_CUDA_DRIVER_API": "12050",
        "SYNAPSE_CUDA_COMPUTE_CAPABILITY": "8.6",
    }
    assert load_settings(environ).of_backends["cuda"] == {"driver_api": "12050", "compute_capability": "8.6"}


def test_describing_and_probing_import_no_library() -> None:
    code = (
        "import sys\nfrom synapse_owned_cuda import plugin\n"
        "plugin.synapse_describe()\nplugin.synapse_probe_capability({})\n"
        "assert not {'numpy', 'cupy'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_libraries_that_move_bits_are_in_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    releases = {"cupy-cuda12x": "14.2.0", "nvidia-cuda-nvrtc-cu12": "12.9.86"}

    def version(distribution: str) -> str:
        if distribution not in releases:
            raise PackageNotFoundError(distribution)
        return releases[distribution]

    monkeypatch.setattr(evidence, "version", version)
    flags = evidence.build_flags()
    assert flags == {"virtual_arch": "compute_75", "cupy": "14.2", "cublas": "system", "nvrtc": "12.9"}
    releases["nvidia-cublas-cu12"] = "12.9.1.4"
    assert evidence.build_flags() == {**flags, "cublas": "12.9"}
    releases.clear()
    assert set(evidence.build_flags().values()) == {"compute_75", "none"}


def test_the_description_is_sound() -> None:
    description = check_description(plugin.synapse_describe(), "cuda")
    assert (description.engine, description.device_class, description.platforms) == (
        "owned-cuda",
        "cuda",
        ("linux", "win32"),
    )


def probed(folder: Path | None) -> dict[str, Any]:
    """The answer of the real child, whose loader looks in ``folder`` first."""
    environ = {**os.environ} if folder is None else {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    command = [sys.executable, "-P", "-m", "synapse_host.worker.probe", "cuda"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)["evidence"]
    return answer


@pytest.mark.skipif(evidence.cupy_version() is not None, reason="CuPy is installed, so nothing is missing")
def test_the_real_child_refuses_an_old_card_and_a_good_one_for_want_of_cupy(fake: Fake) -> None:
    assert probed(fake(MAJOR=6, MINOR=1))["reason_detail"] == "cuda_compute_capability_too_low"
    answer = probed(fake())
    assert (answer["reason"], answer["reason_detail"]) == ("worker_missing", "cuda_runtime_missing")
    assert answer["observed"]["driver_api"] == 12040


@pytest.mark.slow
def test_a_load_is_refused_before_a_worker_exists(fake: Fake, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_model(model, TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64), "f32")
    environ = {"LD_LIBRARY_PATH": str(fake(API=12000))}
    with RunningHost(tmp_path / "home", environ) as host, host.client() as client:
        job = client.model_load(source="file", path=str(model), engine="cuda", model_id="tiny")
        with pytest.raises(SynapseError, match="12000") as refused:
            client.wait_for_load(job["job_id"])
    assert refused.value.code == "owned_cuda_unsupported"
    (row,) = (refused.value.details or {})["backends"]
    assert (row["reason"], row["reason_detail"]) == ("device_below_floor", "cuda_driver_too_old")
    assert not any("worker" in line for line in host.output)
