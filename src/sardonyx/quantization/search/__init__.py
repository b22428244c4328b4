"""Accuracy-driven quantization: the fastest or smallest model within a limit on its loss.

`quantize_within` measures the sensitivity of each layer on calibration samples, searches for the
quantization scheme and the layers that stay in float (mixed precision), and validates the result
against the original on held-out samples. A model that is slower than asked is never written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from typing import Any, Final

from sardonyx.base.digest import blake2b
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.graph.const import SourceConst
from sardonyx.quantization.document import ModelDoc, document_bytes, read_document, save_document
from sardonyx.quantization.document.session import References
from sardonyx.quantization.search.candidates import Candidates
from sardonyx.quantization.search.evaluate import Evaluator, first_outputs
from sardonyx.quantization.search.int8 import Int8Search
from sardonyx.quantization.search.journal import Journal, remove, work_folder
from sardonyx.quantization.search.layers import name_nodes
from sardonyx.quantization.search.metrics import KINDS, MetricKind, metric_kind
from sardonyx.quantization.search.outcome import (
    Outcome,
    QuantizationRefused,
    SearchOptions,
    refused,
)
from sardonyx.quantization.search.samples import Part, Samples, read_samples
from sardonyx.quantization.search.schemes import Quantizable
from sardonyx.quantization.search.weights import WeightSearch
from sardonyx.quantization.shape_inference import quant_pre_process
from sardonyx.version import __version__

__all__ = ["Outcome", "QuantizationRefused", "SearchOptions", "quantize_within"]

_ROUNDED: Final = 1e-6  # of a loss: sums of cosines are not exact
WORK_SUFFIX: Final = ".search"  # of the folder beside the output


def quantize_within(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    data: Any,
    options: SearchOptions | None = None,
) -> Outcome:
    """Quantize a model so that it loses at most `options.max_loss`, and write it to `output`.

    `data` are samples: a .npz file with a row per sample, several files or a folder of them with a
    sample each, or mappings of arrays. Half of them are held out for validation. Raises
    QuantizationRefused, and writes nothing, if no model is as accurate and as fast as asked.
    Intermediate results are in `options.work`, by default `<output>.search`, until a model is
    written: an interrupted search continues there.
    """
    chosen = options or SearchOptions()
    began, path, target = time.monotonic(), os.fspath(model), os.path.abspath(output)
    _check_output(target)
    document = read_document(path)
    _check_originals(target, path, document)
    samples = read_samples(document, data, chosen.label, chosen.batch)
    parts = samples.split()
    kind = metric_kind(
        chosen.metric, document, samples.has_labels, first_outputs(path, parts[0], chosen.threads)
    )
    folder = os.fspath(chosen.work or target + WORK_SUFFIX)
    outcome = _outcome(path, document, kind, parts, chosen)
    with work_folder(folder):
        journal = Journal(folder, _digest(document, samples, kind))
        evaluator = Evaluator(path, kind, chosen.threads, chosen.timer)
        for part in parts:
            _check_metric(journal, evaluator, part, kind, chosen.max_loss)
        candidates = Candidates(target, journal, evaluator, chosen)
        _search(candidates, parts, _prepared(path, journal), outcome)
        outcome.seconds, outcome.n_resumed = time.monotonic() - began, journal.n_resumed
        if outcome.refusal:
            raise refused(outcome)
        candidates.publish()
        outcome.output = target
        remove(folder)
    return outcome


def _check_metric(
    journal: Journal, evaluator: Evaluator, part: Part, kind: MetricKind, max_loss: float
) -> None:
    """Raise if the metric does not suit the samples: the original itself has to lose nothing."""
    key = f"original|{part.indices[0]}"
    loss = journal.remembered(key, lambda: evaluator.own_loss(part))
    if not loss <= max(max_loss, _ROUNDED):
        raise InvalidArgument(
            f"the loss of the original itself is {loss:g} ({kind.text})",
            hint="a metric is 0 for equal outputs, and grows as they differ",
        )


def _search(
    candidates: Candidates, parts: tuple[Part, Part], prepared: str, outcome: Outcome
) -> None:
    """Run the search for the goal. The last candidate is the result unless there is a refusal."""
    model = Quantizable(prepared, parts[0], candidates.journal)
    if not model.layers:
        raise InvalidArgument(
            "the model has nothing to quantize: no MatMul, Gemm or convolution of floats",
            hint="a model that is quantized already, or of trees, stays as it is",
        )
    search = WeightSearch if outcome.goal == "size" else Int8Search
    with _without_warnings():
        search(model, candidates, parts).run(outcome)
    speed = outcome.speed
    if speed is not None and speed.is_busy:
        outcome.remarks.append("the machine was busy: times are those of its processors")
    if speed is not None and speed.lowest is not None:
        outcome.remarks.append(
            "times are the sums of samples of several sizes; at the least favourable one the "
            f"result is {speed.lowest:.2f}x as fast"
        )


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Mute the quantizers' warnings about single tensors: the search measures their effect."""
    logger = logging.getLogger("sardonyx.quantization")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _check_output(target: str) -> None:
    """Raise if the output cannot be written, before anything is computed."""
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise Fail(f"there is no folder {folder} to write {os.path.basename(target)} to")
    if os.path.isdir(target):
        raise Fail(f"{target} is a folder", hint="name the file to save the model to")
    if not os.access(folder, os.W_OK):
        raise Fail(f"the folder {folder} cannot be written to", hint="choose another output")


