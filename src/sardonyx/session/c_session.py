"""CSession: the session of onnxruntime's compiled module, which packages reach through `_sess`.

`C.InferenceSession` is created with options and a model, and ready after `initialize_session`; its
metadata are attributes, and its run methods take their arguments in an order of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.errors import NoModel
from sardonyx.ort.node_arg import ModelMetadata, NodeArg
from sardonyx.ort.options import RunOptions, SessionOptions
from sardonyx.ort.ort_value_vector import OrtValueVector

if TYPE_CHECKING:
    from sardonyx.ort.ep_devices import OrtEpAssignedSubgraph, OrtEpDevice
    from sardonyx.ort.ort_value import OrtValue
    from sardonyx.session.inference import InferenceSession
    from sardonyx.session.io_binding import SessionIOBinding


def _forwarded(name: str) -> Callable[..., Any]:
    """Return a method that calls the method of this name of the session."""

    def method(self: CSession, *arguments: Any, **options: Any) -> Any:
        return getattr(self._session, name)(*arguments, **options)

    method.__name__ = name
    return method


class CSession:
    """A view of an InferenceSession with the names of onnxruntime's compiled class."""

    _ready: InferenceSession | None

    def __init__(
        self, options: SessionOptions, model: Any, is_path: bool, read_config: bool = False
    ) -> None:
        """Keep the arguments until `initialize_session`; `read_config` is of no effect."""
        self._arguments = (options, model if is_path or isinstance(model, bytes) else bytes(model))
        self._ready = None

    @classmethod
    def of(cls, session: InferenceSession) -> CSession:
        """Return the view of a session."""
        view = cls.__new__(cls)
        view._arguments = (session.get_session_options(), None)
        view._ready = session
        return view

    def initialize_session(
        self,
        providers: Sequence[str] = (),
        provider_options: Sequence[Mapping[str, str]] = (),
        disabled_optimizers: Collection[str] = (),
    ) -> None:
        """Load the model and compile it for these providers."""
        from sardonyx.session.inference import InferenceSession

        options, model = self._arguments
        given = [dict(each) for each in provider_options] or None
        names = list(providers) or None
        disabled = set(disabled_optimizers)
        self._ready = InferenceSession(model, options, names, given, disabled_optimizers=disabled)

    @property
    def _session(self) -> InferenceSession:
        if self._ready is None:
            raise NoModel("the session has no model yet: call initialize_session")
        return self._ready

    @property
    def inputs_meta(self) -> list[NodeArg]:
        """The inputs that must be fed."""
        return self._session.get_inputs()

    @property
    def outputs_meta(self) -> list[NodeArg]:
        """The outputs."""
        return self._session.get_outputs()

    @property
    def overridable_initializers(self) -> list[NodeArg]:
        """The inputs with a default value."""
        return self._session.get_overridable_initializers()

    @property
    def model_meta(self) -> ModelMetadata:
        """The metadata of the model."""
        return self._session.get_modelmeta()

    @property
    def session_options(self) -> SessionOptions:
        """The options of the session."""
        return self._arguments[0]

    @property
    def get_profiling_start_time_ns(self) -> int:
        """When profiling began; an attribute in onnxruntime too, despite its name."""
        return self._session.get_profiling_start_time_ns()

    @property
    def input_meminfos(self) -> list[Any]:
        """The memory that each input is read from."""
        return self._session.get_input_memory_infos()

    @property
    def output_meminfos(self) -> list[Any]:
        """The memory that each output is computed in."""
        return self._session.get_output_memory_infos()

    @property
    def input_epdevices(self) -> list[OrtEpDevice]:
        """The device that reads each input."""
        return self._session.get_input_epdevices()

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Return which provider runs which nodes."""
        return self._session.get_provider_graph_assignment_info()

    def is_webgpu_graph_capture_enabled(self) -> bool:
        """Return False: there is no WebGPU."""
        return False

    def run(
        self,
        output_names: Sequence[str],
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Return the outputs of these names."""
        return self._session.run(output_names, dict(input_feed), run_options)

    def run_with_ort_values(
        self,
        feeds: Mapping[str, OrtValue],
        output_names: Sequence[str],
        run_options: RunOptions | None = None,
    ) -> OrtValueVector:
        """Return the outputs of these names for OrtValues; the feed comes first."""
        return OrtValueVector(self._session.run_with_ort_values(output_names, feeds, run_options))

    def run_with_iobinding(
        self, binding: SessionIOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run on bound memory."""
        binding.run(run_options)

    def run_with_ortvaluevector(self, run_options: RunOptions | None, *arguments: Any) -> None:
        """Run on vectors: names and values of feeds, names and values of fetches, their devices."""
        self._session.run_with_ortvaluevector(run_options, *arguments)

    def run_async(
        self,
        output_names: Sequence[str],
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run on another thread, and call back there."""
        self._session.run_async(output_names, dict(input_feed), callback, user_data, run_options)

    create_ortvalue_from_shape_and_type = _forwarded("create_ortvalue_from_shape_and_type")
    create_ortvalue_from_shape_and_onnx_type = create_ortvalue_from_shape_and_type
    end_profiling = _forwarded("end_profiling")
    get_provider_options = _forwarded("get_provider_options")
    get_providers = _forwarded("get_providers")
    get_tuning_results = _forwarded("get_tuning_results")
    release_captured_graph = _forwarded("release_captured_graph")
    set_ep_dynamic_options = _forwarded("set_ep_dynamic_options")
    set_tuning_results = _forwarded("set_tuning_results")

    @property
    def webgpu_context_id(self) -> int:
        """0: there is no WebGPU."""
        return 0
