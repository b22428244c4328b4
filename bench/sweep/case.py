"""A case of the sweep: one node with its operands, as a model and a feed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from onnx import ValueInfoProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]

DOMAINS: Final = {"ai.onnx.ml": 3, "com.microsoft": 1}
_NEWER: Final = {"TreeEnsemble": 5}
OPSET: Final = 23
WIDELY_RUN: Final = 21  # onnxruntime has no kernels for the opset 22 of some ops
IR: Final = 10


@dataclass(frozen=True)
class Case:
    """One node. An operand is None if it is not given; those in `constants` are initializers."""

    op: str
    operands: Sequence[Array | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()
    domain: str = ""
    opset: int = OPSET
    n_outputs: int = 1
    source: str = "drawn"
    outer: int = 0  # so many of the last operands are not the node's: its bodies read them

    @property
    def name(self) -> str:
        """The op, its operands and attributes, as tables show them."""
        operands = ", ".join(
            "-" if x is None else f"{'=' if i in self.constants else ''}{_type(x)}"
            for i, x in enumerate(self.operands)
        )
        attrs = " ".join(f"{k}={_short(v)}" for k, v in sorted(self.attrs.items()))
        return f"{self.op}({operands}) {attrs}".strip()

    @property
    def key(self) -> str:
        """Equal for cases of equal cost: values are part of it only for short integer operands."""
        parts = [self.domain, str(self.opset), self.name, str(self.n_outputs)]
        given = (x for x in self.operands if x is not None)
        parts += [x.tobytes().hex() for x in given if x.size <= 64 and x.dtype.kind in "iub"]
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]

    def feed(self) -> dict[str, Array]:
        """Operands that are not constants, by name."""
        given = enumerate(self.operands)
        return {f"x{i}": x for i, x in given if x is not None and i not in self.constants}

    def model(self) -> bytes:
        """The node as a model, in the form that all runtimes read."""
        given = [(i, x) for i, x in enumerate(self.operands) if x is not None]
        names = ["" if x is None else f"x{i}" for i, x in enumerate(self.operands)]
        names = names[: len(names) - self.outer]
        outputs = [f"y{i}" for i in range(self.n_outputs)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attrs)
        graph = helper.make_graph(
            [node],
            self.op,
            [
                helper.make_tensor_value_info(f"x{i}", _element_type(x), x.shape)
                for i, x in given
                if i not in self.constants
            ],
            [ValueInfoProto(name=y) for y in outputs],
            [numpy_helper.from_array(x, f"x{i}") for i, x in given if i in self.constants],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [
            helper.make_opsetid(d, _NEWER.get(self.op, v))
            for d, v in DOMAINS.items()
            if d == self.domain
        ]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR)
        return bytes(model.SerializeToString())


def _element_type(x: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(x.dtype))


def _type(x: Array) -> str:
    kind = "str" if x.dtype.kind in "OUS" else x.dtype.name
    return f"{kind}[{','.join(map(str, x.shape))}]"


def _short(value: Any) -> str:
    text = json.dumps(value, default=lambda v: getattr(v, "name", type(v).__name__))
    return text if len(text) <= 40 else f"{text[:34]}... {len(text)}"
