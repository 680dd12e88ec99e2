"""Compiles every kernel with glslc and writes the index of sources and results; run it after a change of a shader.

``python plugins/vulkan/build_spirv.py`` writes ``spirv/*.spv`` and ``spirv_index.py``; with ``--check`` it writes
nothing and fails where they are not what the sources and this compiler make.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

PACKAGE = Path(__file__).parent / "synapse_vulkan"
SHADERS, SPIRV, INDEX = PACKAGE / "shaders", PACKAGE / "spirv", PACKAGE / "spirv_index.py"
#: Vulkan 1.1 is the plugin's floor.
COMPILE = ("glslc", "-O", "--target-env=vulkan1.1")
HEAD = [
    '"""Digests of the kernels; written by ``build_spirv.py``, never by hand."""',
    "",
    "from __future__ import annotations",
    "",
]


def compiler_version() -> str:
    """The first line of what the compiler says of itself."""
    said = subprocess.run([COMPILE[0], "--version"], capture_output=True, text=True, check=True).stdout
    return said.splitlines()[0].strip()


def compile_into(folder: Path) -> dict[str, Path]:
    """Every kernel compiled into ``folder``, by name."""
    made = {}
    for source in sorted(SHADERS.glob("*.comp")):
        made[source.stem] = folder / f"{source.stem}.spv"
        subprocess.run([*COMPILE, str(source), "-o", str(made[source.stem])], check=True)
    return made


def source_digest() -> str:
    """One digest over every source, includes among them."""
    digest = sha256()
    for source in sorted(SHADERS.iterdir()):
        digest.update(f"{source.name}\0{sha256(source.read_bytes()).hexdigest()}\0".encode())
    return digest.hexdigest()


def index_text(spirv: dict[str, Path], compiler: str) -> str:
    """The module that names them."""
    digests = [f'    "{name}": "{sha256(path.read_bytes()).hexdigest()}",' for name, path in sorted(spirv.items())]
    lines = [
        *HEAD,
        "#: The compiler that made them.",
        f'COMPILER = "{compiler}"',
        "#: Digest of the sources they were made from.",
        f'SOURCES = "{source_digest()}"',
        "#: SHA-256 of every compiled kernel.",
        "SPIRV = {",
        *digests,
        "}",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Build or check; the exit status."""
    if "--check" in arguments:
        with tempfile.TemporaryDirectory() as folder:
            made = compile_into(Path(folder))
            same = all((SPIRV / f"{name}.spv").read_bytes() == path.read_bytes() for name, path in made.items())
            fresh = index_text(made, compiler_version()) == INDEX.read_text(encoding="utf-8")
        return 0 if same and fresh else 1
    SPIRV.mkdir(exist_ok=True)
    for stale in SPIRV.glob("*.spv"):
        stale.unlink()
    INDEX.write_text(index_text(compile_into(SPIRV), compiler_version()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
