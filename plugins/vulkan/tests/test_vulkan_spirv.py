"""The shipped kernels are those of the sources, byte for byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from synapse_vulkan import kernels, spirv_index
from synapse_vulkan.binding import VulkanFault
from synapse_vulkan.opening import open_runtime

PLUGIN = Path(__file__).parents[1]
BUILD = PLUGIN / "build_spirv.py"


def test_every_kernel_is_shipped_as_the_index_says() -> None:
    found = {path.stem: sha256(path.read_bytes()).hexdigest() for path in kernels.SPIRV.glob("*.spv")}
    assert found == spirv_index.SPIRV
    assert set(found) == {path.stem for path in (kernels.SPIRV.parent / "shaders").glob("*.comp")}


def test_the_sources_are_those_the_kernels_were_made_from() -> None:
    digest = sha256()
    for source in sorted((kernels.SPIRV.parent / "shaders").iterdir()):
        digest.update(f"{source.name}\0{sha256(source.read_bytes()).hexdigest()}\0".encode())
    assert digest.hexdigest() == spirv_index.SOURCES, f"run {BUILD.name}: a shader changed after it was compiled"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda file: file.write_bytes((file.parent / "copy.spv").read_bytes()), "is not the one it was built with"),
        (lambda file: file.write_bytes(file.read_bytes()[:-3]), "is not the one it was built with"),
        (Path.unlink, "cannot be read"),
    ],
)
def test_a_kernel_that_is_not_the_one_of_the_index_never_runs(
    tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    folder = shutil.copytree(kernels.SPIRV, tmp_path / "spirv")
    spoil(folder / "mean.spv")
    made = kernels.Kernels(open_runtime().device, folder)
    try:
        made.pipeline("copy")
        with pytest.raises(VulkanFault, match=rf"mean\.spv .*{words}.*install synapse-host-vulkan again"):
            made.pipeline("mean")
    finally:
        made.close()


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
    assert subprocess.run([sys.executable, str(BUILD), "--check"], timeout=60).returncode == 0


def test_a_changed_shader_is_noticed(tmp_path: Path) -> None:
    if shutil.which("glslc") is None:
        pytest.skip("glslc is not installed")
    shutil.copytree(PLUGIN / "synapse_vulkan", tmp_path / "synapse_vulkan")
    shutil.copy(BUILD, tmp_path)
    shader = tmp_path / "synapse_vulkan" / "shaders" / "copy.comp"
    shader.write_text(shader.read_text(encoding="utf-8").replace("counts[text] - 1", "counts[text] - 2"))
    assert subprocess.run([sys.executable, str(tmp_path / BUILD.name), "--check"], timeout=60).returncode == 1
