"""What a session tells: of its model, its options, its providers and its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.errors import Fail, ValueFault
from sardonyx.ort.node_arg import ModelMetadata, NodeArg, node_arg
from sardonyx.ort.options import SessionOptions
from sardonyx.place import HOST
from sardonyx.providers import CPU, CUDA, TORCH
from sardonyx.reports.trace import Profile
from sardonyx.session.settings import ASSIGNMENT

if TYPE_CHECKING:
    from sardonyx.compile import Compiled
    from sardonyx.load.source import ModelBytes
    from sardonyx.ort.allocators import OrtMemoryInfo
    from sardonyx.ort.ep_devices import OrtEpAssignedSubgraph, OrtEpDevice

# Providers, by the names that programs show.
_NAMES = {"cpu": CPU, "reference": CPU, "cuda": CUDA, "torch": TORCH}
_RESULT_KEYS = ("ep", "validators", "results")


class About:
    """The part of a session that runs nothing."""

    _compiled: Compiled
    _options: SessionOptions
    _provider_options: dict[str, dict[str, str]]
    _profile: Profile | None
    _source: ModelBytes

    @property
    def _model_path(self) -> str | None:
        """Where the model was read from: libraries look for files beside it by this name."""
        return self._source.files.model_path

    @property
    def _sess_options(self) -> SessionOptions:
        return self._options

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that must be fed."""
        facts = {i.name: i.fact for i in self._compiled.program.inputs}
        return [node_arg(d, facts.get(d.name)) for d in self._compiled.model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs."""
        facts = [o.fact for o in self._compiled.program.outputs]
        return [node_arg(d, f) for d, f in zip(self._compiled.model.outputs, facts, strict=True)]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs with a default, which may be fed."""
        return [node_arg(d) for d in self._compiled.model.overridable]

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        return ModelMetadata(self._compiled.model)

    def get_session_options(self) -> SessionOptions:
        """The options the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """The providers in use, by the names onnxruntime gives them."""
        return list(self._provider_options)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of the providers in use."""
        return {name: dict(options) for name, options in self._provider_options.items()}

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """The memory that each input is read from."""
        from sardonyx.ort.ep_devices import memory_of

        return [memory_of(device) for device in self._input_devices()]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """The memory that each output is made in."""
        from sardonyx.ort.ep_devices import memory_of

        return [memory_of(output.device) for output in self._compiled.program.outputs]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """The device that reads each input."""
        from sardonyx.ort.ep_devices import ep_device_of

        return [ep_device_of(device) for device in self._input_devices()]

    def _input_devices(self) -> list[str]:
        devices = {i.name: i.device for i in self._compiled.program.inputs}
        return [devices.get(d.name, HOST) for d in self._compiled.model.inputs]

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Which provider runs which nodes of the lowered graph, if the session was to note it."""
        from sardonyx.ort.ep_devices import OrtEpAssignedNode, OrtEpAssignedSubgraph

        if self._options._entries.get(ASSIGNMENT) != "1":
            raise Fail(
                "which provider runs which nodes is told where it was asked for",
                hint=f'set the session config key {ASSIGNMENT} to "1"',
            )
        return [
            OrtEpAssignedSubgraph(
                _NAMES.get(provider, provider),
                tuple(OrtEpAssignedNode(n.name, n.op.domain, n.op.name) for n in nodes),
            )
            for provider, nodes in self._compiled.program.groups()
        ]

    def get_tuning_results(self) -> list[dict[str, Any]]:
        """What providers found by trying kernels: nothing, since kernels are chosen by rule."""
        return []

    def set_tuning_results(
        self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False
    ) -> None:
        """Takes what `get_tuning_results` gave; other runtimes' results serve no provider here."""
        for number, result in enumerate(results):
            missing = [key for key in _RESULT_KEYS if key not in result]
            if missing:
                raise KeyError(missing[0])
            if error_on_invalid:
                raise ValueFault(
                    f"tuning result {number} is of {result['ep']}, which tunes nothing"
                )

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Options that providers may be told between runs; the CPU's has none, and takes them."""
        if not options:
            raise ValueFault("no options are given")
        for key, value in options.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"an option and its value are strings, not {key!r} and {value!r}")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Forgets what was recorded on GPUs for runs of a gpu_graph_id."""
        self._compiled.program.release_graphs(graph_annotation_id)

    def enable_fallback(self) -> None:
        """Kept for programs that call it: the CPU is always there to fall back to."""

    def disable_fallback(self) -> None:
        """Kept for programs that call it."""

    def end_profiling(self) -> str:
        """Writes the profile and returns its file name; empty if profiling was off."""
        profile, self._profile = self._profile, None
        return "" if profile is None else profile.write()

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began; 0 if it is off."""
        return 0 if (profile := self._profile) is None else profile.start_ns
