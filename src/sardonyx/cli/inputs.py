"""Inputs for a model: read from a file, or generated from the declared types and shapes.

Also checks that output files can be written and overwrite no input.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.npz import read_npz
from sardonyx.cli.arguments import UsageError, merged
from sardonyx.cli.bench_worker import write_arrays
from sardonyx.cli.decoder_dims import complete
from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.graph.dim import evaluate, symbols
from sardonyx.graph.dtype import STRING, DType
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact
from sardonyx.load.model import Declared
from sardonyx.ort.node_arg import type_name
from sardonyx.pack.lookup import SUFFIX

MAX_BYTES: Final = 8 << 30  # of one generated input

Shapes = dict[str, tuple[int, ...]]


def chosen(
    arguments: argparse.Namespace, path: pathlib.Path, declared: Sequence[Declared]
) -> tuple[dict[str, Any], str]:
    """Return a model's inputs and their source: --inputs, a file beside the model, or generated."""
    dims, shapes = merged(arguments.dims), merged(arguments.shapes)
    file: pathlib.Path | None = getattr(arguments, "inputs", None)  # not every command has it
    beside = path.with_suffix(".npz")
    if file is not None:
        if dims or shapes:
            raise UsageError("--dims and --shapes are for generated inputs: leave out --inputs")
        return read(file, declared), str(file)
    if beside.exists() and not dims and not shapes:
        return read(beside, declared, strict=False), str(beside)
    seed = getattr(arguments, "seed", 0)
    return generate(declared, input_shapes(declared, dims, shapes), seed), "generated"