def _check_originals(target: str, path: str, document: ModelDoc) -> None:
    """Raise if a file that is to be written is one of the model's own."""
    own = {os.path.realpath(path), *map(os.path.realpath, _data_files(document))}
    for written in (target, f"{target}.data"):
        if os.path.realpath(written) in own:
            raise InvalidArgument(
                f"{written} is a file of the model that is quantized",
                hint="choose another output: the result is compared with the original",
            )


def _data_files(document: ModelDoc) -> Iterator[str]:
    for const in document.graph.initializers.values():
        if isinstance(const, SourceConst) and const.source.file is not None:
            yield const.source.file.path


def _prepared(path: str, journal: Journal) -> str:
    """Return the path of the optimized model with names for all nodes; it is made once."""
    prepared, optimized = journal.path("prepared.onnx"), journal.path("optimized.onnx")
    if not os.path.exists(prepared):
        quant_pre_process(path, optimized)
        document = read_document(optimized)
        name_nodes(document)
        save_document(document, prepared)
        for written in (optimized, f"{optimized}.data"):
            if os.path.exists(written):
                os.unlink(written)
    journal.remembered("prepared", lambda: True)
    return prepared


def _outcome(
    path: str,
    document: ModelDoc,
    kind: MetricKind,
    parts: tuple[Part, Part],
    options: SearchOptions,
) -> Outcome:
    calibrating, held_out = parts
    outcome = Outcome(
        path,
        kind.name,
        kind.text,
        options.goal,
        options.max_loss,
        options.resolved_min_speedup,
        len(calibrating),
        len(held_out),
        _size(path, document),
    )
    rows = sum(next((len(a) for a in s.feed.values() if a.ndim), 1) for s in held_out)
    remark = kind.sample_size_remark(rows, options.max_loss)
    if remark:
        outcome.remarks.append(remark)
    return outcome


def _size(path: str, document: ModelDoc) -> int:
    """Return the bytes of a model: those of its file and of its weights in others."""
    consts, own = document.graph.initializers.values(), os.path.realpath(path)
    external = (
        const.length
        for const in consts
        if isinstance(const, SourceConst)
        and const.source.file is not None
        and os.path.realpath(const.source.file.path) != own
    )
    return os.path.getsize(path) + sum(external)


def _digest(document: ModelDoc, samples: Samples, kind: MetricKind) -> str:
    """Return what identifies results: program, model, samples and metric, but no limits."""
    found, references = blake2b(__version__.encode(), digest_size=16), References()
    found.update(document_bytes(document, references))
    for buffer in references.buffers.values():
        found.update(buffer)
    for sample in samples:
        for name, array in sorted(sample.feed.items()):
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(array.tobytes() if array.dtype != object else str(array.tolist()).encode())
        if sample.labels is not None:
            found.update(sample.labels.tobytes())
    # Functions of the same name may differ: losses by one are not used again.
    found.update(kind.name.encode() if kind.name in KINDS else os.urandom(16))
    return str(found.hexdigest())
