#!/usr/bin/env python3
"""Runs the test models of an onnxruntime checkout on onnxruntime and here, and compares.

    ort_testdata.py CHECKOUT                the models of onnxruntime/test/testdata in a checkout
    ort_testdata.py CHECKOUT --only quant   those with this in their path
    ort_testdata.py CHECKOUT --all          what became of each of them

Each model gets generated inputs, for several sizes of its symbolic dims, and those of the folders
test_data_set_* beside it. What became of it is one of:

    agree        both ran, and results are equal within the tolerance
    refused      neither ran it
    differs      results differ
    ours refuse  onnxruntime ran it, and Sardonyx did not
    only ours    Sardonyx ran it, and onnxruntime did not
    random       it has nodes that draw random numbers: only types and shapes were compared
    optimizer    onnxruntime without its optimizer agrees with Sardonyx, or refuses as it does
    known        one of the differences listed in KNOWN, each with its reason

Each runtime is a process of its own (`tools/ort_testdata_runtime.py`), which is replaced when it
dies or does not answer.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from sardonyx.cli.compare.difference import difference  # noqa: E402  # after the path above
from tests.hostile_runs import DTYPES  # noqa: E402
from tools.ort_testdata_runtime import Refused, Runtime  # noqa: E402

KINDS: Final = (
    "agree", "refused", "random", "optimizer", "known", "differs", "ours refuse", "only ours",
)  # fmt: skip
KNOWN: Final = {
    "dummy_t5_with_sequence_input_ids.onnx": "beams whose scores differ by the last bit",
    "dummy_whisper_with_sequence_input_ids.onnx": (
        "onnxruntime passes uninitialized memory to the decoder as encoder_hidden_states"
    ),
}
# Inputs of searches and samplers, which are not any number.
NUMBERS: Final = {
    "max_length": 12, "min_length": 1, "num_beams": 2, "num_return_sequences": 1, "beams": 2,
    "length_penalty": 1.0, "repetition_penalty": 1.0, "temperature": 1.0, "top_p": 0.9, "seed": 1,
    "logits_processor": 0, "num_return": 1,
}  # fmt: skip
QUIET: Final = ("agree", "refused", "random")
FAILURES: Final = ("differs", "ours refuse")
RANDOM: Final = re.compile(
    rb"Random(Normal|Uniform)|Multinomial|Bernoulli|\x22\x07Dropout|Sampling|Dropout\x22"
)
# Sizes of symbolic dims: of all of them, or 0: another one for each name.
SIZES: Final = (2, 1, 3, 0, 8)
HALF_TOLERANCE: Final = 1e-2  # where inputs or results are float16
SUBNORMAL: Final = 1e-6  # float16 rounds these to whole multiples of 6e-8
MAX_ELEMENTS: Final = 1 << 24
MAX_ACTIVATION: Final = 1 << 16  # elements of an input that is not a weight


@dataclass(frozen=True)
class Outcome:
    """The outcome of a model."""

    path: str
    kind: str
    detail: str = ""


class Comparison:
    """Compares models one after the other, in two processes."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._theirs, self._ours = Runtime("onnxruntime"), Runtime("sardonyx")
        self._plain = Runtime("onnxruntime", optimizes=False)

    def stop(self) -> None:
        """End both processes."""
        self._theirs.stop()
        self._ours.stop()
        self._plain.stop()

    def outcome(self, path: Path, name: str) -> Outcome:
        """Return what became of a model."""
        found = self._compared(path, name)
        if name in KNOWN and found.kind in FAILURES:
            return Outcome(name, "known", KNOWN[name])
        return found

    def _compared(self, path: Path, name: str) -> Outcome:
        theirs, ours = self._theirs.load(path), self._ours.load(path)
        if isinstance(theirs, Refused):
            return self._refused_there(path, name, theirs, ours)
        if isinstance(ours, Refused):
            if not self._runs_there(path, theirs):
                return Outcome(name, "refused", f"ours: {ours}")
            differs = any(self._plain_differs(path, f, ours) for f in _feeds(path, theirs))
            return Outcome(name, "ours refuse" if differs else "optimizer", f"load: {ours}")
        is_random = RANDOM.search(path.read_bytes()) is not None
        found = [self._attempt(path, feed, is_random) for feed in _feeds(path, ours)]
        found.sort(key=lambda pair: _SEVERITY.index(pair[0]))
        kind, detail = found[-1] if found else ("refused", "no inputs could be made")
        if kind == "agree" and is_random:
            kind = "random"
        return Outcome(name, kind, detail)

    def _refused_there(self, path: Path, name: str, theirs: Refused, ours: Any) -> Outcome:
        if isinstance(ours, Refused):
            return Outcome(name, "refused", f"theirs: {theirs} | ours: {ours}")
        results = (self._ours.run(feed) for feed in _feeds(path, ours))
        if any(not isinstance(r, Refused) for r in results):
            return Outcome(name, "only ours", f"theirs: {theirs}")
        return Outcome(name, "refused", f"theirs: {theirs}")

    def _runs_there(self, path: Path, inputs: Any) -> bool:
        return any(not isinstance(self._theirs.run(f), Refused) for f in _feeds(path, inputs))

    def _attempt(self, path: Path, feed: dict[str, Any], is_random: bool) -> tuple[str, str]:
        """Run one feed on both; return what became of it."""
        shapes = {k: getattr(v, "shape", "") for k, v in feed.items()}
        theirs, ours = self._theirs.run(feed), self._ours.run(feed)
        if isinstance(theirs, Refused):
            if isinstance(ours, Refused):
                return "refused", f"theirs: {theirs} | ours: {ours}"
            kind = "only ours" if self._plain_differs(path, feed, ours) else "optimizer"
            return kind, f"theirs: {theirs} | {shapes}"
        if isinstance(ours, Refused):
            kind = "ours refuse" if self._plain_differs(path, feed, ours) else "optimizer"
            return kind, f"run: {ours} | {shapes}"
        again = theirs if is_random else self._theirs.run(feed)
        if isinstance(again, Refused) or _differs(theirs, again, 0.0):
            is_random = True  # or uninitialized memory
        tolerance = self._tolerance_for([*feed.values(), *theirs])
        if text := _differs(theirs, ours, float("inf") if is_random else tolerance):
            kind = "differs" if self._plain_differs(path, feed, ours) else "optimizer"
            return kind, f"{text} | {shapes}"
        return "agree", ""

    def _plain_differs(self, path: Path, feed: dict[str, Any], ours: Any) -> bool:
        """Return whether onnxruntime without its optimizer does something else than Sardonyx."""
        loaded = self._plain.load(path)
        plain = loaded if isinstance(loaded, Refused) else self._plain.run(feed)
        if isinstance(plain, Refused) or isinstance(ours, Refused):
            return type(plain) is not type(ours)
        return bool(_differs(plain, ours, self._tolerance_for([*feed.values(), *plain])))

    def _tolerance_for(self, values: list[Any]) -> float:
        is_half = any(getattr(getattr(v, "dtype", None), "itemsize", 4) == 2 for v in values)
        return max(self._tolerance, HALF_TOLERANCE) if is_half else self._tolerance