def input_shapes(
    inputs: Sequence[Declared], dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> Shapes:
    """Return a shape for every input: by --shapes, else by --dims, else size 1."""
    by_name = {i.name: i for i in inputs}
    for name in shapes:
        if name not in by_name:
            raise UsageError(f"--shapes names {name}, but the inputs are {', '.join(by_name)}")
    known = {d for i in inputs for d in i.dims or () if isinstance(d, str)}
    names = known | {s for d in known for s in _symbols(d)}
    for name in dims:
        if name not in names:
            known_names = ", ".join(sorted(names)) or "none"
            raise UsageError(
                f"--dims names {name}, but the symbolic dims of the inputs are {known_names}"
            )
    sizes = dict(dims)
    for name, shape in shapes.items():
        _collect_sizes(by_name[name], shape, sizes)
    complete(inputs, sizes)
    return {i.name: shapes[i.name] if i.name in shapes else _shape(i, sizes) for i in inputs}


def _collect_sizes(declared: Declared, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Add the sizes of named dims in a shape, which must match the declared one."""
    if declared.dims is None:
        return
    what = f"--shapes gives {declared.name} the shape {list(shape)}"
    if len(shape) != len(declared.dims):
        raise UsageError(f"{what}, but the model declares {list(declared.dims)}")
    for dim, n in zip(declared.dims, shape, strict=True):
        if isinstance(dim, int) and dim >= 0 and dim != n:
            raise UsageError(f"{what}, but the model declares {list(declared.dims)}")
        if isinstance(dim, str) and sizes.setdefault(dim, n) != n:
            raise UsageError(f"{what}, but {dim} is {sizes[dim]} elsewhere")


def _shape(declared: Declared, sizes: Mapping[str, int]) -> tuple[int, ...]:
    dims = (None,) if declared.dims is None else declared.dims
    return tuple(_size(d, sizes) for d in dims)


def _size(dim: int | str | None, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int) and dim >= 0:
        return dim
    if not isinstance(dim, str):
        return 1
    if dim in sizes or dim.isidentifier():
        return sizes.get(dim, 1)
    # Exporters write expressions as names: past_length + 1.
    size = expression(dim)
    if size is None:
        return 1
    return max(0, evaluate(size, {s: sizes.get(s, 1) for s in symbols(size)}))


def expression(dim: str) -> Any:
    """Return the size that a dim's name expresses, as `past + 1`; None if it is only a name."""
    from sardonyx.load.graph_text import parse_size

    try:
        return parse_size(dim)
    except SardonyxError:
        return None


def _symbols(dim: str) -> frozenset[str]:
    size = None if dim.isidentifier() else expression(dim)
    return frozenset() if size is None else symbols(size)


def generate(inputs: Sequence[Declared], shapes: Shapes, seed: int = 0) -> dict[str, Any]:
    """Return random inputs of these shapes, the same ones in every call with a seed."""
    rng = np.random.default_rng(seed)
    return {i.name: _value(i.name, i.fact, shapes[i.name], rng) for i in inputs}


def _value(
    name: str, fact: AnyFact | None, shape: tuple[int, ...], rng: np.random.Generator
) -> Any:
    match fact:
        case Fact():
            return _array(name, fact.dtype, shape, rng)
        case OptionalFact():
            return _value(name, fact.elem, shape, rng)
        case SequenceFact():
            return [_value(name, fact.elem, shape, rng)]
        case MapFact():
            value = _value(name, fact.value, (), rng)
            return {"a" if fact.key is STRING else 0: getattr(value, "item", lambda: value)()}
    kind = type_name(fact) or "value of unknown type"
    raise InvalidArgument(
        f"input {name} is a {kind}, which cannot be generated",
        hint="pass it with --inputs FILE.npz",
    )


def _array(name: str, dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes > MAX_BYTES:
        raise InvalidArgument(
            f"input {name} of shape {list(shape)} takes {n_bytes} bytes, "
            f"and at most {MAX_BYTES} are generated",
            hint="pass smaller --dims or --shapes, or the input itself with --inputs FILE.npz",
        )
    if dtype is STRING:
        return np.full(shape, "a", object)
    if dtype.kind in ("int", "uint", "bool"):
        return rng.integers(0, 2, shape, np.int8).astype(dtype.np)
    return rng.standard_normal(shape, np.float32).astype(dtype.np)


def read(path: pathlib.Path, inputs: Sequence[Declared], *, strict: bool = True) -> dict[str, Any]:
    """Read inputs from a .npz file; if not `strict`, ignore arrays that are not inputs."""
    arrays = read_npz(path)
    feed: dict[str, Any] = {}
    for declared in inputs:
        if isinstance(declared.fact, SequenceFact):
            elements = [arrays.pop(k) for k in _element_names(declared.name, arrays)]
            feed[declared.name] = [_typed(e, declared.fact.elem) for e in elements]
        elif declared.name in arrays:
            feed[declared.name] = _typed(arrays.pop(declared.name), declared.fact)
    missing = [i.name for i in inputs if i.name not in feed]
    if missing:
        has = ", ".join(arrays) or "nothing else"
        raise InvalidArgument(f"{path} lacks the inputs {', '.join(missing)}", has=has)
    return feed | arrays if strict else feed


def store(feed: Mapping[str, Any], model: str, folder: pathlib.Path) -> dict[str, Any]:
    """Write inputs for another process; return the file and the types that .npz cannot express."""
    arrays, types = {}, {}
    for name, value in feed.items():
        if not isinstance(value, np.ndarray):
            raise InvalidArgument(
                f"input {name} of {model} is not a tensor: only those are passed to other processes"
            )
        arrays[name] = value.astype(str) if value.dtype == object else value
        if value.dtype.type.__module__ == "ml_dtypes":
            types[name] = value.dtype.name
    with open(folder / "inputs.npz", "wb") as file:
        write_arrays(file, arrays)
    return {"inputs": str(folder / "inputs.npz"), "types": types}


def _element_names(name: str, arrays: Mapping[str, Any]) -> list[str]:
    names: list[str] = []
    while (key := f"{name}.{len(names)}") in arrays:
        names.append(key)
    return names


def _typed(array: Any, fact: AnyFact | None) -> Any:
    """Convert an array to its declared type: .npz has neither string objects nor ml_dtypes."""
    if array.dtype.kind == "U":
        return array.astype(object)
    dtype = fact.dtype.np if isinstance(fact, Fact) else array.dtype
    if dtype.type.__module__ != "ml_dtypes" or array.dtype == dtype:
        return array
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    return array.astype(dtype)


def check_outputs(
    outputs: Iterable[pathlib.Path | None], inputs: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Raise if an output file cannot be written, is one of the inputs, or another output."""
    targets = [path for path in outputs if path is not None]
    real = [os.path.realpath(target) for target in targets]
    for target, resolved in zip(targets, real, strict=True):
        if real.count(resolved) > 1:
            raise UsageError(f"{target} is named for two outputs: choose another name for one")
        if not target.parent.is_dir():
            raise UsageError(f"there is no folder {target.parent} to write {target.name} to")
        if target.is_dir():
            raise UsageError(f"{target} is a folder: name a file in it")
        if target.exists() and not target.is_file():
            raise UsageError(f"{target} is not a regular file: choose another name")
    for path in inputs:
        for target in targets:
            if target.exists() and os.path.exists(path) and target.samefile(path):
                raise UsageError(f"{target} is read by this command: choose another name")


def input_files(arguments: argparse.Namespace) -> list[str | os.PathLike[str]]:
    """Return the files that a command reads by its arguments: the model, its pack, its inputs."""
    model = pathlib.Path(arguments.model)
    inputs = getattr(arguments, "inputs", None)  # not every command has it
    return [model, f"{model}{SUFFIX}", inputs or model.with_suffix(".npz")]
