"""Quantizes a model as far as a limit on its loss allows, and never hands out a slower one.

`quantize_within` measures what each layer loses on samples, chooses how to quantize and what stays
in floats, and checks the result against the original on samples that it has not used.
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
from sardonyx.quantization.document import ModelDoc, document_bytes, read_document, save_document
from sardonyx.quantization.document.session import References
from sardonyx.quantization.search.candidates import Candidates
from sardonyx.quantization.search.evaluate import Evaluator, first_outputs
from sardonyx.quantization.search.int8 import Int8Search
from sardonyx.quantization.search.journal import Journal, remove, work_folder
from sardonyx.quantization.search.layers import name_nodes
from sardonyx.quantization.search.metrics import MetricKind, metric_kind
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

__all__ = ["Outcome", "QuantizationRefused", "SearchOptions", "quantize_within"]

WORK_SUFFIX: Final = ".search"  # of the folder beside the output


def quantize_within(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    data: Any,
    options: SearchOptions | None = None,
) -> Outcome:
    """Quantize a model so that it loses at most `options.max_loss`, and write it to `output`.

    `data` are samples: a .npz file with a row per sample, several files or a folder of them with a
    sample each, or mappings of arrays. Half of them are held back, and check the result. Raises
    QuantizationRefused, and writes nothing, if no model is as accurate and as fast as asked.
    Intermediate results are in `options.work`, by default `<output>.search`, until a model is
    written: an interrupted search continues there.
    """
    chosen = options or SearchOptions()
    began, path, target = time.monotonic(), os.fspath(model), os.path.abspath(output)
    _check_output(target)
    document = read_document(path)
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
        candidates = Candidates(target, journal, evaluator, chosen)
        _search(candidates, parts, _prepared(path, journal), outcome)
        outcome.seconds, outcome.n_resumed = time.monotonic() - began, journal.n_resumed
        if outcome.refusal:
            raise refused(outcome)
        candidates.publish()
        outcome.output = target
        remove(folder)
    return outcome


def _search(
    candidates: Candidates, parts: tuple[Part, Part], prepared: str, outcome: Outcome
) -> None:
    """Search by the goal; the candidate that is left is the result, unless there is a refusal."""
    model = Quantizable(prepared, parts[0], candidates.journal)
    if not model.layers:
        raise InvalidArgument(
            "the model has nothing to quantize: no MatMul, Gemm or convolution of floats",
            hint="a model that is quantized already, or of trees, stays as it is",
        )
    search = WeightSearch if outcome.goal == "size" else Int8Search
    with _without_warnings():
        search(model, candidates, parts).run(outcome)
    if outcome.speed is not None and outcome.speed.is_busy:
        outcome.remarks.append("the machine was busy: times are those of its processors")


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Mute the quantizers' warnings about single tensors: what they cost is measured."""
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
    calibrating, held_back = parts
    consts = document.graph.initializers.values()
    outcome = Outcome(
        path,
        kind.name,
        kind.text,
        options.goal,
        options.max_loss,
        options.least_speedup,
        len(calibrating),
        len(held_back),
        sum(c.count * c.dtype.itemsize for c in consts if c.dtype.itemsize),
    )
    rows = sum(next((len(a) for a in s.feed.values() if a.ndim), 1) for s in held_back)
    doubt = kind.doubt(rows, options.max_loss)
    if doubt:
        outcome.remarks.append(doubt)
    return outcome


def _digest(document: ModelDoc, samples: Samples, kind: MetricKind) -> str:
    """Return what identifies results: model, samples and metric; limits do not change them."""
    found, references = blake2b(digest_size=16), References()
    found.update(document_bytes(document, references))
    for buffer in references.buffers.values():
        found.update(buffer)
    for sample in samples:
        for name, array in sorted(sample.feed.items()):
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(array.tobytes() if array.dtype != object else str(array.tolist()).encode())
        if sample.labels is not None:
            found.update(sample.labels.tobytes())
    found.update(kind.name.encode())
    return str(found.hexdigest())
