"""Checks that `sardonyx diff` names the faulty node of models with one fault each.

tools/diff_faults.py FOLDER --count 100 --seed 0     # FOLDER has .onnx files, without external data
tools/diff_faults.py FOLDER --count 0 --memory       # the memory that the command takes for each

A fault is drawn by its seed: a bit of a weight, an attribute, the operands of an op that is not
commutative, the type of a Cast, or a kernel that computes one element wrongly. Faults that change
no value on the inputs are drawn again: where onnxruntime computes the same bits for the node with
and without the fault, or where the faulty kernel is never called, as its node is folded away. So
are models that cannot be loaded. Both are counted.

Memory is the peak of resident memory of a process of `sardonyx diff`, for a model and the same with
a fault, as a multiple of that of `sardonyx run`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper

import sardonyx
from sardonyx.cli import main as command_line
from sardonyx.providers.reference import Reference

_ORDERED: Final = ("Sub", "Div", "MatMul", "Pow", "Concat", "Less", "Greater", "Where")
_CAST_TYPES: Final = (TensorProto.FLOAT16, TensorProto.INT32, TensorProto.BOOL, TensorProto.DOUBLE)
_FAULTY: Final = "FaultyExecutionProvider"
MAX_MEMORY: Final = 2.0  # of a run's
_MEASURE: Final = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@dataclass(frozen=True)
class Fault:
    """A fault in a model, and the nodes, by their outputs, that may be named for it."""

    kind: str
    text: str
    outputs: tuple[str, ...]


class Faulty(Reference):
    """Computes one node wrongly, and leaves the others to the CPU provider."""

    name, node, n_calls = _FAULTY, "", 0

    def claims(self, node: Any) -> Any:
        """Claim the faulty node alone."""
        answer = super().claims(node)
        is_wanted = node.name == Faulty.node and not node.subgraphs
        return answer if is_wanted else sardonyx.place.No("it is not the faulty node")

    def compile(self, region: Any, bodies: Any) -> Any:
        """Return the reference's calls, with a wrong element in the first output of each."""
        return [_wrong(compiled) for compiled in super().compile(region, bodies)]


def _wrong(compiled: Any) -> Any:
    from sardonyx.place.provider import CompiledNode

    def call(arrays: Sequence[Any], run: Any) -> Sequence[Any]:
        results = [np.array(r) for r in compiled.call(arrays, run)]
        Faulty.n_calls += 1
        flat = results[0].reshape(-1)
        if flat.size:
            at = flat.size // 2
            if flat.dtype == bool:
                flat[at] = not flat[at]
            else:
                flat[at] += flat.dtype.type(np.abs(flat).max() * 0.25 + 1)
        return results

    return CompiledNode(compiled.node, call, "faulty")


def weight_bit(model: Any, rng: random.Random) -> Fault | None:
    """Flip a bit of a float weight."""
    graph = model.graph
    tensors = [t for t in graph.initializer if t.data_type == TensorProto.FLOAT]
    if not tensors:
        return None
    tensor = rng.choice(tensors)
    array = numpy_helper.to_array(tensor).copy()
    if not array.size:
        return None
    element, bit = rng.randrange(array.size), rng.randrange(32)
    array.reshape(-1).view(np.uint32)[element] ^= np.uint32(1 << bit)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    readers = [n.output[0] for n in graph.node if tensor.name in n.input]
    text = f"bit {bit} of element {element} of {tensor.name}"
    return Fault("weight", text, tuple(readers)) if readers else None


def attribute(model: Any, rng: random.Random) -> Fault | None:
    """Change a number of an attribute."""
    kinds = (onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT, onnx.AttributeProto.INTS)
    choices = [
        (node, a)
        for node in model.graph.node
        for a in node.attribute
        if a.type in kinds and node.op_type not in ("Cast", "Constant")
    ]
    if not choices:
        return None
    node, chosen = rng.choice(choices)
    if chosen.type == onnx.AttributeProto.FLOAT:
        chosen.f = chosen.f * 1.5 + 0.1
    elif chosen.type == onnx.AttributeProto.INT:
        # 0 and 1 may be flags, for which other numbers have no meaning of their own.
        chosen.i = 1 - chosen.i if chosen.i in (0, 1) else chosen.i + 1
    elif len(chosen.ints) > 1 and chosen.name == "perm":
        i, j = rng.sample(range(len(chosen.ints)), 2)
        chosen.ints[i], chosen.ints[j] = chosen.ints[j], chosen.ints[i]
    elif chosen.ints:
        chosen.ints[rng.randrange(len(chosen.ints))] += 1
    return Fault("attribute", f"{chosen.name} of {node.op_type}", (node.output[0],))


def operands(model: Any, rng: random.Random) -> Fault | None:
    """Swap two operands."""
    nodes = [n for n in model.graph.node if n.op_type in _ORDERED and len(set(n.input)) > 1]
    if not nodes:
        return None
    node = rng.choice(nodes)
    i, j = (1, 2) if node.op_type == "Where" else (0, 1)
    node.input[i], node.input[j] = node.input[j], node.input[i]
    return Fault("operands", f"of {node.op_type}", (node.output[0],))


def cast_type(model: Any, rng: random.Random) -> Fault | None:
    """Change the type of a Cast."""
    nodes = [n for n in model.graph.node if n.op_type == "Cast"]
    if not nodes:
        return None
    node = rng.choice(nodes)
    to = next(a for a in node.attribute if a.name == "to")
    to.i = rng.choice([t for t in _CAST_TYPES if t != to.i])
    return Fault("type", f"Cast to {to.i}", (node.output[0],))


