"""Calibration: runs a model on samples and finds the ranges of its tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.fact import Fact
from sardonyx.quantization.data_reader import CalibrationDataReader, feeds_of
from sardonyx.quantization.document import (
    ModelDoc,
    NodeDoc,
    attribute,
    document_bytes,
    read_document,
    save_document,
)
from sardonyx.quantization.document.read import value_of
from sardonyx.quantization.document.session import open_measuring
from sardonyx.quantization.document.types import ValueType, value_types
from sardonyx.quantization.histogram import HistogramCollector, entropy
from sardonyx.quantization.histogram import relative_entropy as rel_entr
from sardonyx.quantization.tensors_data import (
    CalibrationCacheEncoder,
    CalibrationMethod,
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
)
from sardonyx.save.types import value_info

__all__ = [
    "CalibraterBase",
    "CalibrationCacheEncoder",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DistributionCalibrater",
    "EntropyCalibrater",
    "HistogramCalibrater",
    "HistogramCollector",
    "MinMaxCalibrater",
    "PercentileCalibrater",
    "TensorData",
    "TensorsData",
    "create_calibrator",
    "entropy",
    "load_tensors_data",
    "rel_entr",
    "save_tensors_data",
]

_CALIBRATED: Final = ("f32", "f16")
_CACHED_BYTES: Final = 1 << 28  # of activations that are kept for the second pass over samples
_AXES_INPUT: Final = 18  # opset since which ReduceMin and ReduceMax take axes as an input


class CalibraterBase:
    """A model with outputs for the tensors to calibrate, and the session that runs it."""

    def __init__(
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] | None = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        per_channel: bool = False,
    ) -> None:
        """`model_path` is the model: a path, bytes, or a document; it is not changed.

        No model is written if `augmented_model_path` is None.
        """
        is_read = isinstance(model_path, ModelDoc)
        self.document = model_path.copy() if is_read else read_document(model_path)
        self.op_types_to_calibrate = op_types_to_calibrate
        self.augmented_model_path = augmented_model_path
        self.symmetric = symmetric
        self.use_external_data_format = use_external_data_format
        self.per_channel = per_channel
        self.infer_session: Any = None
        self.execution_providers: Sequence[Any] = ["CPUExecutionProvider"]
        self.model_original_outputs = {o.name for o in self.document.graph.outputs}

    @property
    def model(self) -> Any:
        """The model as an onnx.ModelProto."""
        return self.get_augment_model()

    def set_execution_providers(
        self, execution_providers: Sequence[Any] = ("CPUExecutionProvider",)
    ) -> None:
        """Run the model on other providers."""
        self.execution_providers = list(execution_providers)
        self.create_inference_session()

    def create_inference_session(self) -> None:
        """Open a session for the model with its added outputs."""
        self.infer_session = open_measuring(self.document, self.execution_providers)

    def tensors(self) -> dict[str, ValueType]:
        """Return the tensors to calibrate, in the order of the nodes, with their types."""
        graph, types = self.document.graph, value_types(self.document)
        found: dict[str, ValueType] = {}
        for node in graph.nodes:
            if self.op_types_to_calibrate and node.op_type not in self.op_types_to_calibrate:
                continue
            for name in (*node.inputs, *node.outputs):
                kind = types.get(name)
                if name in graph.initializers or kind is None:
                    continue
                if kind.dtype.name in _CALIBRATED:
                    found[name] = kind
        return found

    def select_tensors_to_calibrate(self, model: Any) -> tuple[set[str], dict[str, Any]]:
        """Return the names of the tensors to calibrate, and the declared types of all values.

        The types are onnx.ValueInfoProto by name.
        """
        from onnx import ValueInfoProto

        infos = {}
        for name, kind in value_types(self.document).items():
            raw = value_info(name, Fact(kind.dtype, None), kind.dims).joined()
            infos[name] = ValueInfoProto.FromString(raw)
        return set(self.tensors()), infos

    def get_augment_model(self) -> Any:
        """Return the model with its added outputs as an onnx.ModelProto."""
        from onnx import ModelProto

        return ModelProto.FromString(document_bytes(self.document))

    def augment_graph(self) -> None:
        """Add outputs for the tensors to calibrate, and write the model."""
        self._add_outputs()
        if self.augmented_model_path is not None:
            save_document(
                self.document, self.augmented_model_path, external=self.use_external_data_format
            )

    def _add_outputs(self) -> None:
        raise NotImplementedError("a calibrator adds outputs to the model")

    def _add_output(self, name: str, kind: ValueType, dims: tuple[int | None, ...] | None) -> None:
        raw = value_info(name, Fact(kind.dtype, None), dims).joined()
        self.document.graph.outputs.append(value_of(raw))

    def collect_data(self, data_reader: Any) -> None:
        """Run the samples of a reader; can be called several times."""
        raise NotImplementedError("a calibrator collects data")

    def compute_data(self) -> TensorsData:
        """Return the ranges of the tensors."""
        raise NotImplementedError("a calibrator computes ranges")


class MinMaxCalibrater(CalibraterBase):
    """Finds the smallest and the largest value of each tensor, inside the model."""

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] | None = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        moving_average: bool = False,
        averaging_constant: float = 0.01,
        max_intermediate_outputs: int | None = None,
        per_channel: bool = False,
    ) -> None:
        """`max_intermediate_outputs` is the number of samples after which ranges are merged."""
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric,
            use_external_data_format,
            per_channel,
        )
        if moving_average and not 0 <= averaging_constant <= 1:
            raise ValueError("Invalid averaging constant, which should not be < 0 or > 1.")
        self.num_model_outputs = len(self.document.graph.outputs)
        self.moving_average = moving_average
        self.averaging_constant = averaging_constant
        self.max_intermediate_outputs = max_intermediate_outputs
        self.calibrate_tensors_range: TensorsData | None = None
        self.intermediate_outputs: list[list[Array]] = []
        self._names: list[str] = []

    def _add_outputs(self) -> None:
        graph = self.document.graph
        shape = "calibration_reshape"
        while shape in graph.initializers:
            shape += "_"
        tensors = self.tensors()
        graph.initializers[shape] = ArrayConst(np.array([-1], np.int64))
        for name, kind in tensors.items():
            self._names.append(name)
            for op in ("ReduceMin", "ReduceMax"):
                output = f"{name}_{op}"
                inner = f"{output}_Reshape"
                reduce = self._reduction(op, name, kind)
                reduce.outputs, reduce.name = [inner], output
                graph.add(reduce, NodeDoc("Reshape", [inner, shape], [output], inner))
                self._add_output(output, kind, (None,))

    def _reduction(self, op: str, name: str, kind: ValueType) -> NodeDoc:
        node = NodeDoc(op, [name], [], attrs={"keepdims": attribute("keepdims", 1)})
        if not self.per_channel:
            return node
        if kind.dims is None:
            raise InvalidArgument(
                f"{name} is calibrated per channel, and its rank is unknown",
                hint="run quant_pre_process first, which infers shapes",
            )
        axes = [0, *range(2, len(kind.dims))]
        if self.document.opset < _AXES_INPUT:
            node.set("axes", axes)
            return node
        constant = f"calibration_axes_{len(kind.dims)}"
        self.document.graph.initializers[constant] = ArrayConst(np.array(axes, np.int64))
        node.inputs.append(constant)
        return node

    def clear_collected_data(self) -> None:
        """Forget the ranges of samples that are not merged yet."""
        self.intermediate_outputs = []

    def collect_data(self, data_reader: Any) -> None:
        """Run the samples of a reader."""
        names = [f"{name}_{op}" for name in self._names for op in ("ReduceMin", "ReduceMax")]
        for feeds in feeds_of(data_reader):
            results = self.infer_session.run(names, feeds) if names else []
            self.intermediate_outputs.append([np.array(r) for r in results])
            if len(self.intermediate_outputs) == self.max_intermediate_outputs:
                self.compute_data()
        if not self.intermediate_outputs and self.calibrate_tensors_range is None:
            raise ValueError("No data is collected.")
        self.compute_data()

    def compute_data(self) -> TensorsData:
        """Return the ranges, with the samples since the last call merged in."""
        if self.intermediate_outputs:
            new = self._merged_samples()
            old = self.calibrate_tensors_range
            self.calibrate_tensors_range = new if old is None else self.merge_range(old, new)
            self.clear_collected_data()
        if self.calibrate_tensors_range is None:
            raise ValueError("No data is collected.")
        return self.calibrate_tensors_range

    def _merged_samples(self) -> TensorsData:
        low, high = (np.nanmean, np.nanmean) if self.moving_average else (np.nanmin, np.nanmax)
        ranges: dict[str, Any] = {}
        for i, name in enumerate(self._names):
            lows, highs = ([run[2 * i + j] for run in self.intermediate_outputs] for j in (0, 1))
            smallest, largest = low(lows, axis=0), high(highs, axis=0)
            if self.symmetric:
                largest = np.fmax(np.abs(smallest), np.abs(largest))
                smallest = -largest
            ranges[name] = TensorData(lowest=smallest, highest=largest)
        return TensorsData(CalibrationMethod.MinMax, ranges)

    def merge_range(self, old_range: TensorsData | None, new_range: TensorsData) -> TensorsData:
        """Return the union of ranges, or their moving average."""
        if not old_range:
            return new_range
        for name, old in old_range.items():
            (old_low, old_high), (low, high) = old.range_value, new_range[name].range_value
            if self.moving_average:
                low = old_low + self.averaging_constant * (low - old_low)
                high = old_high + self.averaging_constant * (high - old_high)
            else:
                low, high = np.minimum(old_low, low), np.maximum(old_high, high)
            new_range[name] = TensorData(lowest=low, highest=high)
        return new_range


class HistogramCalibrater(CalibraterBase):
    """Finds ranges by histograms of the tensors, which are outputs of the model."""

    calibration_method = CalibrationMethod.Percentile

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] | None = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 2048,
        percentile: float = 99.999,
        scenario: str = "same",
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, symmetric,
            use_external_data_format,
        )  # fmt: skip
        self.method = method
        self.num_bins = num_bins
        self.num_quantized_bins = num_quantized_bins
        self.percentile = percentile
        self.scenario = scenario
        self.collector: HistogramCollector | None = None
        self.tensors_to_calibrate: set[str] = set()

    def _add_outputs(self) -> None:
        tensors = self.tensors()
        self.tensors_to_calibrate = set(tensors)
        for name, kind in tensors.items():
            if name not in self.model_original_outputs:
                self._add_output(name, kind, kind.dims)

    def collect_data(self, data_reader: Any) -> None:
        """Run the samples of a reader; they are kept until all of them have run twice.

        The second run counts values; activations of the first are used while they are small.
        """
        feeds = [dict(f) for f in feeds_of(data_reader)]
        if not feeds:
            raise ValueError("No data is collected.")
        if self.collector is None:
            self.collector = HistogramCollector(
                self.method,
                self.symmetric,
                self.num_bins,
                self.num_quantized_bins,
                self.percentile,
                self.scenario,
            )
        kept: dict[int, dict[str, Array]] = {}
        self.collector.collect_batches(lambda: self._outputs(feeds, kept))

    def _outputs(
        self, feeds: list[dict[str, Any]], kept: dict[int, dict[str, Array]]
    ) -> Iterator[dict[str, Array]]:
        """Yield the tensors of each sample; `kept` is filled with those of the first samples."""
        names = [o.name for o in self.infer_session.get_outputs()]
        names = [name for name in names if name in self.tensors_to_calibrate]
        size = sum(a.nbytes for outputs in kept.values() for a in outputs.values())
        for i, sample in enumerate(feeds):
            outputs = kept.get(i)
            if outputs is None:
                arrays = self.infer_session.run(names, sample)
                outputs = dict(zip(names, arrays, strict=True))
                size += sum(array.nbytes for array in arrays)
                if size <= _CACHED_BYTES:
                    kept[i] = outputs
            yield outputs

    def compute_data(self) -> TensorsData:
        """Return the ranges."""
        if self.collector is None:
            raise ValueError("No collector created and can't generate calibration data.")
        return TensorsData(self.calibration_method, self.collector.compute_collection_result())


class EntropyCalibrater(HistogramCalibrater):
    """Finds the ranges whose quantized distributions differ least from the originals."""

    calibration_method = CalibrationMethod.Entropy

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] | None = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "entropy",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 128,
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format,
            method, symmetric, num_bins, num_quantized_bins,
        )  # fmt: skip


class PercentileCalibrater(HistogramCalibrater):
    """Finds the ranges that hold a percentage of the values."""

    calibration_method = CalibrationMethod.Percentile

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] | None = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 2048,
        percentile: float = 99.999,
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format,
            method, symmetric, num_bins, percentile=percentile,
        )  # fmt: skip


class DistributionCalibrater(HistogramCalibrater):
    """Finds means and standard deviations, for float8."""

    calibration_method = CalibrationMethod.Distribution

    def __init__(  # noqa: PLR0913 - onnxruntime's arguments
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] | None = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "distribution",
        num_bins: int = 128,
        scenario: str = "same",
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format,
            method, num_bins=num_bins, scenario=scenario,
        )  # fmt: skip


# By method: the class, and its options with their defaults.
_CALIBRATORS: Final[Mapping[CalibrationMethod, tuple[type[CalibraterBase], dict[str, Any]]]] = {
    CalibrationMethod.MinMax: (
        MinMaxCalibrater,
        {
            "symmetric": False,
            "moving_average": False,
            "averaging_constant": 0.01,
            "max_intermediate_outputs": None,
            "per_channel": False,
        },
    ),
    CalibrationMethod.Entropy: (
        EntropyCalibrater,
        {"num_bins": 128, "num_quantized_bins": 128, "symmetric": False},
    ),
    CalibrationMethod.Percentile: (
        PercentileCalibrater,
        {"num_bins": 2048, "percentile": 99.999, "symmetric": True},
    ),
    CalibrationMethod.Distribution: (
        DistributionCalibrater,
        {"num_bins": 2048, "scenario": "same"},
    ),
}


def create_calibrator(  # noqa: PLR0913 - onnxruntime's arguments
    model: Any,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: str | os.PathLike[str] | None = "augmented_model.onnx",
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,
    providers: Sequence[Any] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> Any:
    """Return a calibrator whose session is ready to collect data."""
    if not _is_method(calibrate_method):
        raise ValueError(f"Unsupported calibration method {calibrate_method}")
    kind, defaults = _CALIBRATORS[calibrate_method]
    chosen = {k: v for k, v in (extra_options or {}).items() if k in defaults}
    make: Any = kind
    calibrator = make(
        model,
        op_types_to_calibrate,
        augmented_model_path,
        use_external_data_format=use_external_data_format,
        **{**defaults, **chosen},
    )
    calibrator.augment_graph()
    if providers:
        calibrator.execution_providers = providers
    calibrator.create_inference_session()
    return calibrator


def _is_method(method: Any) -> TypeGuard[CalibrationMethod]:
    return isinstance(method, CalibrationMethod)
