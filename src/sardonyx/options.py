"""SessionOptions and RunOptions: onnxruntime's, by name and default."""

from __future__ import annotations

import os
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from sardonyx import config_keys
from sardonyx.enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from sardonyx.errors import InvalidArgument, NotImplemented

if TYPE_CHECKING:
    from sardonyx._native import Stop

MAX_KEY, MAX_VALUE = 1024, 8192  # characters of a config entry

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
            from sardonyx.log import logger  # logging is slow to import, and most keys need no word

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

    def has_providers(self) -> bool:
        """Whether `add_provider` was called."""
        return bool(self._providers)

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
            from sardonyx.log import logger  # as for sessions

            logger.warning("%s", said)
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """The value of a config key that was set."""
        try:
            return self._entries[key]
        except KeyError:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}") from None
