"""Quantization options of single tensors, as users give them in `TensorQuantOverrides`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from sardonyx.quantization.quant_types import QuantType

Override = dict[str, Any]
_WITHOUT_SCALE: Final = ("symmetric", "reduce_range", "rmax", "rmin")  # useless next to a scale
_SHARED: Final = ("quant_type", "axis", "symmetric", "reduce_range")  # by all channels of a tensor


@dataclass
class QuantTypeInfo:
    """The type that a node reads or makes a tensor in; None stands for the default."""

    quant_type: QuantType | None
    symmetric: bool | None = None
    reduce_range: bool | None = None
    axis: int | None = None

    def __eq__(self, other: object) -> bool:
        """Compare types; a symmetry or range that one side leaves open is equal to any."""
        if not isinstance(other, QuantTypeInfo):
            return NotImplemented
        pairs = ((self.symmetric, other.symmetric), (self.reduce_range, other.reduce_range))
        return (
            self.quant_type == other.quant_type
            and self.axis == other.axis
            and all(a is None or b is None or a == b for a, b in pairs)
        )

    __hash__ = None  # type: ignore[assignment]  # equality is not transitive

    @staticmethod
    def load_from_dict(
        raw_dict: Override,
        default_qtype: QuantType | None = None,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        """Return the type of an override."""
        return QuantTypeInfo(
            raw_dict.get("quant_type", default_qtype),
            raw_dict.get("symmetric", default_symmetric),
            raw_dict.get("reduce_range", default_reduce_range),
            raw_dict.get("axis"),
        )

    def save_to_dict(self, raw_dict: Override) -> None:
        """Write the type into an override."""
        raw_dict["quant_type"] = self.quant_type
        for name in ("symmetric", "reduce_range", "axis"):
            if getattr(self, name) is not None:
                raw_dict[name] = getattr(self, name)


class _Invalid(Exception):
    """An override that is not valid; its text says why."""


class TensorQuantOverridesHelper(MutableMapping[str, list[Override]]):
    """The overrides by tensor: a list of one dict, or per channel of one for each."""

    def __init__(self, raw_overrides: dict[str, list[Override]]) -> None:
        self.overrides = raw_overrides
        self.quant_types: set[QuantType] | None = None

    def has_per_tensor_overrides(self, tensor_name: str) -> bool:
        """Return whether a tensor has overrides for all of it."""
        found = self.overrides.get(tensor_name)
        return bool(found) and "axis" not in self.overrides[tensor_name][0]

    def has_per_channel_overrides(self, tensor_name: str) -> bool:
        """Return whether a tensor has overrides for channels."""
        found = self.overrides.get(tensor_name)
        return bool(found) and "axis" in self.overrides[tensor_name][0]

    def overrides_scale_zp(self, tensor_name: str) -> bool:
        """Return whether scale and zero point of a tensor are given."""
        found = self.overrides.get(tensor_name)
        return bool(found) and {"scale", "zero_point"} <= self.overrides[tensor_name][0].keys()

    def get_per_tensor_overrides(
        self, tensor_name: str, default_val: Override | None = None
    ) -> Override | None:
        """Return the overrides of a whole tensor."""
        found = self.overrides.get(tensor_name)
        if not found:
            return default_val if found is None else None
        if "axis" in found[0]:
            raise ValueError(
                f"Expected tensor '{tensor_name}' to use per-tensor quantization overrides, "
                "but found per-channel overrides."
            )
        return found[0]

    def get_per_channel_overrides(
        self, tensor_name: str, default_val: list[Override] | None = None
    ) -> list[Override] | None:
        """Return the overrides of the channels of a tensor."""
        found = self.overrides.get(tensor_name, default_val)
        if not found:
            return None
        if "axis" not in found[0]:
            raise ValueError(
                f"Expected tensor '{tensor_name}' to have per-channel quantization overrides "
                "(axis value is missing)."
            )
        return found

    def get_quant_types(self) -> set[QuantType]:
        """Return all types that are named."""
        if self.quant_types is None:
            self.quant_types = set()
            for override in (o for group in self.overrides.values() for o in group):
                for part in (override, override.get("convert", {})):
                    if "quant_type" in part:
                        self.quant_types.add(part["quant_type"])
        return self.quant_types

    def is_valid(
        self,
        initializers: Mapping[str, Any],
        activation_names: AbstractSet[str],
        default_activation_qtype: Any,
    ) -> tuple[bool, str | None]:
        """Return whether the overrides fit a model, and why not."""
        self.quant_types = None
        try:
            for name, group in self.overrides.items():
                is_known = name in initializers or name in activation_names
                _check(name, group, is_known, initializers, default_activation_qtype)
        except _Invalid as error:
            return False, str(error)
        return True, None

    def update_tensor_overrides(
        self,
        tensor_name: str,
        new_vals: Override,
        channels: Sequence[int] | None = None,
        overwrite: bool = True,
    ) -> bool:
        """Add options to a tensor; without `overwrite`, only if it has none of them."""
        if not new_vals:
            return False
        present = self.overrides.get(tensor_name) or [{}]
        chosen = [o for i, o in enumerate(present) if channels is None or i in channels]
        if not overwrite and any(new_vals.keys() & o.keys() for o in chosen):
            return False
        self.overrides[tensor_name] = present
        for override in chosen:
            override.update(new_vals)
        return True

    def get_node_output_qtype_info(
        self,
        output_name: str,
        default_qtype: QuantType | None,
        default_symmetric: bool | None = None,
    ) -> QuantTypeInfo:
        """Return the type in which a node makes a tensor."""
        found = self.overrides.get(output_name) or [{}]
        return QuantTypeInfo(
            found[0].get("quant_type", default_qtype), found[0].get("symmetric", default_symmetric)
        )

    def get_node_input_qtype_info(
        self,
        input_name: str,
        node_name: str,
        default_qtype: QuantType | None,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        """Return the type in which a node reads a tensor."""
        found = (self.overrides.get(input_name) or [{}])[0]
        defaults = default_qtype, default_symmetric, default_reduce_range
        if "convert" not in found:
            return QuantTypeInfo.load_from_dict(found, *defaults)
        convert = found["convert"]
        info = QuantTypeInfo(
            found.get("quant_type", default_qtype), convert.get("symmetric", default_symmetric)
        )
        if "recv_nodes" not in convert or node_name in convert["recv_nodes"]:
            info.quant_type = convert["quant_type"]
        return info

    def pprint_str(self, indent: int | None = None) -> str:
        """Return the overrides as text."""
        return json.dumps(self.overrides, default=str, indent=indent)

    def empty(self) -> bool:
        """Return whether there are none."""
        return not self.overrides

    def get_dict(self) -> dict[str, list[Override]]:
        """Return the overrides."""
        return self.overrides

    def __setitem__(self, key: str, value: list[Override]) -> None:
        self.overrides[key] = value

    def __getitem__(self, key: str) -> list[Override]:
        return self.overrides[key]

    def __delitem__(self, key: str) -> None:
        del self.overrides[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.overrides)

    def __len__(self) -> int:
        return len(self.overrides)

    def __repr__(self) -> str:
        return f"TensorQuantOverridesHelper({self.overrides})"


def _check(
    name: str, group: Any, is_known: bool, initializers: Mapping[str, Any], default: Any
) -> None:
    """Raise if the overrides of a tensor are not valid."""
    if not is_known:
        raise _Invalid(f"Tensor '{name}' in TensorQuantOverrides is not present in the model")
    if not isinstance(group, list):
        raise _Invalid(f"Tensor quantization overrides for '{name}' are not in a list")
    for index, override in enumerate(group):
        if not isinstance(override, dict):
            raise _Invalid(
                f"Tensor quantization overrides at index {index} for '{name}' are not in a dict"
            )
    if not group or not group[0]:
        return
    if len(group) > 1 or group[0].get("axis") is not None:
        _check_channels(name, group, initializers)
    else:
        _check_tensor(name, group[0], name in initializers, default)


def _check_tensor(name: str, override: Override, is_initializer: bool, default: Any) -> None:
    _check_scale(override, "")
    if "reduce_range" in override and not is_initializer:
        raise _Invalid(
            f"Option 'reduce_range' is only supported for initializers, not for activation {name}"
        )
    if "convert" not in override:
        return
    convert, where = override["convert"], f" (tensor '{name}')"
    if is_initializer:
        raise _Invalid("Cannot use 'convert' override for initializers")
    if "quant_type" not in convert:
        raise _Invalid(f"'convert' options{where} must specify a 'quant_type'")
    if "reduce_range" in convert:
        raise _Invalid(
            f"Option 'reduce_range' is only supported for initializers, not for activation {name}"
        )
    if convert["quant_type"] == override.get("quant_type", default):
        raise _Invalid(f"'convert' quant_type must differ from original quant_type{where}")
    _check_scale(convert, where)


def _check_scale(override: Override, where: str) -> None:
    """Check that scale and zero point come together, and without what they replace."""
    if ("scale" in override) != ("zero_point" in override):
        raise _Invalid(
            "Must provide both 'scale' and 'zero_point' if one of the overrides is provided" + where
        )
    extra = [key for key in _WITHOUT_SCALE if key in override]
    if "scale" in override and extra:
        raise _Invalid(
            f"Tensor override option(s) [{', '.join(extra)}] are invalid with 'scale' and "
            f"'zero_point'{where}"
        )


def _check_channels(name: str, group: list[Override], initializers: Mapping[str, Any]) -> None:
    if name not in initializers:
        raise _Invalid(f"Tensor '{name}' has per-channel overrides, but is not an initializer")
    first = group[0]
    axis = first.get("axis")
    if axis is None:
        raise _Invalid(
            f"Per-channel overrides for tensor {name} is missing an 'axis' value in the first "
            "channel dictionary."
        )
    tensor = initializers[name]
    shape = list(tensor.dims if hasattr(tensor, "dims") else tensor.shape)
    if not -len(shape) <= axis < len(shape):
        raise _Invalid(
            f"Axis override value is out-of-bounds for tensor {name} (rank {len(shape)})"
        )
    if len(group) > 1 and len(group) != shape[axis]:
        raise _Invalid(
            f"Incorrect number of channel overrides for tensor {name} (axis {axis}), expected "
            f"{shape[axis]}, but found {len(group)}."
        )
    _check_scale(first, "")
    if ("rmin" in first) != ("rmax" in first):
        raise _Invalid("Must provide both 'rmin' and 'rmax' if one is provided")
    for index, override in enumerate(group):
        if "convert" in override:
            raise _Invalid(f"Cannot use 'convert' override for initializers, such as {name}.")
        _check_channel(name, index, override, first, len(shape))


def _check_channel(name: str, index: int, override: Override, first: Override, rank: int) -> None:
    """Check that a channel has what the first has."""
    for key in _SHARED:
        expected = {first.get(key)}
        if key == "axis":
            expected.add(first["axis"] % rank)
        if key in override and override[key] not in expected:
            raise _Invalid(
                f"Channel {key} value for tensor '{name}' does not match at index {index}."
            )
    for pair in (("scale", "zero_point"), ("rmin", "rmax")):
        if pair[0] in first and not all(key in override for key in pair):
            raise _Invalid(
                f"Per-channel overrides that specify {'/'.join(pair)} must do so for all channels, "
                f"but tensor '{name}' is missing them at index {index}."
            )
    _check_scale(override, "")
