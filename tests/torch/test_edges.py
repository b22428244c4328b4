"""Functions of the torch provider where torch itself traps, saturates, or leaves the order open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import BF16, BOOL, F16, F32, I32, U8, U16, by_name, by_numpy
from sardonyx.graph.op import as_outputs
from sardonyx.ops import lookup
from sardonyx.ops.elementwise.chain import ABSENT, Code, Instruction, run_code
from tests.op_cases import Case, bf16, f16, f32, ints, of
from tests.oracle import difference, feeds_of, model_of

torch = pytest.importorskip("torch")
from sardonyx.providers.torch.dtypes import as_array, as_tensor  # noqa: E402
from sardonyx.providers.torch.elementwise import chain  # noqa: E402 - torch may be missing
from sardonyx.providers.torch.index import KERNELS  # noqa: E402

NAN, INF = np.nan, np.inf
LOWEST = of([-(2**31)] * 9, np.int32)
F8 = {"to": by_name("f8e4m3fn").onnx, "round_mode": b"up"}
TOP = {"axis": -1, "largest": 1, "sorted": 1}
PROVIDERS = [("TorchExecutionProvider", {"device": "cpu"}), "CPUExecutionProvider"]

EDGES = [
    ("Div", (LOWEST, of([-1] * 9, np.int32)), {}),
    ("Div", (of([7, -7, 7, -7], np.int64), of([2, 2, -2, -2], np.int64)), {}),
    ("Mod", (LOWEST, of([-1] * 9, np.int32)), {"fmod": 0}),
    ("Mod", (LOWEST, of([-1] * 9, np.int32)), {"fmod": 1}),
    ("Sign", (of([NAN, -0.5, 0.0, INF]),), {}),
    ("Pow", (of([-INF, -0.0, 4.0]), of(0.5)), {}),
    ("Pow", (of([0, 1, -1, 2], np.int32), of([-1, -2, -3, -1], np.int64)), {}),
    ("Pow", (of([-1.0, 1.0]), of([2**24 + 1, 3], np.int32)), {}),
    ("Clip", (of([NAN, 1.0, 5.0]), of([2.0]), of(1.0)), {}),
    ("Clip", (of([NAN, 1.0, 5.0]), None, None), {}),
    ("Gelu", (of([INF, 3e38, -3e38, 1.0]),), {"approximate": b"none"}),
    ("ThresholdedRelu", (of([NAN, 0.3, -1.0], np.float16),), {"alpha": 0.3}),
    ("Cast", (of([464.0, 465.0, INF, NAN]),), {**F8, "saturate": 0}),
    ("Cast", (of([464.0, 465.0, INF, NAN]),), {**F8, "saturate": 1}),
    ("Cast", (of([1 + 2**-11 + 2**-30, 1 + 2**-11], np.float64),),
     {"to": F16.onnx, "saturate": 1, "round_mode": b"up"}),
    ("Cast", (of([2**25 + 2**17 + 1, 2**25 + 2**17], np.int64),),
     {"to": BF16.onnx, "saturate": 1, "round_mode": b"up"}),
    ("TopK", (of([[2, 5, 5, 1, 5]] * 2), of([2], np.int64)), TOP),
    ("TopK", (of([[2, 5, 5, 1, 5]] * 2), of([1], np.int64)), TOP),
    ("TopK", (of([[NAN, 5, NAN, 1]]), of([4], np.int64)), {**TOP, "largest": 0}),
    ("Unique", (of([NAN, 2.0, -0.0, NAN, 0.0, -1.0]),), {"axis": None, "sorted": 1}),
    ("Unique", (of([NAN, 2.0, -0.0, NAN, 0.0, -1.0]),), {"axis": None, "sorted": 0}),
    ("TopK", (of([[1, NAN, 5, NAN], [3, 3, 3, 3]]), of([1], np.int64)), TOP),
    ("ArgMax", (of([[1, NAN, 5, NAN], [3, 3, 3, 3]]),),
     {"axis": 1, "keepdims": 0, "select_last_index": 0}),
    ("ArgMin", (of([[1, 2, 1, 2], [3, 3, 3, 3]]),),
     {"axis": 1, "keepdims": 1, "select_last_index": 1}),
    ("Unique", (of([[True, False], [True, True], [True, False]], bool),), {"axis": 0, "sorted": 0}),
    ("Unique", (f32(0, 3),), {"axis": 1, "sorted": 1}),
    ("Unique", (f32(0, 3),), {"axis": None, "sorted": 1}),
    ("Unique", (of([2.0, -1.0, 2.0], np.float16),), {"axis": 0, "sorted": 1}),
    ("Hardmax", (of([[1, 3, 3], [2, 2, 2]]),), {"axis": 1}),
    ("ReduceL2", (of([3e30, 4e30]), None), {"keepdims": 0, "noop_with_empty_axes": 0}),
    ("ReduceMax", (f32(2, 0), of([1], np.int64)), {"keepdims": 0, "noop_with_empty_axes": 0}),
    ("LRN", (f32(1, 3, 2),), {"alpha": 0.5, "beta": 0.75, "bias": 1.0, "size": 8}),
]  # fmt: skip


def given_to(op: str, arrays: Any) -> list[Any]:
    host = KERNELS["", op].host
    return [
        a if a is None or i in host else as_tensor(a, by_numpy(a.dtype)).clone()
        for i, a in enumerate(arrays)
    ]


@pytest.mark.parametrize(("op", "arrays", "attrs"), EDGES)
def test_edge(op: str, arrays: Any, attrs: Any) -> None:
    """A function agrees with its reference."""
    declared = lookup("", op)
    assert declared is not None
    with np.errstate(all="ignore"):
        expected = list(declared.run(arrays, attrs))
    if ("", op) in KERNELS:
        made = as_outputs(KERNELS["", op].function(*given_to(op, arrays), **attrs))
        found = [as_array(m) for m in made]
    else:
        found = run_model(Case(op, arrays, attrs, outputs=len(expected)))
    wrong = difference(found, expected, 16)
    assert not wrong, wrong


def run_model(case: Case) -> list[Any]:
    """The results of an op without a kernel, which runs by its decomposition."""
    session = sardonyx.InferenceSession(model_of(case).SerializeToString(), providers=PROVIDERS)
    return list(session.run(None, feeds_of(case)))


def test_zeros_of_mod() -> None:
    """A remainder has the sign of the divisor, also where it is zero."""
    a, b = torch.tensor([6.0, 6.0, -6.0, -6.0]), torch.tensor([3.0, -3.0, 3.0, -3.0])
    rest = KERNELS["", "Mod"].function(a, b, fmod=0)
    assert torch.signbit(rest).tolist() == [False, True, False, True]


@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_labels_out_of_range(op: str) -> None:
    """A label that is not a class is an error on the CPU."""
    labels = of([-5, 3, 9], np.int64)
    with pytest.raises(InvalidArgument, match="outside"):
        run_model(Case(op, (f32(3, 4), labels), {"reduction": b"none"}))


def step(op: str, args: tuple[int, ...], dtype: Any, domain: str = "", **attrs: Any) -> Instruction:
    """An instruction with the attributes that it leaves out."""
    declared = lookup(domain, op)
    assert declared is not None
    return Instruction((domain, op), args, dtype, tuple({**declared.defaults, **attrs}.items()))


CHAINS: list[tuple[Code, tuple[Any, ...]]] = [
    ((step("Add", (0, 1), F32), step("Relu", (2,), F32)), (f32(2, 3), f32(3))),
    ((step("Mul", (0, 1), F16), step("Sigmoid", (2,), F16), step("Mul", (2, 3), F16)),
     (f16(2, 3), f16(2, 1))),
    # In halves the product would overflow on the way.
    ((step("Mul", (0, 0), F16), step("Div", (1, 0), F16)), (of([300.0, 500.0], np.float16),)),
    ((step("Cast", (0,), BF16, to=BF16.onnx), step("Sub", (0, 1), F32)), (f32(7),)),
    ((step("Clip", (0, ABSENT, 1), F32),), (f32(4), of(0.25))),
    ((step("Less", (0, 1), BOOL), step("Where", (2, 0, 1), I32)),
     (ints(np.int32, 5), ints(np.int32, 2, 5))),
    ((step("Cast", (0,), U8, to=U8.onnx), step("BitwiseNot", (1,), U8)), (of([3.0, 250.0]),)),
    ((step("DequantizeLinear", (0, 1, 2), F16), step("Mul", (3, 3), F16)),
     (ints(np.uint8, 2, 3, low=0), of(0.5, np.float16), of([3], np.uint8))),
    ((step("Neg", (0,), F32), step("QuantizeLinear", (3, 1, 2), U16)),
     (f32(9), of(0.001), of(4000, np.uint16))),
    ((step("Add", (0, 1), U16), step("Equal", (1, 2), BOOL)),
     (of([65535, 7], np.uint16), of([1, 0], np.uint16))),
    ((step("QuickGelu", (0,), BF16, "com.microsoft"),), (bf16(9),)),
]  # fmt: skip


@pytest.mark.parametrize(("code", "operands"), CHAINS)
def test_chain(code: Code, operands: tuple[Any, ...]) -> None:
    """A code makes of tensors what the references make of arrays."""
    types = [by_numpy(x.dtype) for x in operands]
    assert not chain.why_unsupported(code, types)  # type: ignore[arg-type]
    made = chain.run_code(code, [as_tensor(x, t) for x, t in zip(operands, types, strict=True)])
    wrong = difference(as_array(made), run_code(code, operands), 16)
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("code", "dtype", "why"),
    [
        ((step("Erf", (0,), I32),), I32, "Erf in a chain does not support i32"),
        (
            (step("Max", (0, 0), by_name("u64")),),
            by_name("u64"),
            "Max in a chain does not support u64",
        ),
        ((step("Softmax", (0,), F32),), F32, "Softmax has no torch kernel"),
    ],
)
def test_refused_chain(code: Code, dtype: Any, why: str) -> None:
    """A code with a step that torch has no function for is left to others."""
    assert why in chain.why_unsupported(code, [dtype])
