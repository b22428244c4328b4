"""Errors of 8-bit models that several tools make of one model with the same samples.

    python -m bench.quantizers MODEL SAMPLES... [--tools ours,onnxruntime,nncf] [--models M...]

Every tool gets the samples that calibrate, and may quantize all that it can: sizes are about equal.
Prints the relative error of the outputs on the samples that are held out, as all models run here,
the size of the model, how many times faster than the original it is here, and the seconds it took.
For onnxruntime and NNCF each setting is a line; the search chooses among its own by the samples
that calibrate. NNCF: pip install nncf.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import sardonyx
from sardonyx.quantization.document import read_document
from sardonyx.quantization.search import SearchOptions, quantize_within
from sardonyx.quantization.search.evaluate import interleaved
from sardonyx.quantization.search.metrics import RelativeError
from sardonyx.quantization.search.samples import Part, read_samples

TOOLS = ("ours", "onnxruntime", "nncf")
Maker = Callable[[pathlib.Path], None]


def by_search(model: pathlib.Path, data: Any, seconds: float) -> Iterator[tuple[str, Maker]]:
    """Yield the search without a limit on what is lost: everything is quantized."""

    def make(out: pathlib.Path) -> None:
        limits = {"max_loss": 1e9, "min_speedup": 0.0}
        options = SearchOptions(metric="error", goal="accuracy", seconds=seconds, **limits)
        print(f"  chosen: {quantize_within(model, out, data, options).what}")

    yield "search", make


def by_onnxruntime(model: pathlib.Path, part: Part) -> Iterator[tuple[str, Maker]]:
    """Yield the settings of onnxruntime's quantization: per channel, by types and calibrators."""
    from onnxruntime import quantization as tools

    feeds = list(part.feeds())

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._feeds = iter(feeds)

        def get_next(self) -> Any:
            return next(self._feeds, None)

    def static(method: str, kind: str) -> Maker:
        def make(out: pathlib.Path) -> None:
            clean = out.with_name("clean.onnx")
            tools.quant_pre_process(model, clean, skip_symbolic_shape=True)
            tools.quantize_static(
                clean,
                out,
                Reader(),
                per_channel=True,
                activation_type=tools.QuantType[kind],
                weight_type=tools.QuantType.QInt8,
                calibrate_method=tools.CalibrationMethod[method],
            )

        return make

    for method in ("MinMax", "Percentile", "Entropy"):
        for kind in ("QUInt8", "QInt8"):
            yield f"static {method} {kind}", static(method, kind)

    def dynamic(out: pathlib.Path) -> None:
        tools.quantize_dynamic(model, out, per_channel=True, weight_type=tools.QuantType.QInt8)

    if any(n.op_type in ("MatMul", "Gemm") for n in read_document(os.fspath(model)).graph.nodes):
        yield "dynamic", dynamic


def by_nncf(model: pathlib.Path, part: Part) -> Iterator[tuple[str, Maker]]:
    """Yield the settings of NNCF's post-training quantization."""
    import nncf
    import onnx

    graph = read_document(os.fspath(model)).graph
    is_transformer = sum(n.op_type == "MatMul" for n in graph.nodes) > 4
    kind = nncf.ModelType.TRANSFORMER if is_transformer else None

    def quantized(preset: Any, fast: bool) -> Maker:
        def make(out: pathlib.Path) -> None:
            data = nncf.Dataset([dict(f) for f in part.feeds()])
            result = nncf.quantize(
                onnx.load(model),
                data,
                preset=preset,
                subset_size=len(part),
                fast_bias_correction=fast,
                model_type=kind,
            )
            onnx.save(result, out)

        return make

    for preset in (nncf.QuantizationPreset.PERFORMANCE, nncf.QuantizationPreset.MIXED):
        for fast in (True, False):
            how = "fast" if fast else "accurate"
            yield f"{preset.value}, {how} bias correction", quantized(preset, fast)


def measured(model: pathlib.Path, out: pathlib.Path, part: Part, seconds: float) -> str:
    """Return the error, the size and the speed of a quantized model, as text."""
    original, candidate = (sardonyx.InferenceSession(os.fspath(p)) for p in (model, out))
    metric = RelativeError()
    for sample in part:
        runs = (session.run(None, sample.feed) for session in (original, candidate))
        metric.add(*runs, sample)
    feed = next(iter(part)).feed
    speed = interleaved(
        lambda: original.run(None, feed), lambda: candidate.run(None, feed), seconds
    )
    size = sum(p.stat().st_size for p in out.parent.glob(f"{out.name}*") if p.is_file())
    return f"{metric.loss():8.3%} {size / 1e6:8.2f} MB {speed.speedup:6.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("samples", nargs="+")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--models", nargs="*", type=pathlib.Path, help="to measure as they are")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement of speed")
    arguments = parser.parse_args()
    model, seconds = arguments.model, arguments.seconds
    parts = read_samples(read_document(os.fspath(model)), arguments.samples).split()
    makers = {
        "ours": lambda: by_search(model, arguments.samples, seconds),
        "onnxruntime": lambda: by_onnxruntime(model, parts[0]),
        "nncf": lambda: by_nncf(model, parts[0]),
    }
    print(f"{model.name}: {len(parts[0])} samples calibrate, {len(parts[1])} check", flush=True)
    for path in arguments.models or ():
        print(f"{path.name:49} {measured(model, path, parts[1], seconds)}", flush=True)
    for tool in filter(None, arguments.tools.split(",")):
        for name, make in makers[tool]():
            with tempfile.TemporaryDirectory() as folder:
                out, began = pathlib.Path(folder) / "model.onnx", time.monotonic()
                try:
                    make(out)
                    took = time.monotonic() - began
                    text = f"{measured(model, out, parts[1], seconds)} {took:6.0f} s"
                except Exception as error:  # a tool that fails is a line of the table
                    text = f"fails: {str(error).splitlines()[0][:100]}"
                print(f"{tool:12} {name:36} {text}", flush=True)


if __name__ == "__main__":
    main()
