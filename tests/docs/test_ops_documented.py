from __future__ import annotations

import inspect
import re
from pathlib import Path

from synapse_host.ops.tensor_ops import OP_NAMES, TensorOps
from synapse_host.ops.tolerances import END_TO_END, OP_UNITS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tensor-ops.md"
ROW = re.compile(r"^\| `(?P<op>\w+)\((?P<parameters>[^`]*)\)` \| [^|]+ \| .+ \| (?P<units>\d+) \|$", re.M)
END_ROW = re.compile(r"^\| `(?P<dtype>\w+)` \| (?P<cosine>0\.\d+) \| (?P<error>[^|]+) \|$", re.M)


def parameters_of(op: str) -> str:
    """The call as the page writes it: names and defaults without types."""
    signature = inspect.signature(getattr(TensorOps, op))
    bare = [p.replace(annotation=p.empty) for name, p in signature.parameters.items() if name != "self"]
    return str(inspect.Signature(bare))[1:-1]


def test_every_operation_is_on_the_page_in_order_and_no_other() -> None:
    assert tuple(row["op"] for row in ROW.finditer(PAGE.read_text("utf-8"))) == OP_NAMES


def test_the_page_writes_every_signature_as_it_is() -> None:
    for row in ROW.finditer(PAGE.read_text("utf-8")):
        assert row["parameters"].replace(" ", "") == parameters_of(row["op"]).replace(" ", ""), row["op"]


def test_the_page_gives_the_tolerances_of_the_table() -> None:
    text = PAGE.read_text("utf-8")
    assert {row["op"]: float(row["units"]) for row in ROW.finditer(text)} == dict(OP_UNITS)
    ends = {row["dtype"]: row for row in END_ROW.finditer(text)}
    assert {dtype: float(row["cosine"]) for dtype, row in ends.items()} == {
        dtype: bound.min_cosine for dtype, bound in END_TO_END.items()
    }
    assert float(ends["f32"]["error"]) == END_TO_END["f32"].max_abs_error


def test_the_snippet_of_the_page_compiles_and_passes() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    names: dict[str, object] = {}
    exec(compile(snippet, str(PAGE), "exec"), names)
    names["test_operation"](names["OP_CASES"][0])  # type: ignore[operator,index]