# A model whose attempts end differently is counted as the last of these.
_SEVERITY: Final = ("refused", "agree", "optimizer", "only ours", "differs", "ours refuse")


def _differs(a: list[Any], b: list[Any], tolerance: float) -> str:
    """Return how results differ; nothing if they are equal within the tolerance."""
    if len(a) != len(b):
        return f"{len(a)} and {len(b)} outputs"
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if (x is None) != (y is None):
            return f"output {i}: {'absent' if x is None else 'present'} there"
        found = difference(x, y, tolerance)
        kind = getattr(x, "dtype", np.dtype(np.float32))
        if tolerance and kind.itemsize == 1 and kind.kind in "iu" and found.max_abs <= 1:
            continue  # rounding of quantized results
        if tolerance and kind == np.float16 and found.max_abs <= SUBNORMAL:
            continue
        if found.exceeds(tolerance) or (found.note and tolerance):
            return f"output {i}: {found.note or f'by {found.fraction:.2g} of the largest value'}"
    return ""


def _feeds(path: Path, inputs: list[tuple[str, str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield feeds: the stored ones, then generated ones."""
    for folder in sorted(path.parent.glob("test_data_set_*")):
        feed = _stored(folder, [name for name, *_ in inputs])
        if feed is not None:
            yield feed
    symbolic = any(not isinstance(d, int) for *_, shape in inputs for d in shape or ())
    for seed, size in enumerate(SIZES if symbolic else SIZES[:2]):
        rng, sizes = np.random.default_rng(seed), dict[str, int]()
        try:
            feed = {n: _value(kind, shape, size, sizes, rng) for n, kind, shape in inputs}
            yield {n: _named(n, value) for n, value in feed.items()}
        except ValueError:
            continue  # of a type that cannot be generated, or too large


def _stored(folder: Path, names: list[str]) -> dict[str, Any] | None:
    import onnx
    from onnx import numpy_helper

    feed = {}
    for i, name in enumerate(names):
        file = folder / f"input_{i}.pb"
        if not file.is_file():
            return None
        try:
            tensor = onnx.TensorProto.FromString(file.read_bytes())
            feed[name if not tensor.name else tensor.name] = numpy_helper.to_array(tensor)
        except Exception:  # a sequence, a Git LFS pointer
            return None
    return feed if feed.keys() == set(names) else None


def _named(name: str, value: Any) -> Any:
    """Return the value of an input of a search, by its name; that of any other unchanged."""
    number = NUMBERS.get(name)
    return value if number is None or value.size > 1 else np.full_like(value, number)


def _value(
    kind: str, shape: Any, size: int, sizes: dict[str, int], rng: np.random.Generator
) -> Any:
    outer, _, rest = kind.partition("(")
    inner = rest.removesuffix(")")
    if outer == "optional":
        return _value(inner, shape, size, sizes, rng)
    if outer == "seq":
        return [_value(inner, shape, size, sizes, rng) for _ in range(2)]
    if outer == "map":
        key, _, value = inner.partition(",")
        items = ["a", "b"] if key == "string" else [0, 1]
        return {k: _value(value, [], size, sizes, rng).item() for k in items}
    if outer != "tensor" or inner not in DTYPES:
        raise ValueError(kind)
    dims = [2, 3] if shape is None else [_size(d, size, sizes) for d in shape]
    if int(np.prod(dims)) > MAX_ELEMENTS:
        raise ValueError(dims)
    return _array(DTYPES[inner].np if inner != "string" else None, dims, rng)


def _size(dim: int | str | None, size: int, sizes: dict[str, int]) -> int:
    if isinstance(dim, int):
        return dim if dim >= 0 else size or 2
    return size or sizes.setdefault(dim or f"#{len(sizes)}", 2 + len(sizes))


def _array(dtype: Any, dims: list[int], rng: np.random.Generator) -> Any:
    if dtype is None:
        return rng.choice(np.array(["a", "bc", "Monday"], object), dims)
    if dtype.kind in "iub" or "int" in dtype.name:
        return np.asarray(rng.integers(0, 2, dims, np.int8)).astype(dtype)
    # Large inputs are weights: products of them must not saturate a softmax.
    scale = np.float32(0.05 if np.prod(dims) > MAX_ACTIVATION else 1)
    return np.asarray(rng.standard_normal(dims, np.float32) * scale).astype(dtype)


def main() -> int:
    """Compare all models, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="folder of a checkout, or with models")
    parser.add_argument("--only", default="", metavar="TEXT", help="models with this in their path")
    parser.add_argument("--jobs", type=int, default=1, help="models at once")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of the largest value")
    parser.add_argument("--all", action="store_true", help="shows what became of every model")
    arguments = parser.parse_args()
    root = arguments.checkout / "onnxruntime/test/testdata"
    root = root if root.is_dir() else arguments.checkout
    paths = sorted(p for p in root.rglob("*") if p.suffix in (".onnx", ".ort") and p.is_file())
    chosen = [p for p in paths if arguments.only in str(p.relative_to(root))]
    local, started = threading.local(), list[Comparison]()

    def compare(path: Path) -> Outcome:
        if not hasattr(local, "comparison"):
            local.comparison = Comparison(arguments.tolerance)
            started.append(local.comparison)
        outcome: Outcome = local.comparison.outcome(path, str(path.relative_to(root)))
        return outcome

    counts: collections.Counter[str] = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for outcome in pool.map(compare, chosen):
            counts[outcome.kind] += 1
            if arguments.all or outcome.kind not in QUIET:
                detail = " ".join(outcome.detail.split())[:400]
                print(f"{outcome.kind:<12}{outcome.path} | {detail}", flush=True)
    for comparison in started:
        comparison.stop()
    print(f"{len(chosen)} models: {', '.join(f'{counts[kind]} {kind}' for kind in KINDS)}")
    return any(counts[kind] for kind in FAILURES)


if __name__ == "__main__":
    sys.exit(main())
