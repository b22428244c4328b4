"""Methods of InferenceSession that describe its model, options, providers and nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.errors import Fail, ValueFault
from sardonyx.ort.config_keys import Keys
from sardonyx.ort.node_arg import ModelMetadata, NodeArg, node_arg
from sardonyx.ort.options import SessionOptions
from sardonyx.place import HOST
from sardonyx.providers import CPU, CUDA, TORCH
from sardonyx.reports.trace import Profile

if TYPE_CHECKING:
    from sardonyx.compile import Compiled
    from sardonyx.graph.graph import Node
    from sardonyx.load import LoadOptions
    from sardonyx.load.source import ModelBytes
    from sardonyx.ort.allocators import OrtMemoryInfo
    from sardonyx.ort.ep_devices import OrtEpAssignedSubgraph, OrtEpDevice
    from sardonyx.session.c_session import CSession

# onnxruntime's provider names by those of programs.
_ORT_NAMES = {"cpu": CPU, "reference": CPU, "cuda": CUDA, "torch": TORCH}
_RESULT_KEYS = ("ep", "validators", "results")


def _brief(argument: NodeArg) -> str:
    return f"{argument.name} {argument.type}{argument.shape}"


class IntrospectionMixin:
    """The methods of a session that run nothing."""

    _compiled: Compiled
    _options: SessionOptions
    _provider_options: dict[str, dict[str, str]]
    _load: LoadOptions
    _profile: Profile | None
    _source: ModelBytes

    def __repr__(self) -> str:
        sides = (self.get_inputs(), self.get_outputs())
        inputs, outputs = (", ".join(_brief(a) for a in side[:4]) for side in sides)
        more = [f" and {len(side) - 4} more" if len(side) > 4 else "" for side in sides]
        return f"<InferenceSession of {self._title()}: {inputs}{more[0]} -> {outputs}{more[1]}>"

    def _repr_html_(self) -> str:
        from sardonyx.base.notebook import panel

        program = self._compiled.program
        sides = (("input", self.get_inputs()), ("output", self.get_outputs()))
        rows = [(kind, a.name, a.type, a.shape) for kind, side in sides for a in side]
        n_nodes = sum(1 for _ in self._compiled.model.graph.all_nodes())
        about = [
            ("providers", ", ".join(self.get_providers())),
            ("nodes", f"{n_nodes}, {program.python_steps} steps in Python"),
        ]
        return panel("InferenceSession", self._title(), rows, about)

    def _title(self) -> str:
        """The name of the model's file, or of its graph."""
        path = self._model_path
        return os.path.basename(path) if path else self._compiled.model.graph_name or "a model"

    @property
    def _model_path(self) -> str | None:
        """The path of the model: some libraries read this private attribute of onnxruntime's."""
        return self._source.files.model_path

    @property
    def _sess(self) -> CSession:
        """The session with the names of onnxruntime's compiled class."""
        from sardonyx.session.c_session import CSession  # few programs need it

        return CSession.of(self)  # type: ignore[arg-type]  # the class that has this mixin

    @property
    def _model_bytes(self) -> Any:
        """The model's bytes if it was not given by its path."""
        return None if self._model_path is not None else self._source.given.data

    @property
    def _sess_options(self) -> SessionOptions:
        return self._options

    _sess_options_initial = _sess_options

    @property
    def _inputs_meta(self) -> list[NodeArg]:
        return self.get_inputs()

    @property
    def _outputs_meta(self) -> list[NodeArg]:
        return self.get_outputs()

    @property
    def _model_meta(self) -> ModelMetadata:
        return self.get_modelmeta()

    @property
    def _overridable_initializers(self) -> list[NodeArg]:
        return self.get_overridable_initializers()

    @property
    def _profiling_start_time_ns(self) -> int:
        return self.get_profiling_start_time_ns()

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that must be fed."""
        facts = {i.name: i.fact for i in self._compiled.program.inputs}
        return [node_arg(d, facts.get(d.name)) for d in self._compiled.model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""
        facts = [o.fact for o in self._compiled.program.outputs]
        return [node_arg(d, f) for d, f in zip(self._compiled.model.outputs, facts, strict=True)]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs with a default value, which may be fed."""
        return [node_arg(d) for d in self._compiled.model.overridable]

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's metadata."""
        return ModelMetadata(self._compiled.model)

    def get_session_options(self) -> SessionOptions:
        """Return the options of the session."""
        return self._options

    def get_providers(self) -> list[str]:
        """Return the names of the providers in use, as onnxruntime spells them."""
        return list(self._provider_options)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of the providers in use."""
        return {name: dict(options) for name, options in self._provider_options.items()}

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the memory that each input is read from."""
        from sardonyx.ort.ep_devices import memory_of

        return [memory_of(device) for device in self._input_devices()]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the memory that each output is computed in."""
        from sardonyx.ort.ep_devices import memory_of

        return [memory_of(output.device) for output in self._compiled.program.outputs]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """Return the device that reads each input."""
        from sardonyx.ort.ep_devices import ep_device_of

        return [ep_device_of(device) for device in self._input_devices()]

    def _input_devices(self) -> list[str]:
        devices = {i.name: i.device for i in self._compiled.program.inputs}
        return [devices.get(d.name, HOST) for d in self._compiled.model.inputs]

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Return which provider runs which nodes; a config key enables it.

        Each node of the CPU is a subgraph of its own: the model's nodes, or if a device runs some,
        those of the lowered graph.
        """
        from sardonyx.ort.ep_devices import OrtEpAssignedNode, OrtEpAssignedSubgraph

        if self._options._entries.get(Keys.RECORD_ASSIGNMENT) != "1":
            raise Fail(
                f"Session configuration entry '{Keys.RECORD_ASSIGNMENT}' must be set to \"1\": "
                "the session does not record which provider runs which nodes"
            )
        if not self._compiled.program.devices:
            return [
                OrtEpAssignedSubgraph(CPU, (OrtEpAssignedNode(n.name, n.op.domain, n.op.name),))
                for n in self._source_nodes()
            ]
        return [
            OrtEpAssignedSubgraph(
                _ORT_NAMES.get(provider, provider),
                tuple(OrtEpAssignedNode(n.name, n.op.domain, n.op.name) for n in nodes),
            )
            for nodes, provider, _ in self._compiled.program.groups()
        ]

    def _source_nodes(self) -> list[Node]:
        """Return the nodes of the model before all passes, loaded again."""
        from sardonyx.compile import load_model

        return list(load_model(self._source, self._load).graph.nodes)

    def get_tuning_results(self) -> list[dict[str, Any]]:
        """Return no tuning results: kernels are chosen by rule, not by measurement."""
        return []

    def set_tuning_results(
        self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False
    ) -> None:
        """Accept the result of `get_tuning_results`; no provider uses those of onnxruntime."""
        for number, result in enumerate(results):
            missing = [key for key in _RESULT_KEYS if key not in result]
            if missing:
                raise KeyError(missing[0])
            if error_on_invalid:
                raise ValueFault(
                    f"tuning result {number} is for {result['ep']}, which has no tuning"
                )

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Accept options of providers between runs; the CPU provider has none and ignores them."""
        if not options:
            raise ValueFault("the options are empty")
        for key, value in options.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(
                    f"an option and its value must be strings, got {key!r} and {value!r}"
                )

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Free the CUDA graph that was recorded for runs of a gpu_graph_id."""
        self._compiled.program.release_graphs(graph_annotation_id)

    def enable_fallback(self) -> None:
        """Do nothing: for compatibility. The CPU is always available as a fallback."""

    def disable_fallback(self) -> None:
        """Do nothing: for compatibility."""

    def end_profiling(self) -> str:
        """Write the profile and return its file name; empty if profiling was off."""
        profile, self._profile = self._profile, None
        return "" if profile is None else profile.write()

    def get_profiling_start_time_ns(self) -> int:
        """Return when profiling began; 0 if it is off."""
        return 0 if (profile := self._profile) is None else profile.start_ns