def kernel(model: Any, rng: random.Random) -> Fault | None:
    """Choose a node that the faulty provider computes."""
    names = Counter(n.name for n in model.graph.node)
    nodes = [n for n in model.graph.node if n.name and names[n.name] == 1]
    if not nodes:
        return None
    node = rng.choice(nodes)
    Faulty.node, Faulty.n_calls = node.name, 0
    return Fault("kernel", f"of {node.name}", (node.output[0],))


KINDS: Final[tuple[Callable[[Any, random.Random], Fault | None], ...]] = (
    weight_bit, attribute, operands, cast_type, kernel,
)  # fmt: skip


def run_diff(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status of `sardonyx diff` and what it reports."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        status = command_line(["diff", *arguments, "--json"])
    return status, json.loads(printed.getvalue()) if printed.getvalue() else {}


def has_effect(a: Any, b: Any, fault: Fault, inputs: dict[str, Any]) -> bool:
    """Return whether onnxruntime computes other bits for the node, or cannot run it."""
    values = []
    for model in (a, b):
        extended = onnx.ModelProto()
        extended.CopyFrom(model)
        known = {o.name for o in model.graph.output}
        extra = [onnx.ValueInfoProto(name=n) for n in fault.outputs if n not in known]
        extended.graph.output.extend(extra)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(extended.SerializeToString(), options)
            values.append(session.run(list(fault.outputs), inputs))
        except Exception:
            return True
    pairs = zip(*values, strict=True)
    return any(x.dtype != y.dtype or x.tobytes() != y.tobytes() for x, y in pairs)


def inputs_of(path: Path) -> dict[str, Any]:
    """Return the inputs that the command generates."""
    from sardonyx.cli.inputs import generate, settle

    declared = sardonyx.InferenceSession(str(path))._compiled.model.inputs
    return generate(declared, settle(declared, {}, {}))


def check(path: Path, seed: int, folder: Path) -> tuple[str, Fault | None]:
    """Draw a fault and return the outcome: found, dead, unloadable, none or missed."""
    rng = random.Random(seed)
    original, faulty = onnx.load(path), onnx.load(path)
    fault = rng.choice(KINDS)(faulty, rng)
    if fault is None:
        return "none", None
    if fault.kind == "kernel":
        _, report = run_diff(str(path), "--providers", f"cpu,{_FAULTY}")
        if not Faulty.n_calls:
            return "dead", fault
    else:
        if not has_effect(original, faulty, fault, inputs_of(path)):
            return "dead", fault
        onnx.save(faulty, folder / "faulty.onnx")
        status, report = run_diff(str(path), str(folder / "faulty.onnx"))
        if status == 2:
            return "unloadable", fault
    first = report.get("first")
    is_found = first is not None and first["outputs"][0] in fault.outputs
    return "found" if is_found else "missed", fault


def peak(*arguments: str) -> float:
    """Return the peak of resident memory of a command, in MB."""
    # A process begins with the peak of the one that starts it, so a small one does.
    command = [sys.executable, "-c", _MEASURE, sys.executable, "-m", "sardonyx", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    status, _, kilobytes = done.stdout.strip().partition(" ")
    if status not in ("0", "1"):  # 1: there are differences
        raise SystemExit(f"sardonyx {' '.join(arguments)}: exit code {status}: {done.stderr}")
    return int(kilobytes) / 1e3


def largest_ratio(models: Sequence[Path], seed: int, folder: Path) -> float:
    """Return the largest ratio of memory, and print that of each model."""
    largest = 0.0
    for path in models:
        faulty = onnx.load(path)
        if weight_bit(faulty, random.Random(seed)) is None:
            continue
        onnx.save(faulty, folder / "faulty.onnx")
        size = path.stat().st_size / 1e6
        del faulty
        run, diff = peak("run", str(path)), peak("diff", str(path), str(folder / "faulty.onnx"))
        print(
            f"{path.stem:<28} {size:7.1f} MB  run {run:7.1f}  diff {diff:7.1f}  {diff / run:.2f}x"
        )
        largest = max(largest, diff / run)
    print(f"at most {largest:.2f}x the memory of a run", flush=True)
    return largest


def main() -> int:
    """Draw faults until `--count` have an effect, and print how many were found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", action="store_true", help="measure memory too")
    arguments = parser.parse_args()
    models = sorted(arguments.folder.glob("*.onnx"))
    sardonyx.register_provider(_FAULTY, lambda options: Faulty())
    outcomes: Counter[tuple[str, str]] = Counter()
    n_found = n_drawn = 0
    seed = arguments.seed
    with tempfile.TemporaryDirectory() as folder:
        while n_drawn < arguments.count:
            path = models[seed % len(models)]
            outcome, fault = check(path, seed, Path(folder))
            outcomes[outcome, fault.kind if fault else ""] += 1
            n_drawn += outcome in ("found", "missed")
            n_found += outcome == "found"
            if outcome in ("missed", "unloadable"):
                print(f"{outcome}: seed {seed}, {path.name}, {fault}", flush=True)
            seed += 1
        ratio = largest_ratio(models, arguments.seed, Path(folder)) if arguments.memory else 0.0
    for (outcome, kind), n in sorted(outcomes.items()):
        print(f"{outcome:<10} {kind:<10} {n}")
    print(f"{n_found} of {n_drawn} faults found, seeds {arguments.seed} to {seed - 1}")
    return 0 if n_found == n_drawn and ratio <= MAX_MEMORY else 1


if __name__ == "__main__":
    sys.exit(main())
