"""What the evidence rests on: the variables and the manifests by which the loader finds a driver, and the drivers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from synapse_vulkan.device_facts import PREFERENCE
from synapse_vulkan.drivers import premises
from synapse_vulkan.evidence import read_machine
from synapse_vulkan.kernel_files import SPIRV

from synapse_host.backends.capability import probe_backend
from synapse_host.backends.discovery import list_backends

KERNELS = Path("/plugin/spirv")


def manifest(folder: Path, name: str, library: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(json.dumps({"ICD": {"library_path": library, "api_version": "1.3"}}))
    return file


def test_the_systems_folders_their_drivers_and_the_kernels_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "vulkan" / "icd.d"
    manifest(folder, "absolute.json", "/usr/lib/libvulkan_card.so")
    manifest(folder, "relative.json", "../lib/libvulkan_other.so")
    manifest(folder, "bare.json", "libvulkan_bare.so")
    (folder / "broken.json").write_text("{")
    (folder / "no.json").write_text("[]")
    files = premises({"HOME": "/home/me", "XDG_DATA_DIRS": f"{tmp_path}{os.pathsep}/usr/share"}, KERNELS).files
    assert files[0] == str(KERNELS)
    for folder_of in (tmp_path, "/home/me/.config", "/home/me/.local/share", "/etc/xdg", "/etc", "/usr/share"):
        assert f"{folder_of}/vulkan/icd.d" in files
    drivers = [name for name in files if name.startswith(("/usr/lib/libvulkan_card", str(folder / "..")))]
    assert drivers == ["/usr/lib/libvulkan_card.so", str(folder / "../lib/libvulkan_other.so")]
    assert not any("bare" in name for name in files)


@pytest.mark.parametrize("variable", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"])
def test_manifests_of_the_environment_stand_in_the_place_of_the_systems(variable: str, tmp_path: Path) -> None:
    one, added = manifest(tmp_path, "one.json", "/lib/one.so"), manifest(tmp_path / "more", "two.json", "/lib/two.so")
    environ = {
        variable: f"{one}{os.pathsep}relative.json",
        "VK_ADD_DRIVER_FILES": str(added.parent),
        "HOME": "/home/me",
    }
    found = premises(environ, KERNELS)
    assert set(found.files) == {str(KERNELS), str(one), "/lib/one.so", str(added.parent), "/lib/two.so"}
    assert any(variable.startswith(name.removesuffix("*")) for name in found.environment)


def test_so_many_drivers_are_named_that_the_report_keeps_its_size(tmp_path: Path) -> None:
    for number in range(100):
        manifest(tmp_path, f"{number}.json", f"/lib/{number}.so")
    assert len(premises({"VK_DRIVER_FILES": str(tmp_path)}, KERNELS).files) <= 24


@pytest.mark.anyio
async def test_kept_evidence_is_asked_anew_where_the_environment_makes_another_device(
    vulkan_device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a home used before: another width of llvmpipe is another device, and no driver at all is none."""
    chosen = read_machine().chosen
    assert chosen is not None
    if chosen.kind != PREFERENCE[-1]:
        pytest.skip(f"the variables tried here are llvmpipe's, and the device is {vulkan_device}")
    (entry,) = (found for found in list_backends() if found.name == "vulkan")
    settings = {"allow_software_device": "true"}

    async def asked() -> tuple[str, str | None]:
        row = await probe_backend(entry, cache_dir=tmp_path, settings=settings)
        assert row.description is not None, row
        assert row.evidence is not None
        assert str(SPIRV) in row.evidence.premises.files
        return row.description.build_flags["device"], row.reason_detail

    monkeypatch.setenv("LP_NATIVE_VECTOR_WIDTH", "128")
    narrow = await asked()
    monkeypatch.delenv("LP_NATIVE_VECTOR_WIDTH")
    wide = await asked()
    assert {narrow[1], wide[1]} == {None}
    assert "128 bits" in narrow[0]
    assert wide[0] == vulkan_device
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere.json"))
    assert await asked() == ("none", "driver_missing")
