"""The torch provider: runs nodes as torch calls, on any device of torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sardonyx.errors import UNEXPECTED_ERRORS, RuntimeException
from sardonyx.graph.dtype import by_numpy
from sardonyx.graph.graph import Node
from sardonyx.place.provider import TORCH_HOST, CompiledNode, No, Region, Yes
from sardonyx.providers.torch import control
from sardonyx.providers.torch.claim import COPY, SHAPE_OPS, SIZES, kernel_of, why_unsupported
from sardonyx.providers.torch.cuda_graphs import CudaRecorder, Recorder
from sardonyx.providers.torch.dtypes import as_array, as_tensor
from sardonyx.providers.torch.index import KERNELS
from sardonyx.providers.torch.loader import TorchLoader
from sardonyx.providers.torch.options import TorchOptions
from sardonyx.providers.torch.region import TorchRegion
from sardonyx.providers.torch.settings import SETTINGS
from sardonyx.weights.loading import LoaderManager, WeightReference

if TYPE_CHECKING:
    from sardonyx.program.program import Program


class Torch:
    """Runs nodes on one device of torch."""

    accepts_fused_ops = True  # it accepts internal fused ops
    kernels = frozenset(KERNELS)  # ops that are not decomposed

    def __init__(self, name: str, options: TorchOptions) -> None:
        self.name = name
        self.options = options
        self.torch_device = _device(options)
        self.device = TORCH_HOST if self.torch_device.type == "cpu" else str(self.torch_device)
        self.limit_bytes = options.gpu_mem_limit
        self._process = os.getpid()
        self.recorder: Recorder | None = None
        if options.enable_cuda_graph and self.torch_device.type == "cuda":
            self.recorder = CudaRecorder(self.torch_device)

    def claims(self, node: Node) -> Yes | No:
        """Accept nodes that have a kernel for their types."""
        if node.op.key in (COPY, SIZES):
            return Yes("sizes of the run")
        if node.op.key in SHAPE_OPS:
            why = why_unsupported(node.inputs[0]) if node.inputs[0] is not None else ""
            return No(why) if why else Yes("sizes of a tensor")
        if node.op.has_bodies:
            return control.claims(node)
        kernel = kernel_of(node)
        return kernel if isinstance(kernel, No) else Yes("torch")

    def host_inputs(self, node: Node) -> frozenset[int]:
        """Return the inputs that the kernel reads on the host."""
        if node.op.key == COPY:
            return frozenset() if node.attrs["to"] == b"cpu" else frozenset((0,))
        if node.op.has_bodies:
            return control.host_inputs(node)
        kernel = kernel_of(node)
        return frozenset() if isinstance(kernel, No) else frozenset(kernel.host)

    def host_outputs(self, node: Node) -> frozenset[int]:
        """Return the outputs that are computed on the host: sizes."""
        if node.op.key == SIZES or node.op.key in SHAPE_OPS:
            return frozenset((0,))
        return frozenset()

    def to_device(self, array: Any) -> torch.Tensor:
        """Return a copy of an array on the device."""
        dtype = by_numpy(array.dtype)
        assert dtype is not None
        tensor = as_tensor(np.asarray(array), dtype)
        return tensor.clone() if self.torch_device.type == "cpu" else tensor.to(self.torch_device)

    def to_host(self, value: torch.Tensor) -> Any:
        """Return a copy of a tensor as an array."""
        tensor = value.clone() if value.device.type == "cpu" else value.cpu()
        return as_array(tensor)

    def loader(self) -> TorchLoader:
        """Return the loader that streams weights to the device."""
        return TorchLoader(
            self.torch_device, self.device, self.options.external_data_loader_reading_threads
        )

    def load(
        self, weights: Sequence[WeightReference], check: Callable[[], None]
    ) -> list[torch.Tensor]:
        """Return constants on the device, each in the layout of its reference."""
        manager = LoaderManager([self.loader()])
        try:
            return manager.place(weights, self.device, self.to_device, check)
        except BaseException:
            if self.torch_device.type == "cuda":
                torch.cuda.empty_cache()  # return the freed memory of torch's allocator
            raise

    def compile(self, region: Region, bodies: dict[Node, dict[str, Program]]) -> list[CompiledNode]:
        """Return the steps of control flow, whose bodies are separate programs."""
        return [control.step(self, node, bodies[node]) for node in region.nodes]

    def compile_region(self, region: Region) -> TorchRegion:
        """Return the compiled region."""
        return TorchRegion(self, region)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Set torch's state for running regions: no gradients, precision settings, stream."""
        if os.getpid() != self._process:
            raise RuntimeException(
                f"the session for {self.device} was created before a fork, which torch does not "
                "support",
                hint="create sessions in the child process, or start it with spawn",
            )
        searches = self.options.cudnn_conv_algo_search == "EXHAUSTIVE"
        with torch.no_grad():
            if self.torch_device.type != "cuda":  # only CUDA has such settings
                yield
                return
            with SETTINGS.applied(self.options.use_tf32, searches), self._on_stream():
                yield

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Use the user's stream, if given, ordered after and before torch's current stream."""
        with torch.cuda.device(self.torch_device):
            if not self.options.user_compute_stream:
                yield
                return
            stream = torch.cuda.ExternalStream(  # type: ignore[no-untyped-call]
                self.options.user_compute_stream, self.torch_device
            )
            current = torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                yield
            current.wait_stream(stream)

    def synchronize(self) -> None:
        """Wait until the device has finished all submitted work."""
        if self.torch_device.type == "cuda":
            torch.cuda.synchronize(self.torch_device)


def _device(options: TorchOptions) -> torch.device:
    """Return the requested device; raise an error with the reason if it does not work."""
    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(kind)
        if device.type == "cpu":
            return device
        if device.index is None:
            device = torch.device(device.type, options.device_id)
        torch.zeros(1, device=device)
    except (*UNEXPECTED_ERRORS, AssertionError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise RuntimeException(
            f"torch {torch.__version__} cannot use the device {kind}: {reason}",
            hint='set the option device="cpu", or omit the provider',
        ) from None
    return device
