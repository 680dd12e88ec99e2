"""Installed-looking distributions in a folder, for tests of discovery and probing; nothing is built or downloaded.

Put the folder on ``PYTHONPATH`` for child processes and on ``sys.path`` for this one.
"""

from __future__ import annotations

import tomllib
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from synapse_host.backends.discovery import ENTRY_POINT_GROUP

#: A backend that works. ``NAME`` stands for its backend id.
GOOD_BACKEND = """
from synapse_host.hookspecs import BackendDescription, CapabilityEvidence, hookimpl


@hookimpl
def synapse_describe():
    return BackendDescription(
        backend="NAME", engine="engine-of-NAME", engine_version="1.2", build_flags={"kind": "fake"}, tasks=("embed",),
        model_formats=("safetensors-package",), families=("bert",), dtypes=("f32",), device_class="cpu", platforms=(),
        extra="", owned=False, abort_capable=False, plugin_api=1,
    )


@hookimpl
def synapse_probe_capability():
    return CapabilityEvidence("ok", required={"cores": 1}, observed={"cores": 2})


@hookimpl
def synapse_load(spec, progress):
    raise NotImplementedError


@hookimpl
def synapse_embed(model, batch, progress):
    raise NotImplementedError


@hookimpl
def synapse_unload(model):
    return True
"""


def backend_source(name: str, old: str = "", new: str = "", *, before: str = "") -> str:
    """The module of a good backend called ``name`` with one text replaced and ``before`` put at its top.

    Raises:
        ValueError: ``old`` is not in the module, so the fault meant to be planted would not be there.

    """
    source = GOOD_BACKEND.replace("NAME", name)
    if old not in source:
        raise ValueError(f"the good backend does not contain {old!r}; plant the fault in text that it has")
    return f"{before}\n{source.replace(old, new) if old else source}"


def install_backend(folder: Path, name: str, source: str, *, distribution: str | None = None) -> Path:
    """Install one backend module ``<name>_backend`` in ``folder``; returns the module's file."""
    module = f"{name.replace('-', '_')}_backend"
    install_distribution(
        folder,
        distribution or f"fake-{name}",
        entry_points=f"[{ENTRY_POINT_GROUP}]\n{name} = {module}\n",
        files={f"{module}.py": source},
    )
    return folder / f"{module}.py"


def install_project(folder: Path, project: Path) -> None:
    """Install the backend in ``project``, a source folder built by hatch, from its own metadata and packages."""
    document = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    told, wheel = document["project"], document["tool"]["hatch"]["build"]["targets"]["wheel"]
    points = told["entry-points"][ENTRY_POINT_GROUP].items()
    modules = (module for package in wheel["packages"] for module in sorted((project / package).rglob("*.py")))
    install_distribution(
        folder,
        told["name"],
        version=told["version"],
        entry_points="\n".join([f"[{ENTRY_POINT_GROUP}]", *(f"{name} = {module}" for name, module in points), ""]),
        files={str(module.relative_to(project)): module.read_text(encoding="utf-8") for module in modules},
    )


def install_distribution(
    folder: Path, name: str, *, entry_points: str | bytes, files: Mapping[str, str], version: str = "1.0"
) -> Path:
    """Write ``files`` and the ``.dist-info`` that owns them below ``folder``; returns the ``.dist-info`` folder."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    raw = entry_points.encode() if isinstance(entry_points, str) else entry_points
    (info / "entry_points.txt").write_bytes(raw)
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    write_record(folder, info, [*files, f"{info.name}/METADATA", f"{info.name}/entry_points.txt"])
    return info


def write_record(folder: Path, info: Path, paths: list[str]) -> None:
    """Write the RECORD of ``info``: path, digest and size of every file, as installers do."""
    lines = [_record_line(folder, path) for path in paths]
    (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,", ""]), encoding="utf-8")


def _record_line(folder: Path, path: str) -> str:
    data = (folder / path).read_bytes()
    digest = urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode("ascii")
    return f"{path},sha256={digest},{len(data)}"
