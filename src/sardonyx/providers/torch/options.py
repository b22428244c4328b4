"""Options of the torch provider, with onnxruntime's names where these exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument

_FLAGS: Final = {"0": False, "1": True, "false": False, "true": True}
# Options of onnxruntime's CUDA provider that are accepted and have no effect.
_ACCEPTED: Final = frozenset((
    "arena_extend_strategy", "cudnn_conv_use_max_workspace", "do_copy_in_default_stream",
    "gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache", "enable_cudnn",
    "cudnn_conv1d_pad_to_nc1d", "tunable_op_enable", "tunable_op_tuning_enable",
    "tunable_op_max_tuning_duration_ms", "enable_skip_layer_norm_strict_mode",
    "use_ep_level_unified_stream", "fuse_conv_bias", "has_user_compute_stream", "sdpa_kernel",
    "external_data_loader_use_gds",
))  # fmt: skip


@frozen
class TorchOptions:
    """The options that a session may set."""

    device: str = ""  # torch's name; empty: CUDA if available, else the CPU
    device_id: int = 0
    gpu_mem_limit: int = 0  # bytes of weights and intermediate values; 0: no limit
    enable_cuda_graph: bool = False
    use_tf32: bool = False  # off by default, unlike in onnxruntime
    user_compute_stream: int = 0  # a cudaStream_t; 0: torch's current stream
    prefer_nhwc: bool = True
    cudnn_conv_algo_search: str = "EXHAUSTIVE"
    external_data_loader_reading_threads: int = 8  # at most the number of cores


def parse(options: Mapping[str, str], warn: Callable[[str], None]) -> TorchOptions:
    """Return the parsed options; an invalid value is an error, an unknown name a warning."""
    parsed: dict[str, Any] = {}
    for key, text in options.items():
        if key in _PARSERS:
            parsed[key] = _PARSERS[key](key, text)
        elif key not in _ACCEPTED:
            warn(f"the torch provider has no option {key}; {_hint(key)}")
    return TorchOptions(**parsed)


def _hint(key: str) -> str:
    import difflib  # only a wrong key needs it

    near = difflib.get_close_matches(key, (*_PARSERS, *_ACCEPTED), 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(_PARSERS)}"


def _flag(key: str, text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise InvalidArgument(f"{key} must be 0 or 1, got {text!r}")
    return _FLAGS[text.lower()]


def _number(key: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidArgument(f"{key} must be a number, got {text!r}")
    return int(text)


def _limit(key: str, text: str) -> int:
    """Parse a size in bytes; onnxruntime's default, the largest size_t, means no limit."""
    size = _number(key, text)
    return 0 if size >= 2**63 else size


def _algorithms(key: str, text: str) -> str:
    known = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")
    if text not in known:
        raise InvalidArgument(f"{key} must be one of {', '.join(known)}, got {text!r}")
    return text


_PARSERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "device": lambda key, text: text,
    "device_id": _number,
    "gpu_mem_limit": _limit,
    "enable_cuda_graph": _flag,
    "use_tf32": _flag,
    "user_compute_stream": _number,
    "prefer_nhwc": _flag,
    "cudnn_conv_algo_search": _algorithms,
    "external_data_loader_reading_threads": _number,
}
