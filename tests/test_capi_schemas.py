"""Schemas and kernels in onnxruntime's form, derived from our declarations."""

from __future__ import annotations

import onnx
import pytest

from sardonyx.capi import onnxruntime_pybind11_state as capi


def test_schemas_are_those_of_onnx() -> None:
    found = {(s.domain, s.name): s for s in capi.get_all_operator_schema()}
    gemm = found["", "Gemm"]
    theirs = onnx.defs.get_schema("Gemm")
    for name in ("since_version", "min_input", "max_input", "min_output", "max_output"):
        assert getattr(gemm, name) == getattr(theirs, name), name
    assert set(gemm.attributes) == set(theirs.attributes)
    assert [p.name.lower() for p in gemm.inputs] == [p.name.lower() for p in theirs.inputs]
    kinds = capi.schemadef.OpSchema.FormalParameterOption
    assert gemm.inputs[2].option is kinds.Optional
    assert found["", "Concat"].inputs[0].option is kinds.Variadic
    assert gemm.is_infinite(found["", "Concat"].max_input)
    assert gemm.attributes["alpha"].type is capi.schemadef.OpSchema.AttrType.FLOAT
    assert "tensor(float)" in gemm.inputs[0].types
    assert ("com.microsoft", "MatMulNBits") in found
    assert not any(domain == "sardonyx" for domain, _ in found)


def test_kernels() -> None:
    found = capi.get_registered_ep_kernel_defs("CPUExecutionProvider")
    assert len(found) == len(capi.get_all_opkernel_def()) == len(capi.get_all_operator_schema())
    gemm = next(k for k in found if k.op_name == "Gemm")
    assert gemm.version_range[0] == 13
    assert "tensor(float)" in gemm.type_constraints["T"]
    with pytest.raises(RuntimeError, match="no provider 'x'"):
        capi.get_registered_ep_kernel_defs("x")
