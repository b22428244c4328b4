"""The torch provider: nodes as torch calls, on whatever device torch drives."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sardonyx.errors import FAULTS, RuntimeException
from sardonyx.graph.dtype import by_numpy
from sardonyx.graph.graph import Node
from sardonyx.place.provider import TORCH_HOST, No, Region, Step, Yes
from sardonyx.providers.torch import control
from sardonyx.providers.torch.claim import COPY, LOOKS, SIZES, row_of, unfit
from sardonyx.providers.torch.cuda_graphs import CudaRecorder, Recorder
from sardonyx.providers.torch.dtypes import as_array, as_tensor
from sardonyx.providers.torch.loader import TorchLoader
from sardonyx.providers.torch.options import TorchOptions
from sardonyx.providers.torch.region import TorchRegion
from sardonyx.providers.torch.settings import SETTINGS
from sardonyx.weights.loading import LoaderManager, WeightReference

if TYPE_CHECKING:
    from sardonyx.program.program import Program


class Torch:
    """Runs nodes by torch, on one of its devices."""

    takes_joined = True  # it knows our own ops

    def __init__(self, name: str, options: TorchOptions) -> None:
        self.name = name
        self.options = options
        self.place = _device(options)
        self.device = TORCH_HOST if self.place.type == "cpu" else str(self.place)
        self.limit_bytes = options.gpu_mem_limit
        self._process = os.getpid()
        self.recorder: Recorder | None = None
        if options.enable_cuda_graph and self.place.type == "cuda":
            self.recorder = CudaRecorder(self.place)

    def claims(self, node: Node) -> Yes | No:
        """Yes to nodes that have a function for their types."""
        if node.op.key in (COPY, SIZES):
            return Yes("sizes of the run")
        if node.op.key in LOOKS:
            why = unfit(node.inputs[0]) if node.inputs[0] is not None else ""
            return No(why) if why else Yes("sizes of a tensor")
        if node.op.has_bodies:
            return control.claims(node)
        row = row_of(node)
        return row if isinstance(row, No) else Yes("torch")

    def host_inputs(self, node: Node) -> frozenset[int]:
        """Those that functions read as arrays."""
        if node.op.key == COPY:
            return frozenset() if node.attrs["to"] == b"cpu" else frozenset((0,))
        if node.op.has_bodies:
            return control.host_inputs(node)
        row = row_of(node)
        return frozenset() if isinstance(row, No) else frozenset(row.host)

    def host_outputs(self, node: Node) -> frozenset[int]:
        """Sizes are made on the host."""
        if node.op.key == SIZES or node.op.key in LOOKS:
            return frozenset((0,))
        return frozenset()

    def to_device(self, array: Any) -> torch.Tensor:
        """A copy of an array on the device."""
        dtype = by_numpy(array.dtype)
        assert dtype is not None
        tensor = as_tensor(np.asarray(array), dtype)
        return tensor.clone() if self.place.type == "cpu" else tensor.to(self.place)

    def to_host(self, value: torch.Tensor) -> Any:
        """A copy of a tensor as an array."""
        tensor = value.clone() if value.device.type == "cpu" else value.cpu()
        return as_array(tensor)

    def loader(self) -> TorchLoader:
        """The one that streams files to the device."""
        return TorchLoader(
            self.place, self.device, self.options.external_data_loader_reading_threads
        )

    def load(
        self, weights: Sequence[WeightReference], check: Callable[[], None]
    ) -> list[torch.Tensor]:
        """Constants on the device, each in the form that it is wanted in."""
        manager = LoaderManager([self.loader()])
        try:
            return manager.place(weights, self.device, self.to_device, check)
        except BaseException:
            if self.place.type == "cuda":
                torch.cuda.empty_cache()  # torch keeps for itself what was freed
            raise

    def compile(self, region: Region, bodies: dict[Node, dict[str, Program]]) -> Sequence[Step]:
        """Control flow, whose bodies are programs of their own."""
        return [control.step(self, node, bodies[node]) for node in region.nodes]

    def compile_region(self, region: Region) -> TorchRegion:
        """A function of the whole region."""
        return TorchRegion(self, region)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The state of torch in which regions run."""
        if os.getpid() != self._process:
            raise RuntimeException(
                f"the session was made for {self.device} before a fork, which torch does not "
                "survive",
                hint="make sessions in the child process, or start it by spawn",
            )
        searches = self.options.cudnn_conv_algo_search == "EXHAUSTIVE"
        with torch.no_grad():
            if self.place.type != "cuda":  # which alone has settings
                yield
                return
            with SETTINGS.held(self.options.use_tf32, searches), self._on_stream():
                yield

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        """On a stream of the user's, if there is one: behind torch's current one, and before it."""
        with torch.cuda.device(self.place):
            if not self.options.user_compute_stream:
                yield
                return
            stream = torch.cuda.ExternalStream(  # type: ignore[no-untyped-call]
                self.options.user_compute_stream, self.place
            )
            current = torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                yield
            current.wait_stream(stream)

    def synchronize(self) -> None:
        """Waits until the device has done all that it was given."""
        if self.place.type == "cuda":
            torch.cuda.synchronize(self.place)


def _device(options: TorchOptions) -> torch.device:
    """The device that is asked for, if it works; an error that says why it does not otherwise."""
    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(kind)
        if device.type == "cpu":
            return device
        if device.index is None:
            device = torch.device(device.type, options.device_id)
        torch.zeros(1, device=device)
    except (*FAULTS, AssertionError, RuntimeError) as error:
        said = str(error).strip().partition("\n")[0]
        raise RuntimeException(
            f"torch {torch.__version__} cannot use the device {kind}: {said}",
            hint='give the option device="cpu", or leave the provider out',
        ) from None
    return device
