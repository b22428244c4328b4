"""SessionOptions and RunOptions, with the names and defaults of onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from sardonyx.errors import InvalidArgument, NotImplemented, ValueFault
from sardonyx.ort import config_keys
from sardonyx.ort.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtExecutionProviderDevicePolicy,
)

if TYPE_CHECKING:
    from sardonyx._native import Stop
    from sardonyx.ort.adapters import LoraAdapter
    from sardonyx.ort.ep_devices import OrtEpDevice

MAX_KEY, MAX_VALUE = 1024, 8192  # characters of a config entry
_GPU_POLICIES: Final = (
    OrtExecutionProviderDevicePolicy.PREFER_GPU,
    OrtExecutionProviderDevicePolicy.MAX_PERFORMANCE,
)
MAX_DEVICES: Final = 8  # that a delegate may select, as in onnxruntime

_BOOLS: Final = {"0": False, "1": True}
# The values of config keys that stand for enumerations, by type.
_VALUES: Final[dict[type | None, dict[str, Any]]] = {
    GraphOptimizationLevel: {
        level.name.removeprefix("ORT_").lower(): level for level in GraphOptimizationLevel
    },
    ExecutionMode: {mode.name.removeprefix("ORT_").lower(): mode for mode in ExecutionMode},
}
_UNITS: Final = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
_UNIT_LETTERS: Final = "abgikmABGIKM"


class SessionOptions:
    """How a session loads, optimizes and runs its model."""

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._dims_by_name: dict[str, int] = {}
        self._dims_by_denotation: dict[str, int] = {}
        self._files: dict[str, memoryview] = {}
        self._initializers: dict[str, Any] = {}
        self._providers: dict[str, dict[str, str]] = {}
        self._policy: OrtExecutionProviderDevicePolicy | None = None
        self._delegate: Callable[..., Sequence[OrtEpDevice]] | None = None
        self._is_cancelled = False

    def __repr__(self) -> str:
        from sardonyx.base.notebook import call_text, changed

        return call_text("SessionOptions", changed(self, self._entries))

    def _repr_html_(self) -> str:
        from sardonyx.base.notebook import changed, panel

        given = changed(self, self._entries)
        return panel("SessionOptions", "" if given else "all defaults", given.items())

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option; an unknown name or a wrong type raises an error."""
        if not name.startswith("_"):
            kind = _option_type(name)
            if kind is None:
                raise AttributeError(f"SessionOptions has no option {name!r}")
            if issubclass(kind, IntEnum):
                value = kind(value)
            elif kind is str:
                value = os.fspath(value)
            elif not isinstance(value, int):
                raise TypeError(
                    f"{name} must be of type {kind.__name__}, got {type(value).__name__}"
                )
        super().__setattr__(name, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a config key; an unknown one is reported with the closest match."""
        _check_strings(key, value)
        if not key or len(key) > MAX_KEY or len(value) > MAX_VALUE:
            raise InvalidArgument(
                f"a config key must have 1 to {MAX_KEY} characters and a value at most "
                f"{MAX_VALUE}, got {len(key)} and {len(value)}"
            )
        warning = config_keys.session_key_warning(key)
        if warning is not None:
            from sardonyx.base.log import logger  # not needed for most keys

            (logger.warning if warning.startswith("unknown") else logger.debug)(warning)
        self._set_property(key, value)
        self._entries[key] = value

    def _set_property(self, key: str, text: str) -> None:
        """Set the property that a config key stands for, if there is one."""
        name = config_keys.PROPERTIES.get(key)
        if name is None:
            return
        kind = _option_type(name)
        value: Any = text
        if kind is bool or kind in _VALUES:
            value = one_of(key, text, _BOOLS if kind is bool else _VALUES[kind])
        elif kind is int:
            try:
                value = int(text)
            except ValueError:
                raise InvalidArgument(f"{key} must be a whole number, got {text!r}") from None
        setattr(self, name, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return the value of a config key that was set."""
        try:
            return self._entries[key]
        except KeyError:
            raise RuntimeError(
                f"SessionOptions does not have configuration with key: {key}"
            ) from None

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix the size of every input dim with this name."""
        self._dims_by_name[name] = _dim(value)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Fix the size of every input dim with this denotation."""
        self._dims_by_denotation[denotation] = _dim(value)

    def add_external_initializers_from_files_in_memory(
        self, names: list[str], buffers: list[Any], lengths: list[int]
    ) -> None:
        """Use buffers as external data files, which are kept alive and not copied."""
        from sardonyx.load.buffers import as_bytes  # imports numpy, which options alone do not need

        if not len(names) == len(buffers) == len(lengths):
            raise InvalidArgument(
                "names, buffers and lengths differ in number: "
                f"{len(names)}, {len(buffers)}, {len(lengths)}"
            )
        added: dict[str, memoryview] = {}
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            key = name.replace("\\", "/").removeprefix("./").lstrip("/")
            if key in self._files or key in added:
                raise InvalidArgument(f"the file {name} is added twice")
            view = as_bytes(buffer, f"the buffer of the file {name}")
            if not isinstance(length, int) or not 0 <= length <= view.nbytes:
                raise InvalidArgument(
                    f"the buffer of the file {name} has {view.nbytes} bytes, "
                    f"and its length is stated as {length!r}"
                )
            added[key] = view[:length]
        self._files.update(added)

    def add_initializer(self, name: str, value: Any) -> None:
        """Use an array, a tensor or an OrtValue as an initializer; kept alive, not copied."""
        self.add_external_initializers([name], [value])

    def add_external_initializers(self, names: list[str], values: list[Any]) -> None:
        """Use arrays as initializers, as `add_initializer` does for one."""
        if len(names) != len(values):
            raise InvalidArgument(f"there are {len(names)} names and {len(values)} values")
        added: dict[str, Any] = {}
        for name, value in zip(names, values, strict=True):
            if name in self._initializers or name in added:
                raise InvalidArgument(f"the initializer {name} is added twice")
            added[name] = value
        self._initializers.update(added)

    def add_provider(self, name: str, options: dict[str, str] | None = None) -> None:
        """Add a provider for sessions without an argument `providers`."""
        self._providers[name] = dict(options or {})

    def add_provider_for_devices(
        self, ep_devices: Sequence[OrtEpDevice], options: Mapping[str, str] | None = None
    ) -> None:
        """Add the provider of these devices, which must have the same one."""
        names = {device.ep_name for device in ep_devices}
        if len(names) != 1:
            raise InvalidArgument(f"the devices belong to {len(names)} providers, not to one")
        self.add_provider(names.pop(), {**ep_devices[0].ep_options, **(options or {})})

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Set how sessions choose providers: PREFER_GPU and MAX_PERFORMANCE mean GPU, else CPU."""
        self._policy, self._delegate = OrtExecutionProviderDevicePolicy(policy), None

    def set_provider_selection_policy_delegate(
        self, delegate: Callable[..., Sequence[OrtEpDevice]]
    ) -> None:
        """Set a function that selects devices from (devices, model metadata, {}, maximal count)."""
        if not callable(delegate):
            raise TypeError(f"the delegate must be a function, got {type(delegate).__name__}")
        self._policy, self._delegate = None, delegate

    def has_providers(self) -> bool:
        """Return whether providers were added, or a selection policy was set."""
        return bool(self._providers or self._policy is not None or self._delegate)

    def _chosen_providers(self, metadata: Callable[[], dict[str, str]]) -> list[Any] | None:
        """Return providers with their options, for a session without an argument `providers`."""
        if self._providers or not self.has_providers():
            return list(self._providers.items()) or None
        from sardonyx.ort.ep_devices import get_ep_devices

        devices = get_ep_devices()  # the CPU, then GPUs
        if self._delegate is not None:
            chosen = self._delegate(devices, metadata(), {}, MAX_DEVICES)
        else:
            chosen = (self._policy in _GPU_POLICIES and devices[1:2]) or devices[:1]
        if not chosen or len(chosen) > MAX_DEVICES:
            raise InvalidArgument(
                f"the delegate selected {len(chosen or ())} devices, not 1 to {MAX_DEVICES}"
            )
        providers: dict[str, dict[str, str]] = {}
        for device in chosen:
            providers.setdefault(device.ep_name, dict(device.ep_options))
        return list(providers.items())

    def set_ep_context_data_read_func(
        self, read_func: Callable[[str, Any], None], max_data_size: int
    ) -> None:
        """Do nothing: for compatibility. No provider stores data of its own in models."""
        if not callable(read_func) or max_data_size < 0:
            raise InvalidArgument("the arguments must be a function and a size of 0 or more")

    def clear_ep_context_data_read_func(self) -> None:
        """Do nothing: for compatibility."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the options, with copies of the bytes of buffers."""
        files = {name: bytes(view) for name, view in self._files.items()}
        return {**self.__dict__, "_files": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = {name: memoryview(data) for name, data in state["_files"].items()}
        self.__dict__.update(state, _files=files)

    def __copy__(self) -> SessionOptions:
        copy = SessionOptions()
        for name, value in self.__dict__.items():
            copy.__dict__[name] = dict(value) if isinstance(value, dict) else value
        return copy

    def set_load_cancellation_flag(self, is_cancelled: bool) -> None:
        """Cancel loads with these options at their next stage. Thread-safe."""
        self._is_cancelled = is_cancelled

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> None:
        """Raise an error: libraries for onnxruntime's C API are not supported."""
        raise NotImplemented(
            f"{os.fspath(path)} is a library for onnxruntime's C interface, "
            "which Sardonyx does not have",
            hint="export the model with standard ops",
        )


def _option_type(name: str) -> type | None:
    """Return the type of an option; None if there is none of this name."""
    default = SessionOptions.__dict__.get(name)
    return type(default) if isinstance(default, (int, str)) and name[0] != "_" else None


def one_of(key: str, value: str, table: dict[str, Any]) -> Any:
    """Return the meaning of a config value from a table; raise an error for any other."""
    if value not in table:
        raise InvalidArgument(f"{key} must be one of {', '.join(table)}, got {value!r}")
    return table[value]


def flag(options: SessionOptions, key: str, default: str = "0") -> bool:
    """Return the value of a config key that is 0 or 1."""
    return bool(choice(options, key, default, _BOOLS))


def choice(options: SessionOptions | RunOptions, key: str, default: str, table: Any) -> Any:
    """Return the meaning of a config key's value from a table; raise an error for any other."""
    return one_of(key, options._entries.get(key, default), table)


def byte_count(key: str, text: str) -> int:
    """Parse a number of bytes, with or without a unit: 512MB, 2 GiB."""
    number = text.rstrip(_UNIT_LETTERS)
    unit = _UNITS.get(text[len(number) :].lower())
    if not number.strip().isdecimal() or unit is None:
        raise InvalidArgument(
            f"{key} must be a number of bytes, as in 1000000, 512MB or 2GiB, got {text!r}"
        )
    return int(number) * unit


def _check_strings(key: Any, value: Any) -> None:
    if not isinstance(key, str) or not isinstance(value, str):
        raise TypeError(f"a config key and its value must be strings, got {key!r} and {value!r}")


def _dim(value: int) -> int:
    if not isinstance(value, int) or value < 0:
        raise InvalidArgument(
            f"the size of a dimension must be a number of 0 or more, got {value!r}"
        )
    return value


class RunOptions:
    """Options of one run. `terminate`, set from any thread, ends the run after its current step."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._adapters: list[LoraAdapter] = []

    def __repr__(self) -> str:
        from sardonyx.base.notebook import call_text, changed

        return call_text("RunOptions", changed(self, self._entries))

    def _repr_html_(self) -> str:
        from sardonyx.base.notebook import changed, panel

        given = changed(self, self._entries)
        return panel("RunOptions", "" if given else "all defaults", given.items())

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option; an unknown name raises an error."""
        if not name.startswith("_") and not hasattr(RunOptions, name):
            raise AttributeError(f"RunOptions has no option {name!r}")
        super().__setattr__(name, value)

    @property
    def _stop(self) -> Stop:
        """The flag of `terminate`, which native code reads between steps."""
        # Not a cached_property: before Python 3.12 that has a lock, which would stay locked in a
        # child that is forked while another thread holds it.
        stop: Stop | None = self.__dict__.get("_flag")
        if stop is None:
            from sardonyx._native import Stop  # options alone need no native code

            stop = self.__dict__.setdefault("_flag", Stop())  # of two threads, one is first
        return stop

    @property
    def terminate(self) -> bool:
        """Whether runs with these options end early."""
        return self._stop.raised

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._stop.raised = bool(value)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set a config key of runs with these options."""
        _check_strings(key, value)
        if (warning := config_keys.run_key_warning(key)) is not None:
            from sardonyx.base.log import logger

            logger.warning("%s", warning)
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Return the value of a config key that was set."""
        try:
            return self._entries[key]
        except KeyError:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}") from None

    def add_active_adapter(self, adapter: LoraAdapter) -> None:
        """Feed an adapter's parameters to runs with these options."""
        from sardonyx.ort.adapters import LoraAdapter

        if not isinstance(adapter, LoraAdapter):
            raise TypeError(f"adapter must be a LoraAdapter, got {type(adapter).__name__}")
        self._adapters.append(adapter)

    def _adapter_feed(self, inputs: AbstractSet[str]) -> dict[str, Any]:
        """Return the parameters of all adapters as inputs, which must exist and be distinct."""
        from sardonyx.ort.adapters import adapter_feed

        return adapter_feed(self._adapters, inputs)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the options, with the value of the native flag."""
        state = {k: v for k, v in self.__dict__.items() if k != "_flag"}
        return {**state, "terminate": self.terminate}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.terminate = state.pop("terminate")
        self.__dict__.update(state)


_global_threads: int | None = None  # None: never set


def set_global_threads(intra_op: int, inter_op: int) -> None:
    """Set the number of threads of sessions without use_per_session_threads."""
    global _global_threads
    if not all(isinstance(number, int) and number >= 0 for number in (intra_op, inter_op)):
        raise InvalidArgument(
            f"numbers of threads must be 0 for all CPUs, or more, got {intra_op!r} and {inter_op!r}"
        )
    # Zeros restore the state in which no numbers were set.
    _global_threads = intra_op if intra_op or inter_op else None


def threads_of(options: SessionOptions) -> int:
    """Return the number of threads of a session; 0: as many as the process may use."""
    if not options.use_per_session_threads:
        return _global_threads or 0
    if _global_threads is not None:
        raise ValueFault(
            "the threads of all sessions were set by set_global_thread_pool_sizes, and this "
            "session is to have its own",
            hint="set use_per_session_threads of its options to False",
        )
    return options.intra_op_num_threads
