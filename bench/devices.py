"""What the benchmarks on devices share: networks of the zoo, sessions bound to tensors, clocks."""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import sardonyx

UNFINISHED = "disable_synchronize_execution_providers"  # the clock's own wait is enough
TYPES = {
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.bool: np.bool_,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all benchmarks on devices have."""
    parser.add_argument(
        "--zoo",
        type=Path,
        default=Path("models"),
        help="the folder of zoo_nets.py, export_zoo.py and make_llm.py",
    )
    parser.add_argument(
        "--work", type=Path, default=Path("build/gpu"), help="the folder that keeps what is made"
    )
    parser.add_argument(
        "--device", default="cuda", help="as torch names it: cuda, cuda:1, cpu, ..."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the figures there too")


def script(folder: Path, name: str) -> ModuleType:
    """A script of the zoo as a module."""
    if not (folder / f"{name}.py").is_file():
        raise SystemExit(f"{folder} holds no {name}.py; say by --zoo where the zoo's scripts are")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(name)


@dataclass(frozen=True)
class Network:
    """A network of the zoo in one type, on one device."""

    module: torch.nn.Module
    net: Any
    dtype: torch.dtype
    device: torch.device

    def inputs(self, batch: int) -> dict[str, torch.Tensor]:
        """Inputs of the zoo's sizes, the same in each call."""
        torch.manual_seed(1)
        made = self.net.make({"batch": batch, **self.net.sizes})
        return dict(zip(self.net.inputs, self._cast(made), strict=True))

    def traced(self, sizes: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
        """Inputs of other sizes."""
        return self._cast(self.net.make(sizes))

    def _cast(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Tensors on the device, floats in the network's type."""
        return tuple(
            t.to(self.device, self.dtype if t.is_floating_point() else t.dtype) for t in tensors
        )


def build(zoo: Path, name: str, dtype: torch.dtype, device: torch.device) -> Network:
    """A network with the weights that the zoo gives it."""
    nets, export_zoo = script(zoo, "zoo_nets"), script(zoo, "export_zoo")
    builders = nets.networks()
    if name not in builders:
        raise SystemExit(f"the zoo has no network {name}; there are {', '.join(builders)}")
    torch.manual_seed(0)
    net = builders[name]()
    net.model.eval().requires_grad_(False)
    export_zoo.settle(net)
    return Network(nets.Call(net).eval().to(device, dtype), net, dtype, device)


def export(zoo: Path, network: Network, path: Path, opset: int) -> None:
    """Writes a network as ONNX with the free dims that the zoo gives it, unless it is there."""
    if path.exists():
        return
    net = network.net
    axes = {
        name: {i: d for i, d in enumerate(dims) if isinstance(d, str)}
        for name, (dims, _) in net.inputs.items()
    }
    options: dict[str, Any] = {"dynamic_axes": axes}
    if net.dynamo:
        options = {"dynamic_shapes": (tuple(axes.values()),), "external_data": False}
        options["verbose"] = False
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    torch.onnx.export(
        network.module,
        network.traced(script(zoo, "export_zoo").TRACE),
        str(unfinished),
        input_names=list(net.inputs),
        output_names=net.outputs,
        opset_version=opset,
        dynamo=net.dynamo,
        **options,
    )
    unfinished.rename(path)


def provider(device: torch.device, **options: object) -> tuple[str, dict[str, str]]:
    """Our provider for a device, as sessions take it."""
    given = {key: str(value) for key, value in options.items()}
    if device.type == "cuda":
        return "CUDAExecutionProvider", {"device_id": str(device.index or 0), **given}
    return "TorchExecutionProvider", {"device": device.type, **given}


def run_options(**entries: str) -> sardonyx.RunOptions:
    """Options of a run, given by config entries."""
    options = sardonyx.RunOptions()
    for key, value in entries.items():
        options.add_run_config_entry(key, value)
    return options


class Bound:
    """A session whose inputs and outputs are tensors that stay where they are."""

    def __init__(
        self,
        session: sardonyx.InferenceSession,
        inputs: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        **entries: str,
    ) -> None:
        self.outputs = list(outputs.values())
        self._kept = inputs, outputs
        self._session, self._binding = session, session.io_binding()
        self._options = run_options(**{UNFINISHED: "1", **entries})
        for name, tensor in inputs.items():
            self._binding.bind_input(name, *_raw(tensor))
        for name, tensor in outputs.items():
            self._binding.bind_output(name, *_raw(tensor))

    def __call__(self) -> list[torch.Tensor]:
        """One run, which the device may still be at."""
        self._session.run_with_iobinding(self._binding, self._options)
        return self.outputs


def _raw(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A tensor as bindings take memory."""
    if not tensor.is_contiguous():
        raise ValueError("only contiguous tensors are bound")
    index = tensor.device.index or 0
    kind = TYPES[tensor.dtype]
    return tensor.device.type, index, kind, tuple(tensor.shape), tensor.data_ptr()


def elsewhere(session: sardonyx.InferenceSession) -> dict[str, int]:
    """Return the number of nodes per op on the CPU's providers, without those of bodies."""
    nodes = session._compiled.program.nodes()
    return dict(Counter(node.op.name for node, by, _ in nodes if by in ("cpu", "reference")))


def synchronize(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


Call = Callable[[], Any]


def milliseconds(
    calls: Mapping[str, Call], device: torch.device, rounds: int, seconds: float
) -> dict[str, float]:
    """The time of one call and of the wait for it: the median over rounds of each one's median.

    Calls take turns, so that whatever else the machine does hits all alike.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(_round(call, device, seconds))
    return {name: statistics.median(times) * 1e3 for name, times in found.items()}


def _round(call: Call, device: torch.device, seconds: float) -> float:
    times: list[float] = []
    call()
    synchronize(device)
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def difference(got: Sequence[Any], want: Sequence[Any]) -> float:
    """The largest difference relative to the largest value; inf where the two are not alike."""
    if len(got) != len(want):
        return float("inf")
    return max((_differs(_array(g), _array(w)) for g, w in zip(got, want, strict=True)), default=0)


def _array(value: Any) -> Any:
    return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)


def _differs(got: Any, want: Any) -> float:
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    if want.dtype.kind not in "fiu":
        return 0.0 if np.array_equal(got, want) else float("inf")
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return float("inf")
    a, b = a[finite], b[finite]
    return float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-30))


def said(error: BaseException) -> str:
    """An error in one short line."""
    line = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {line}"[:200]
