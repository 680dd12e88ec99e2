"""Every tensor operation, recorded and compiled alone, against the numpy reference."""

from __future__ import annotations

import pytest
from synapse_owned_cpu.evidence import dtypes_of, read_machine
from synapse_owned_cpu.single_ops import RecordedSingly

from synapse_host.hookspecs import DType
from synapse_host.testing.ops_contract import OP_CASES, OpCase, check_op

DTYPES = dtypes_of(read_machine().isa)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_operation_agrees_with_the_reference(case: OpCase, dtype: DType) -> None:
    check_op(RecordedSingly(dtype), case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [case for case in OP_CASES if case.op == "attention"], ids=str)
def test_attention_agrees_with_the_reference_in_the_banded_regime(case: OpCase, dtype: DType) -> None:
    check_op(RecordedSingly(dtype, regime="band"), case)
