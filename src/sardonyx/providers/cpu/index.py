"""The lowering of each op: a family's module is imported when a model has one of its ops.

`providers/cpu/<family>.py` has a table `LOWERINGS` of the family's ops that have native kernels. A
lowering returns the kernel call or view that a node becomes, or a refusal with its reason.

Kernels whose names end in `_at_run` compute the sizes of their outputs from data. They are used
only where inference does not know these sizes: such a node ends a native segment's item.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cache
from typing import Final

import sardonyx._native as native
from sardonyx.base.name_index import import_if_present
from sardonyx.graph.dtype import DType
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops import family_of
from sardonyx.place.lowered import Call, Lowered
from sardonyx.place.provider import No

Lowering = Callable[[Node], Lowered | No]
Lowerings = dict[tuple[str, str], Lowering]  # by domain and name of the op
MULTIPLIES_BF16: Final = native.multiplies_bf16
IN_PLACE: Final = ((0, 0),)  # `Call.shares`: the kernel may write output 0 over input 0


@cache
def lowerings(family: str) -> Lowerings:
    """Return the lowerings of a family."""
    module = import_if_present(f"sardonyx.providers.cpu.{family}")
    return {} if module is None else module.LOWERINGS


@cache
def lowering(key: tuple[str, str]) -> Lowering | None:
    """Return the lowering of an op; None if it has no kernel."""
    family = family_of(*key)
    return None if family is None else lowerings(family).get(key)


def text_lowering(key: tuple[str, str]) -> Lowering | None:
    """Return the lowering of an op for string tensors; None if it has no kernel for them."""
    from sardonyx.providers.cpu.text import TEXT_LOWERINGS  # few models have strings

    return TEXT_LOWERINGS.get(key)


def for_types(
    types: Container[DType], lower: Callable[..., Lowered | No], **options: object
) -> Lowering:
    """Restrict a lowering to element types of the first input; `options` are passed to `lower`."""

    def checked(node: Node) -> Lowered | No:
        dtype = input_of(node, 0).tensor.dtype
        return lower(node, **options) if dtype in types else No(f"no kernel for {dtype}")

    return checked


def direct(
    kernel: str,
    ints: tuple[str, ...] = (),
    floats: tuple[str, ...] = (),
    shares: tuple[tuple[int, int], ...] = (),
) -> Lowering:
    """Lower a node to one call with all of its inputs, and these attributes as arguments."""

    def call(node: Node) -> Call:
        attrs = node.attrs
        arguments = tuple(attrs[a] for a in ints), tuple(attrs[a] for a in floats)
        return Call(kernel, node.inputs, *arguments, shares=shares)

    return call


def padded_inputs(node: Node, count: int) -> tuple[Value | None, ...]:
    """Return the inputs with None for trailing ones that the node omits: kernels want all."""
    return tuple(optional_input(node, slot) for slot in range(count))
