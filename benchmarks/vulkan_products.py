"""The table of the Vulkan backend's matrix products: every variant on every shape of the families, on this device.

``python -m benchmarks.vulkan_products [--write]`` prints it as Markdown; with ``--write`` it goes to
``benchmarks/vulkan-products/DEVICE.md`` as well, so that a change of a kernel shows in the table's own history. Every
product is held against exact numbers while it is timed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from synapse_vulkan.measuring import choose_products, speed_of
from synapse_vulkan.product import FEW_ROWS, NARROW, NARROW_ROWS, Variant, candidates
from synapse_vulkan.runtime import Runtime

FOLDER = Path(__file__).parent / "vulkan-products"
COMMAND = "python -m benchmarks.vulkan_products --write"
#: Depth and columns of the products of the families at the sizes they are published in: attention's inputs, its output,
#: and both ways of the feed-forward.
SHAPES = {
    "all-MiniLM-L6-v2": ((384, 384), (384, 1536), (1536, 384)),
    "gte-modernbert-base": ((768, 2304), (768, 768), (1152, 768)),
    "Qwen3-Embedding-0.6B": ((1024, 2048), (1024, 1024), (2048, 1024), (1024, 3072), (3072, 1024)),
}
#: Rows of a pooled vector, of a query or two, and of a full call; a software device takes seconds for more.
ROWS = (NARROW_ROWS, FEW_ROWS, 1024)
SOFTWARE_ROWS = (NARROW_ROWS, FEW_ROWS, 256)
#: A variant below this share of the fastest on the first shape is timed there and nowhere else.
_HOPELESS = 0.1


def lines(runtime: Runtime) -> Iterator[str]:
    """The table and what it was measured on."""
    facts = runtime.device.facts
    software = facts.kind == "software"
    variants = (NARROW, *candidates(facts.limits, software=software))
    choose_products(runtime)
    chosen = runtime.products
    yield f"# Products on {facts.name}"
    yield ""
    yield f"Driver {facts.driver}. GFLOP/s by `{COMMAND}`,"
    yield "the fastest of every row in bold; - was not tried. All variants give the same bits."
    yield ""
    yield f"Chosen by measurement when the device was opened: `{chosen.many.name}`, up to {FEW_ROWS} rows"
    yield f"`{chosen.for_rows(FEW_ROWS).name}`, up to {NARROW_ROWS} rows `{chosen.narrow.name}`."
    yield f"The machine's load was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    yield ""
    yield f"| model | rows x depth x columns | {' | '.join(variant.name for variant in variants)} |"
    yield f"|---|---|{'---|' * len(variants)}"
    hopeless: set[str] = set()
    for model, shapes in SHAPES.items():
        for depth, columns in shapes:
            for rows in SOFTWARE_ROWS if software else ROWS:
                speeds = _speeds(runtime, variants, hopeless, (rows, depth, columns))
                yield f"| {model} | {rows} x {depth} x {columns} | {' | '.join(_cells(variants, speeds))} |"
                if rows > FEW_ROWS:
                    hopeless |= {name for name, speed in speeds.items() if speed < _HOPELESS * max(speeds.values())}


def _speeds(
    runtime: Runtime, variants: tuple[Variant, ...], hopeless: set[str], shape: tuple[int, int, int]
) -> dict[str, float]:
    """GFLOP/s by name; ``NARROW`` is for few rows and left out where there are more."""
    tried = [
        variant
        for variant in variants
        if variant.name not in hopeless and not (variant is NARROW and shape[0] > FEW_ROWS)
    ]
    return {variant.name: speed_of(runtime, variant, *shape) for variant in tried}


def _cells(variants: tuple[Variant, ...], speeds: dict[str, float]) -> list[str]:
    best = max(speeds.values())
    shown = {name: f"**{speed:.1f}**" if speed == best else f"{speed:.1f}" for name, speed in speeds.items()}
    return [shown.get(variant.name, "-") for variant in variants]


def main(arguments: list[str]) -> int:
    """Print the table, and keep it where that is asked for."""
    runtime = Runtime()
    try:
        found: list[str] = []
        for line in lines(runtime):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            found.append(line)
        name = re.sub(r"[^a-z0-9]+", "-", runtime.device.facts.name.lower()).strip("-")
    finally:
        runtime.close()
    if "--write" in arguments:
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.md").write_text("\n".join([*found, ""]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
