"""The shipped kernels are those of the sources, byte for byte."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import pytest
import synapse_vulkan
from synapse_vulkan import evidence, kernel_files, opening, plugin, runtime, spirv_index
from synapse_vulkan.kernel_files import KernelDamaged, read_kernels

from synapse_host.backends.description_check import check_evidence
from synapse_host.hookspecs import PluginError
from synapse_host.owned_engine.kernel_revision import kernel_revision, package_sources
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error

PLUGIN = Path(__file__).parents[1]
BUILD = PLUGIN / "build_spirv.py"


def test_every_kernel_is_shipped_as_the_index_says() -> None:
    found = {path.stem: sha256(path.read_bytes()).hexdigest() for path in kernel_files.SPIRV.glob("*.spv")}
    assert found == spirv_index.SPIRV
    assert set(found) == {path.stem for path in (kernel_files.SPIRV.parent / "shaders").glob("*.comp")}


def test_the_sources_are_those_the_kernels_were_made_from() -> None:
    digest = sha256()
    for source in sorted((kernel_files.SPIRV.parent / "shaders").iterdir()):
        digest.update(f"{source.name}\0{sha256(source.read_bytes()).hexdigest()}\0".encode())
    assert digest.hexdigest() == spirv_index.SOURCES, f"run {BUILD.name}: a shader changed after it was compiled"


SPOILT: Mapping[str, Callable[[Path], object]] = {
    "another": lambda file: file.write_bytes((file.parent / "copy.spv").read_bytes()),
    "cut to an odd length": lambda file: file.write_bytes(file.read_bytes()[:-3]),
    "empty": lambda file: file.write_bytes(b""),
    "missing": Path.unlink,
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.fixture(params=SPOILT)
def spoilt(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of kernels, one of which is not the one of the index."""
    folder = shutil.copytree(kernel_files.SPIRV, tmp_path / "spirv")
    SPOILT[request.param](folder / "mean.spv")
    return folder


def expected_words(folder: Path) -> str:
    file = folder / "mean.spv"
    found = sha256(file.read_bytes()).hexdigest() if file.is_file() else "cannot be read"
    wanted = spirv_index.SPIRV["mean"]
    return rf"{re.escape(str(file))} .*{found}.*{wanted}.*install synapse-host-vulkan again"


def test_a_kernel_that_is_not_the_one_of_the_index_is_named_with_both_digests(spoilt: Path) -> None:
    with pytest.raises(KernelDamaged, match=expected_words(spoilt)):
        read_kernels(spoilt)


@pytest.mark.usefixtures("vulkan_device")
def test_no_device_is_opened_over_a_damaged_kernel_and_no_retry_is_offered(
    spoilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_device(*given: object) -> None:
        raise AssertionError("the device was opened")

    monkeypatch.setattr(opening, "_opened", [])
    monkeypatch.setattr(runtime, "read_kernels", lambda: read_kernels(spoilt))
    monkeypatch.setattr(runtime, "Device", no_device)
    with pytest.raises(PluginError, match=expected_words(spoilt)) as refused:
        opening.open_runtime()
    error = to_synapse_error(WorkerRefusal(refused.value.code, str(refused.value)))
    assert (error.code, error.error_class) == ("backend_unavailable", "permanent")


def test_the_probe_refuses_a_damaged_kernel_whatever_the_device(spoilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "read_kernels", lambda: read_kernels(spoilt))
    verdict = check_evidence(evidence.probe(software=True), "vulkan")
    assert (verdict.status, verdict.reason, verdict.reason_detail) == ("refused", "worker_missing", "runtime_missing")
    assert re.search(expected_words(spoilt), str(verdict.message))


def test_the_kernel_revision_covers_the_digest_of_every_kernel(tmp_path: Path) -> None:
    (index,) = (path for path in package_sources(synapse_vulkan, plugin._ASIDE) if path.stem == "spirv_index")
    text = index.read_text(encoding="utf-8")
    revisions = {kernel_revision([index])}
    changed = tmp_path / index.parent.name / index.name
    changed.parent.mkdir()
    for digest in spirv_index.SPIRV.values():
        changed.write_text(text.replace(digest, digest[::-1]), encoding="utf-8")
        revisions.add(kernel_revision([changed]))
    assert len(revisions) == 1 + len(spirv_index.SPIRV)


def test_a_drivers_broken_manifest_is_no_lack_of_memory(tmp_path: Path) -> None:
    (broken := tmp_path / "broken.json").write_text("{broken")
    asked = "from synapse_vulkan.instance import create_instance\ncreate_instance()"
    environment = {**os.environ, "VK_DRIVER_FILES": str(broken), "VK_ICD_FILENAMES": str(broken)}
    ran = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "VulkanFault: " in ran.stderr
    assert "DeviceMemoryFull" not in ran.stderr.splitlines()[-1]


def test_this_compiler_makes_the_same_kernels() -> None:
    if shutil.which("glslc") is None:
        assert "vulkan" not in os.environ.get("SYNAPSE_TEST_REQUIRE", ""), "glslc is not installed"
        pytest.skip("glslc is not installed")
    version = subprocess.run(["glslc", "--version"], capture_output=True, text=True, check=True).stdout
    if version.splitlines()[0].strip() != spirv_index.COMPILER:
        pytest.skip(f"this glslc is not {spirv_index.COMPILER}")
    assert subprocess.run([sys.executable, str(BUILD), "--check"], timeout=200).returncode == 0


def test_a_changed_shader_is_noticed(tmp_path: Path) -> None:
    if shutil.which("glslc") is None:
        pytest.skip("glslc is not installed")
    shutil.copytree(PLUGIN / "synapse_vulkan", tmp_path / "synapse_vulkan")
    shutil.copy(BUILD, tmp_path)
    shader = tmp_path / "synapse_vulkan" / "shaders" / "copy.comp"
    shader.write_text(shader.read_text(encoding="utf-8").replace("counts[text] - 1", "counts[text] - 2"))
    assert subprocess.run([sys.executable, str(tmp_path / BUILD.name), "--check"], timeout=200).returncode == 1
