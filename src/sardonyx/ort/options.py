"""SessionOptions and RunOptions: onnxruntime's, by name and default."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from sardonyx.errors import InvalidArgument, NotImplemented
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
_FOR_GPUS: Final = (
    OrtExecutionProviderDevicePolicy.PREFER_GPU,
    OrtExecutionProviderDevicePolicy.MAX_PERFORMANCE,
)
MOST_DEVICES: Final = 8  # that a delegate may choose

_LEVELS: Final = {
    "disable_all": GraphOptimizationLevel.ORT_DISABLE_ALL,
    "enable_basic": GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "enable_extended": GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "enable_layout": GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "enable_all": GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_UNITS: Final = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
_LETTERS: Final = "abgikmABGIKM"
_MODES: Final = {
    "sequential": ExecutionMode.ORT_SEQUENTIAL,
    "parallel": ExecutionMode.ORT_PARALLEL,
}
_FLAGS: Final = frozenset((
    "enable_profiling", "enable_cpu_mem_arena", "enable_mem_pattern", "use_per_session_threads",
    "use_deterministic_compute",
))  # fmt: skip
_NUMBERS: Final = frozenset((
    "log_severity_level", "log_verbosity_level", "intra_op_num_threads", "inter_op_num_threads",
))  # fmt: skip


_KINDS: Final[dict[str, type]] = {
    **dict.fromkeys(_FLAGS, bool),
    **dict.fromkeys(_NUMBERS, int),
    "enable_mem_reuse": bool,
    "execution_mode": ExecutionMode,
    "execution_order": ExecutionOrder,
    "graph_optimization_level": GraphOptimizationLevel,
    **dict.fromkeys(("logid", "optimized_model_filepath", "profile_file_prefix"), str),
}


class SessionOptions:
    """How a session loads, optimizes and runs its model."""

    def __init__(self) -> None:
        self.enable_cpu_mem_arena: bool = True
        self.enable_mem_pattern: bool = True
        self.enable_mem_reuse: bool = True
        self.enable_profiling: bool = False
        self.execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
        self.graph_optimization_level: GraphOptimizationLevel = (
            GraphOptimizationLevel.ORT_ENABLE_ALL
        )
        self.inter_op_num_threads: int = 0
        self.intra_op_num_threads: int = 0
        self.log_severity_level: int = -1
        self.log_verbosity_level: int = 0
        self.logid: str = ""
        self.optimized_model_filepath: str = ""
        self.profile_file_prefix: str = "onnxruntime_profile_"
        self.use_deterministic_compute: bool = False
        self.use_per_session_threads: bool = True
        self._entries: dict[str, str] = {}
        self._dims_by_name: dict[str, int] = {}
        self._dims_by_denotation: dict[str, int] = {}
        self._files: dict[str, memoryview] = {}
        self._initializers: dict[str, Any] = {}
        self._providers: dict[str, dict[str, str]] = {}
        self._policy: OrtExecutionProviderDevicePolicy | None = None
        self._delegate: Callable[..., Sequence[OrtEpDevice]] | None = None
        self._is_cancelled = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Takes only options that there are, each of its own type: a typo has no silent effect."""
        if not name.startswith("_"):
            kind = _KINDS.get(name)
            if kind is None:
                raise AttributeError(f"SessionOptions has no option {name!r}")
            if issubclass(kind, IntEnum):
                value = kind(value)
            elif kind is str:
                value = os.fspath(value)
            elif not isinstance(value, int):
                raise TypeError(f"{name} is of type {kind.__name__}, not {type(value).__name__}")
        super().__setattr__(name, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Sets a config key; one that is unknown is reported with the nearest known one."""
        _check_texts(key, value)
        if not key or len(key) > MAX_KEY or len(value) > MAX_VALUE:
            raise InvalidArgument(
                f"a config key has 1 to {MAX_KEY} characters and a value at most {MAX_VALUE}; "
                f"here are {len(key)} and {len(value)}"
            )
        said = config_keys.advice(key)
        if said is not None:
            from sardonyx.base.log import logger  # most keys need no word

            (logger.warning if said.startswith("unknown") else logger.debug)(said)
        self._set_twin(key, value)
        self._entries[key] = value

    def _set_twin(self, key: str, value: str) -> None:
        """Sets the property that a config key is the text form of, if it is one."""
        name = key.removeprefix("session.")
        if key == "session.log_id":
            self.logid = value
        elif key == "session.optimized_model_filepath":
            self.optimized_model_filepath = value
        elif key == "session.graph_optimization_level":
            self.graph_optimization_level = one_of(key, value, _LEVELS)
        elif key == "session.execution_mode":
            self.execution_mode = one_of(key, value, _MODES)
        elif key != name and name in _FLAGS:
            setattr(self, name, one_of(key, value, {"0": False, "1": True}))
        elif key != name and name in _NUMBERS:
            try:
                setattr(self, name, int(value))
            except ValueError:
                raise InvalidArgument(f"{key} is a whole number, not {value!r}") from None

    def get_session_config_entry(self, key: str) -> str:
        """The value of a config key that was set."""
        try:
            return self._entries[key]
        except KeyError:
            raise RuntimeError(
                f"SessionOptions does not have configuration with key: {key}"
            ) from None

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fixes the size of every input dim with this name."""
        self._dims_by_name[name] = _dim(value)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Fixes the size of every input dim with this denotation."""
        self._dims_by_denotation[denotation] = _dim(value)

    def add_external_initializers_from_files_in_memory(
        self, names: list[str], buffers: list[Any], lengths: list[int]
    ) -> None:
        """External data files as buffers, which are not copied, and kept alive by the session."""
        from sardonyx.load.buffers import as_bytes  # brings numpy, which options alone do not need

        if not len(names) == len(buffers) == len(lengths):
            raise InvalidArgument(
                "names, buffers and lengths differ in number: "
                f"{len(names)}, {len(buffers)}, {len(lengths)}"
            )
        added: dict[str, memoryview] = {}
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            key = name.replace("\\", "/").removeprefix("./").lstrip("/")
            if key in self._files or key in added:
                raise InvalidArgument(f"the file {name} is given twice")
            view = as_bytes(buffer, f"the buffer of the file {name}")
            if not isinstance(length, int) or not 0 <= length <= view.nbytes:
                raise InvalidArgument(
                    f"the buffer of the file {name} has {view.nbytes} bytes, "
                    f"and its length is given as {length!r}"
                )
            added[key] = view[:length]
        self._files.update(added)

    def add_initializer(self, name: str, value: Any) -> None:
        """Uses an array, a tensor or an OrtValue for an initializer; kept, not copied."""
        self.add_external_initializers([name], [value])

    def add_external_initializers(self, names: list[str], values: list[Any]) -> None:
        """Uses arrays for initializers, as `add_initializer` does for one."""
        if len(names) != len(values):
            raise InvalidArgument(f"{len(names)} names and {len(values)} values are given")
        added: dict[str, Any] = {}
        for name, value in zip(names, values, strict=True):
            if name in self._initializers or name in added:
                raise InvalidArgument(f"a value for the initializer {name} is given twice")
            added[name] = value
        self._initializers.update(added)

    def add_provider(self, name: str, options: dict[str, str] | None = None) -> None:
        """Adds a provider for sessions that are given none of their own."""
        self._providers[name] = dict(options or {})

    def add_provider_for_devices(
        self, ep_devices: Sequence[OrtEpDevice], options: Mapping[str, str] | None = None
    ) -> None:
        """Adds the provider of these devices, which must be one."""
        names = {device.ep_name for device in ep_devices}
        if len(names) != 1:
            raise InvalidArgument(f"devices of one provider are wanted, not of {len(names)}")
        self.add_provider(names.pop(), {**ep_devices[0].ep_options, **(options or {})})

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Lets sessions choose providers: a GPU's for the most performance, else the CPU's."""
        self._policy, self._delegate = OrtExecutionProviderDevicePolicy(policy), None

    def set_provider_selection_policy_delegate(
        self, delegate: Callable[..., Sequence[OrtEpDevice]]
    ) -> None:
        """Lets sessions ask a function for devices, given (devices, model metadata, {}, most)."""
        if not callable(delegate):
            raise TypeError(f"the delegate is a function, not {type(delegate).__name__}")
        self._policy, self._delegate = None, delegate

    def has_providers(self) -> bool:
        """Whether providers were added, or a policy that chooses them was set."""
        return bool(self._providers or self._policy is not None or self._delegate)

    def _chosen_providers(self, metadata: Callable[[], dict[str, str]]) -> list[Any] | None:
        """Providers with their options, for a session that is given none."""
        if self._providers or not self.has_providers():
            return list(self._providers.items()) or None
        from sardonyx.ort.ep_devices import get_ep_devices

        devices = get_ep_devices()  # the CPU, then GPUs
        if self._delegate is not None:
            chosen = self._delegate(devices, metadata(), {}, MOST_DEVICES)
        else:
            chosen = (self._policy in _FOR_GPUS and devices[1:2]) or devices[:1]
        if not chosen or len(chosen) > MOST_DEVICES:
            raise InvalidArgument(
                f"the delegate chose {len(chosen or ())} devices, not 1 to {MOST_DEVICES}"
            )
        found: dict[str, dict[str, str]] = {}
        for device in chosen:
            found.setdefault(device.ep_name, dict(device.ep_options))
        return list(found.items())

    def set_ep_context_data_read_func(
        self, read_func: Callable[[str, Any], None], max_data_size: int
    ) -> None:
        """Kept for programs that call it: no provider here has data of its own in models."""
        if not callable(read_func) or max_data_size < 0:
            raise InvalidArgument("a function and a size of 0 or more are wanted")

    def clear_ep_context_data_read_func(self) -> None:
        """The counterpart of `set_ep_context_data_read_func`."""

    def __getstate__(self) -> dict[str, Any]:
        """The options as they are, with the bytes of buffers."""
        files = {name: bytes(view) for name, view in self._files.items()}
        return {**self.__dict__, "_files": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = {name: memoryview(data) for name, data in state["_files"].items()}
        self.__dict__.update(state, _files=files)

    def __copy__(self) -> SessionOptions:
        made = SessionOptions()
        for name, value in self.__dict__.items():
            made.__dict__[name] = dict(value) if isinstance(value, dict) else value
        return made

    def set_load_cancellation_flag(self, is_cancelled: bool) -> None:
        """Ends loads under these options at their next stage; may be called from another thread."""
        self._is_cancelled = is_cancelled

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> None:
        """Libraries of onnxruntime's C interface cannot be loaded here; the error says so."""
        raise NotImplemented(
            f"{os.fspath(path)} is a library for onnxruntime's C interface, "
            "which Sardonyx does not have",
            hint="export the model with standard ops",
        )


def one_of(key: str, value: str, table: dict[str, Any]) -> Any:
    """What a config value stands for; any other than those of the table is an error."""
    if value not in table:
        raise InvalidArgument(f"{key} is one of {', '.join(table)}, not {value!r}")
    return table[value]


def byte_count(key: str, text: str) -> int:
    """A number of bytes, written as one or with a unit: 512MB, 2 GiB."""
    number = text.rstrip(_LETTERS)
    unit = _UNITS.get(text[len(number) :].lower())
    if not number.strip().isdecimal() or unit is None:
        raise InvalidArgument(
            f"{key} is a number of bytes, as in 1000000, 512MB or 2GiB, not {text!r}"
        )
    return int(number) * unit


def _check_texts(key: Any, value: Any) -> None:
    if not isinstance(key, str) or not isinstance(value, str):
        raise TypeError(f"a config key and its value are strings, not {key!r} and {value!r}")


def _dim(value: int) -> int:
    if not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"the size of a dimension is a number of 0 or more, not {value!r}")
    return value


class RunOptions:
    """How one run behaves. `terminate`, set from any thread, ends the run after its step."""

    def __init__(self) -> None:
        self.log_severity_level: int = -1
        self.log_verbosity_level: int = 0
        self.logid: str = ""
        self.only_execute_path_to_fetches: bool = False
        self._entries: dict[str, str] = {}
        self._adapters: list[LoraAdapter] = []

    @cached_property
    def _stop(self) -> Stop:
        """The flag behind `terminate`, which native code looks at between steps."""
        from sardonyx._native import Stop  # programs that only read options need no native code

        return Stop()

    @property
    def terminate(self) -> bool:
        """Whether runs under these options are to end."""
        return self._stop.raised

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._stop.raised = bool(value)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Sets a config key of this run."""
        _check_texts(key, value)
        if (said := config_keys.advice_of_run(key)) is not None:
            from sardonyx.base.log import logger  # as for sessions

            logger.warning("%s", said)
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """The value of a config key that was set."""
        try:
            return self._entries[key]
        except KeyError:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}") from None

    def add_active_adapter(self, adapter: LoraAdapter) -> None:
        """Feeds an adapter's parameters, beside those of others, to runs with these options."""
        from sardonyx.ort.adapters import LoraAdapter

        if not isinstance(adapter, LoraAdapter):
            raise TypeError(f"a LoraAdapter is activated, not {type(adapter).__name__}")
        self._adapters.append(adapter)

    def _adapter_feed(self, inputs: AbstractSet[str]) -> dict[str, Any]:
        """The parameters of all adapters as inputs; each must be one, and of one adapter."""
        from sardonyx.ort.adapters import feed_of

        return feed_of(self._adapters, inputs)

    def __getstate__(self) -> dict[str, Any]:
        """The options; the flag that native code looks at is made anew, as it stands."""
        state = {k: v for k, v in self.__dict__.items() if k != "_stop"}
        return {**state, "terminate": self.terminate}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.terminate = state.pop("terminate")
        self.__dict__.update(state)


_global_threads = 0


def set_global_threads(intra_op: int, inter_op: int) -> None:
    """How many threads sessions use that do not have their own (use_per_session_threads)."""
    global _global_threads
    if (
        not isinstance(intra_op, int)
        or not isinstance(inter_op, int)
        or min(intra_op, inter_op) < 0
    ):
        raise InvalidArgument(
            f"numbers of threads are 0 for all CPUs, or more, not {intra_op!r} and {inter_op!r}"
        )
    _global_threads = intra_op


def global_threads() -> int:
    """The number that was set; 0: as many as the process may use."""
    return _global_threads
