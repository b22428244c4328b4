"""Shapes of a model's values for given sizes of its symbolic dims."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from sardonyx.tools.symbolic_shape_infer import (
    IncompleteInference,
    SymbolicShapeInference,
    get_shape_from_value_info,
)


class SymbolicShapeInferenceHelper(SymbolicShapeInference):
    """Infers the shapes of a model's values once, and answers questions about them."""

    def __init__(
        self,
        model: onnx.ModelProto,
        verbose: int = 0,
        int_max: int = 2**31 - 1,
        auto_merge: bool = True,
        guess_output_rank: bool = False,
    ) -> None:
        super().__init__(int_max, auto_merge, guess_output_rank, verbose)
        self.model_ = model
        self.all_shapes_inferred_ = False
        self.known_vi_: dict[str, onnx.ValueInfoProto] = {}
        self._sizes: Mapping[str, int] | None = None

    def infer(self, dynamic_axis_mapping: Mapping[str, int], max_runs: int = 200) -> bool:
        """Infer all shapes, with sizes of symbolic dims by name; return whether all are known."""
        if self._sizes == dynamic_axis_mapping:
            return self.all_shapes_inferred_
        self._sizes = dict(dynamic_axis_mapping)
        try:
            inferred = self.annotated(self.model_, self._sizes)
        except IncompleteInference:
            self.all_shapes_inferred_ = False
            return False
        graph = inferred.graph
        values = (*graph.input, *graph.value_info, *graph.output)
        self.known_vi_ = {value.name: value for value in values}
        for tensor in graph.initializer:
            info = onnx.helper.make_tensor_value_info(
                tensor.name, tensor.data_type, list(tensor.dims)
            )
            self.known_vi_[tensor.name] = info
        self.all_shapes_inferred_ = True
        return True

    def get_edge_shape(self, edge: str) -> list[int | str | None] | None:
        """Return the dims of a value; None if it is not known."""
        if edge not in self.known_vi_:
            return None
        shape = get_shape_from_value_info(self.known_vi_[edge])
        sizes = self._sizes or {}
        return shape and [sizes.get(d, d) if isinstance(d, str) else d for d in shape]

    def compare_shape(self, edge: str, edge_other: str) -> bool:
        """Return whether two values have equal shapes."""
        shapes = self.get_edge_shape(edge), self.get_edge_shape(edge_other)
        if None in shapes:
            raise ValueError(f"the shape of {edge} or {edge_other} is not known")
        return shapes[0] == shapes[1]
