"""Random graphs: a seed gives a model, inputs of some sizes, and what its values should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, TypeProto, ValueInfoProto, helper, numpy_helper

from sardonyx.errors import SardonyxError
from tests.random_graphs import forms, schema
from tests.random_graphs.builder import Builder, Refused, Traits, Unfit
from tests.random_graphs.compare import STEPS
from tests.random_graphs.eager import Eager, domains, model_of, reads
from tests.random_graphs.ops import table
from tests.random_graphs.value import DTYPES, Array, Recipe, Value, type_of

NOISY_RUNS = 16
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 33)
LARGE = (16, 33, 64, 97, 128, 257)  # so that steps are cut into parts for several threads
KINDS = (
    ("float",), ("float",), ("float",), ("float", "int64"), ("float", "int64", "bool"),
    ("float16", "float"), ("double", "float"), ("int32", "int64"), ("uint8", "int8", "float"),
    ("bfloat16", "float"), ("bool", "int64"), ("int8", "uint8", "int16", "uint16"),
    ("uint32", "uint64", "int64"), ("string", "int64"),
    ("float", "float16", "double", "int32", "int64", "bool", "uint8", "int8"),
)  # fmt: skip


@dataclass
class Run:
    """Inputs of one size, and what every value is for them."""

    feeds: dict[str, Any]
    values: dict[str, Any]
    noisy: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class RandomGraph:
    """The graph of a seed."""

    seed: int
    traits: Traits
    nodes: list[NodeProto]
    steps: list[Eager]  # the nodes by their references
    inputs: dict[str, TypeProto]
    constants: dict[str, Array]
    outputs: list[str]
    opsets: dict[str, int]
    runs: list[Run] = field(default_factory=list)
    random: frozenset[str] = frozenset()
    refusal: str = ""  # what our reference says of the last node, if it does not take it
    types: dict[str, TypeProto] = field(default_factory=dict)
    forms: forms.Forms = field(default_factory=forms.Forms)
    loose: dict[str, float] = field(default_factory=dict)  # tolerances that cases declare
    rounded: set[str] = field(default_factory=set)  # values that differ as rounding may
    is_alone: bool = False  # onnxruntime is known to differ, and is not asked

    def model(self, outputs: list[str] | None = None, *, plain: bool = False) -> Any:
        """The model; with other outputs if asked for, and in its plainest form."""
        names = self.outputs if outputs is None else outputs
        form = forms.Forms() if plain else self.forms
        nodes, functions = forms.outline(self.nodes, form.outlined, set(names), self.opsets)
        inputs = [helper.make_value_info(n, t) for n, t in self.inputs.items()]
        defaults = [n for n in self.constants if n in form.defaults]
        inputs += [helper.make_value_info(n, type_of(self.constants[n])) for n in defaults]
        dense = {n: a for n, a in self.constants.items() if n not in form.sparse}
        found = model_of(
            nodes, self._imports(functions), inputs=inputs,
            outputs=[self._output(n, form.typed) for n in names], functions=functions,
            initializers=[numpy_helper.from_array(a, n) for n, a in dense.items()],
        )  # fmt: skip
        sparse = [n for n in self.constants if n in form.sparse]
        found.graph.sparse_initializer.extend(forms.as_sparse(n, self.constants[n]) for n in sparse)
        return found

    def _imports(self, functions: list[FunctionProto]) -> dict[str, int]:
        """The opsets of the domains that nodes are from, and some that no node is from."""
        used = {"", schema.ML, *domains(self.nodes)}
        found = {d: v for d, v in self.opsets.items() if d in used}
        return {**found, forms.DOMAIN: 1} if functions else found

    def _output(self, name: str, typed: bool) -> ValueInfoProto:
        data = self.runs[0].values.get(name)
        if typed and isinstance(data, np.ndarray) and self.types[name].HasField("tensor_type"):
            return helper.make_value_info(name, type_of(data, [None] * data.ndim))
        return ValueInfoProto(name=name)

    def steps_of(self) -> dict[str, float]:
        """How exact a value can be, relative to its largest: as the coarsest type on its way."""
        found = {n: _step(a) for n, a in self.constants.items()}
        found |= {n: _step(x) for n, x in self.runs[0].feeds.items()}
        for node in self.nodes:
            least = max((found.get(n, 0.0) for n in reads(node)), default=0.0)
            for name in node.output:
                own = _step(self.runs[0].values.get(name))
                found[name] = max(least, own, self.loose.get(name, 0.0))
        return found

    def noisy(self, run: Run) -> list[dict[str, Any]]:
        """Runs in which every value is off by a few units in the last place."""
        if not run.noisy:
            noise = np.random.default_rng(self.seed)
            for _ in range(NOISY_RUNS):
                try:
                    run.noisy.append(evaluate(self.steps, {**run.feeds, **self.constants}, noise))
                except (SardonyxError, ArithmeticError):
                    run.noisy.append({})  # a rounding error decides whether it runs at all
        return run.noisy


def _step(value: Any) -> float:
    if isinstance(value, list) and value:
        return max(_step(v) for v in value)
    return STEPS.get(str(value.dtype), 0.0) if isinstance(value, np.ndarray) else 0.0


def make(seed: int) -> RandomGraph:
    """The graph of a seed."""
    rng = Random(seed)
    builder = Builder(rng, _traits(rng))
    wanted = rng.choice((1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30))
    wanted = min(wanted, 6) if builder.traits.is_large else wanted
    steps = 0
    try:
        while len(builder.nodes) < wanted and steps < 4 * wanted:
            steps += 1
            grow(builder)
    except Refused:
        pass
    return _finished(seed, builder)


def _traits(rng: Random) -> Traits:
    by_onnxruntime = rng.random() < 0.85
    newest = 26 if by_onnxruntime else 28
    opset = rng.choice((rng.randint(13, 22), rng.randint(7, newest), rng.randint(22, newest)))
    is_large = rng.random() < 0.04
    sizes = [*rng.sample(LARGE if is_large else SIZES, 3), rng.choice((1, 2, 3))]
    if rng.random() < 0.06:
        sizes.append(0)
    is_typed = rng.random() < 0.25
    kinds = (rng.choice(list(DTYPES)),) if is_typed else rng.choice(KINDS)
    return Traits(
        opset, rng.randint(1, 5), by_onnxruntime, rng.random() < 0.12, kinds, tuple(sizes),
        is_large, is_typed,
    )  # fmt: skip


def grow(b: Builder) -> None:
    """One more node, or a pattern of some; nothing if what was drawn does not fit."""
    before = len(b.nodes)
    generate: Callable[[Builder], None] = table.choose(b.rng, is_typed=b.traits.is_typed)
    try:
        generate(b)
    except Unfit:
        if len(b.nodes) == before:
            return


def _finished(seed: int, b: Builder) -> RandomGraph:
    """The graph with its outputs chosen, what is unused left out, and its values computed."""
    read = {n for e in b.eager for n in e.reads}
    if b.refusal:
        read |= set(b.nodes[-1].input)
    outputs = _outputs(b, read)
    names = _dim_names(b)
    graph = RandomGraph(
        seed, b.traits, b.nodes, b.eager,
        {v.name: _declared(v, names) for v in b.inputs if v.name in read},
        {n: a for n, a in b.constants.items() if n in read},
        outputs, b.opsets, refusal=b.refusal, is_alone=b.is_alone, loose=b.loose,
        random=frozenset(v.name for v in b.values.values() if v.is_random),
        types={v.name: v.type for v in b.values.values()},
    )  # fmt: skip
    graph.forms = forms.draw(b.rng, graph.nodes, graph.constants)
    used = [v for v in b.inputs if v.name in read]
    graph.runs.append(_run(graph, {v.name: v.data for v in used}))
    if names and not b.refusal:
        for _ in range(b.rng.choice((1, 2))):
            more = _other_sizes(b, graph, used, names)
            if more is not None:
                graph.runs.append(more)
    return graph


def _outputs(b: Builder, read: set[str]) -> list[str]:
    """The names of the outputs: every value that nothing reads, and some others."""
    made = [n for node in b.nodes for n in node.output if n and n in b.values]
    drawn = [
        n for n in made
        if (n not in read or b.rng.random() < 0.15) and not b.values[n].is_const
    ]  # fmt: skip
    return [n for n in b.nodes[-1].output if n] if b.refusal else drawn


def _dim_names(b: Builder) -> dict[int, str]:
    """Names for some of the sizes that inputs have."""
    if b.rng.random() < 0.4:
        return {}
    sizes = sorted({
        d for v in b.inputs if v.is_tensor and v.recipe and v.recipe.fixed is None for d in v.shape
    })  # fmt: skip
    chosen = b.rng.sample(sizes, min(len(sizes), b.rng.choice((1, 1, 2))))
    return dict(zip(chosen, "NM", strict=False))


def _declared(v: Value, names: dict[int, str]) -> TypeProto:
    if not v.is_tensor or v.recipe is None or v.recipe.fixed is not None:
        return v.type
    found = TypeProto()
    found.CopyFrom(v.type)
    for dim in found.tensor_type.shape.dim:
        if dim.dim_value in names:
            dim.dim_param = names[dim.dim_value]
    return found


def _other_sizes(
    b: Builder, graph: RandomGraph, used: list[Value], names: dict[int, str]
) -> Run | None:
    """A run with other sizes for the names; None where the graph does not take them."""
    sizes = {size: b.rng.choice((1, 2, 3, 5, 6, 11, 18)) for size in names}
    feeds = {}
    for v in used:
        recipe = v.recipe or Recipe("", fixed=v.data)
        if recipe.fixed is not None:
            feeds[v.name] = v.data
        else:
            shape = tuple(sizes.get(d, d) for d in v.shape)
            feeds[v.name] = recipe.draw(b.numbers, shape)
    try:
        return _run(graph, feeds)
    except (SardonyxError, ArithmeticError):
        return None


def _run(graph: RandomGraph, feeds: dict[str, Any]) -> Run:
    return Run(feeds, evaluate(graph.steps, {**feeds, **graph.constants}))


def evaluate(
    steps: list[Eager], given: dict[str, Any], noise: np.random.Generator | None = None
) -> dict[str, Any]:
    """Every value; with noise, each is off by a few units in the last place."""
    sizes = {
        n for s in steps if s.node.op_type in SIZING for n in s.node.input[SIZING[s.node.op_type] :]
    }
    values = {n: v if n in sizes else _shaken(v, noise) for n, v in given.items()}
    for step in steps:
        names = [n for n in step.node.output if n]
        is_constant = step.node.op_type == "Constant"
        for name, result in zip(names, step(values), strict=False):
            sums = step.node.op_type in SUMMING
            values[name] = result if is_constant else _shaken(result, noise, sums)
    return values


# Some units in the last place: half types are rounded to at every node, and onnxruntime has
# polynomials that are off by 1e-6.
EPS = {"float16": 2**-9, "bfloat16": 2**-6, "float32": 2**-20, "float64": 2**-49}


# Floats that say how large a result is, from this input on: they are as they are.
SIZING = {"Resize": 1, "Upsample": 1, "Range": 0}
# Ops that add up: what is nothing by cancellation may come out as next to nothing.
_SUMMING = (
    "MatMul Gemm Einsum Conv ConvTranspose DeformConv MatMulNBits FusedMatMul FusedConv FusedGemm "
    "ReduceSum ReduceMean CumSum GlobalAveragePool AveragePool Attention LSTM GRU RNN Resize "
    "LayerNormalization InstanceNormalization GroupNormalization MeanVarianceNormalization "
    "BatchNormalization DFT STFT"
)
SUMMING = frozenset(_SUMMING.split())


def _shaken(value: Any, noise: np.random.Generator | None, sums: bool = False) -> Any:
    if noise is None:
        return value
    if isinstance(value, list):
        return [_shaken(v, noise) for v in value]
    if not isinstance(value, np.ndarray) or str(value.dtype) not in EPS or not value.size:
        return value
    eps = EPS[str(value.dtype)]
    with np.errstate(all="ignore"):
        numbers = value.astype(np.float64) * (1 + eps * noise.uniform(-1, 1, value.shape))
        top = np.max(np.abs(numbers), initial=0.0, where=np.isfinite(numbers))
        if sums:
            numbers += eps / 8 * top * noise.uniform(-1, 1, value.shape)
        elif noise.random() < 0.2:  # what is next to nothing may come out as nothing
            numbers = np.where(np.abs(numbers) < eps * top, 0.0, numbers)
        return np.asarray(numbers).astype(value.dtype)
