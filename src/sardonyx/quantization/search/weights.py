"""Weight-only quantization: the search for the smallest n-bit weights within the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sardonyx.base.progress import track
from sardonyx.base.records import frozen, replace
from sardonyx.quantization.document import read_document, save_document
from sardonyx.quantization.matmul_nbits import (
    AWQWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
)
from sardonyx.quantization.search.candidates import (
    CANDIDATE_ERRORS,
    Candidate,
    Candidates,
    build_error,
)
from sardonyx.quantization.search.evaluate import layer_seconds, session_options
from sardonyx.quantization.search.layers import Layer, groups_of, names_digest
from sardonyx.quantization.search.outcome import (
    LOSES_TOO_MUCH,
    NOT_COMPARABLE,
    LayerResult,
    Outcome,
    Trial,
)
from sardonyx.quantization.search.samples import Part
from sardonyx.quantization.search.schemes import Quantizable
from sardonyx.session import InferenceSession

_BLOCKS: Final = (128, 32)
_METHODS: Final = ("rtn", "k_quant", "awq", "gptq")  # in increasing order of cost
_MEASURED: Final = 2  # samples on which groups of layers are measured
_MAX_GROUPS: Final = 24
_MAX_CALIBRATED: Final = 24  # samples of GPTQ and AWQ
_HOPELESS: Final = 30.0  # times `max_loss`: no rounding method gains so much over another
_WIDE_SHARES: Final = (0.125, 0.25, 0.5)  # of the layers, the most sensitive, that get 8 bits
_WIDE: Final = 8
_EXTERNAL: Final = 1 << 30  # bytes of weights that get a file of their own


@frozen
class WeightFormat:
    """How weights are stored and rounded; the layers in `wide` have 8 bits."""

    bits: int
    block: int
    method: str = _METHODS[0]
    wide: frozenset[str] = frozenset()
    level: int = 0  # 4: products may round activations to 8 bits

    def __str__(self) -> str:
        mixed = f", {len(self.wide)} layers in 8 bits" if self.wide else ""
        level = ", 8-bit products" if self.level else ""
        return f"{self.bits}-bit weights in blocks of {self.block}, {self.method}{mixed}{level}"


class WeightSearch:
    """A search over formats by size, and over rounding methods."""

    def __init__(
        self, model: Quantizable, candidates: Candidates, parts: tuple[Part, Part]
    ) -> None:
        self._model = model
        self._candidates = candidates
        self._options = candidates.options
        self._calibrating, self._held_out = parts
        self._feeds = self._held_out.of_each_size()
        self._layers = [x for x in model.layers if x.op == "MatMul" and x.weight_count]
        self._groups = groups_of(self._layers, _MAX_GROUPS)
        self._is_large = sum(x.weight_bytes for x in self._layers) > _EXTERNAL
        self._written: WeightFormat | None = None

    def run(self, outcome: Outcome) -> None:
        """Search; set the result, or the reason why there is none, in the outcome."""
        if not self._layers:
            outcome.refusal = "no MatMul of the model has a constant weight, which n bits are for"
            return
        for form in self._forms():
            best = self._rounded(form, outcome)
            if best is not None and self._accept(best, outcome):
                return
        outcome.refusal = (
            f"no model of {' or '.join(map(str, self._options.bits))}-bit weights is smaller, "
            f"loses at most {self._options.max_loss:.2%} ({outcome.metric_text}) and is "
            f"{self._options.resolved_min_speedup:g} times as fast as the original"
        )

    def _forms(self) -> Iterator[WeightFormat]:
        """Yield formats by size, the mixed ones once those of one width have failed."""
        for bits in sorted(self._options.bits):
            yield from (WeightFormat(bits, block) for block in _BLOCKS)
            if bits < _WIDE and _WIDE in self._options.bits:
                order = self._order(WeightFormat(bits, _BLOCKS[-1]))
                for share in _WIDE_SHARES:
                    n = max(1, round(share * len(order)))
                    wide = frozenset(layer.name for group in order[:n] for layer in group)
                    yield WeightFormat(bits, _BLOCKS[-1], wide=wide)

    def _rounded(self, form: WeightFormat, outcome: Outcome) -> WeightFormat | None:
        """Return the format with the first method whose loss is small enough."""
        limit = self._options.searched_loss
        with track(f"rounding to {form.bits} bits in blocks of {form.block}") as progress:
            for i, method in enumerate(_METHODS):
                progress.update(i, len(_METHODS), method)
                tried = replace(form, method=method)
                trial = self._try(tried, outcome)
                if trial is None or trial.loss is None:
                    continue
                if trial.loss <= limit:
                    return tried
                if trial.loss > _HOPELESS * max(limit, 1e-9):
                    break
        return None

    def _try(self, form: WeightFormat, outcome: Outcome) -> Trial | None:
        trial = Trial(str(form), 0)
        outcome.trials.append(trial)

        def measure() -> list[float]:
            made = self._build(form)
            found = self._candidates.evaluator.loss(made.session, self._calibrating)
            return [found.loss, found.error, made.n_bytes]

        try:
            key = f"weights|{form}|{names_digest(form.wide)}"
            trial.loss, trial.error, n_bytes = self._candidates.journal.remembered(key, measure)
        except CANDIDATE_ERRORS as error:
            trial.verdict = build_error(error)
            return None
        trial.n_bytes = int(n_bytes)
        if math.isfinite(trial.error):
            return trial
        trial.verdict = NOT_COMPARABLE
        return None

    def _build(self, form: WeightFormat) -> Candidate:
        """Write and open a model, unless it is the one that was written last."""
        plain, path = replace(form, level=0), self._candidates.path
        if self._written not in (plain, form):
            quantizer = self._quantizer(plain, ())
            quantizer.process()
            quantizer.model.save_model_to_file(path, self._is_large)
            self._written = plain
        if self._written != form:
            document = read_document(path)
            for node in document.graph.nodes:
                if node.op_type == "MatMulNBits":
                    node.set("accuracy_level", form.level)
            save_document(document, path, external=self._is_large)
            self._written = form
        return self._candidates.opened()

    def _quantizer(self, form: WeightFormat, excluded: Sequence[str]) -> MatMulNBitsQuantizer:
        config = self._config(form)
        config.customized_weight_config = {name: {"bits": _WIDE} for name in form.wide}
        return MatMulNBitsQuantizer(
            self._model.path,
            form.bits,
            form.block,
            nodes_to_exclude=excluded,
            algo_config=config,
        )

    def _config(self, form: WeightFormat) -> Any:
        if form.method == "rtn":
            return RTNWeightOnlyQuantConfig()
        if form.method == "k_quant":
            return KQuantWeightOnlyQuantConfig()
        feeds = list(self._calibrating.first(_MAX_CALIBRATED).feeds())
        if form.method == "awq":
            return AWQWeightOnlyQuantConfig(feeds)
        return GPTQWeightOnlyQuantConfig(feeds)

    def _accept(self, form: WeightFormat, outcome: Outcome) -> bool:
        """Validate a model on the held-out samples, and check its speed."""
        for level in (0, 4):
            tried = replace(form, level=level)
            made = self._build(tried)
            trial = Trial(str(tried), 0)
            self._candidates.checked(trial, made, self._held_out, self._feeds)
            outcome.trials.append(trial)
            if trial.loss is None or trial.loss > self._options.max_loss:
                trial.verdict = LOSES_TOO_MUCH
                return False
            if made.n_bytes >= outcome.bytes_before:
                trial.verdict = "not smaller than the original"
                return False
            if trial.is_fast(self._options.resolved_min_speedup):
                outcome.choose(trial)
                outcome.layers = self._results(tried, made)
                return True
            trial.verdict = "too slow"
        return False

    def _errors(self, form: WeightFormat) -> list[float]:
        """Return the error of the outputs with each group alone rounded to the nearest codes."""
        form = WeightFormat(form.bits, form.block)
        part, found = self._calibrating.first(_MEASURED), list[float]()
        with track("measuring layers") as progress:
            for i, group in enumerate(self._groups):
                progress.update(i, len(self._groups), f"{i + 1} of {len(self._groups)}")
                names = {layer.name for layer in group}

                def measure(names: set[str] = names) -> float:
                    others = [x.name for x in self._layers if x.name not in names]
                    quantizer = self._quantizer(form, others)
                    quantizer.process()
                    options = session_options(self._options.threads)
                    session = InferenceSession(quantizer.model.graph_model, options)
                    return self._candidates.evaluator.error(session, part)

                key = f"layer|{form}|{group[0].name}"
                found.append(self._candidates.journal.remembered(key, measure))
        return found

    def _order(self, form: WeightFormat) -> list[tuple[Layer, ...]]:
        """Return the groups by squared error saved per byte that 8 bits add, most first."""
        errors = self._errors(form)
        sizes = [sum(layer.weight_count for layer in group) for group in self._groups]
        gains = [e * e / max(n, 1) for e, n in zip(errors, sizes, strict=True)]
        return [self._groups[i] for i in sorted(range(len(gains)), key=lambda i: -gains[i])]

    def _results(self, form: WeightFormat, made: Candidate) -> list[LayerResult]:
        """Return what was measured and done, layer by layer."""
        threads, errors = self._options.threads, self._errors(form)
        path = self._model.path
        before = layer_seconds(path, self._layers, self._feeds[-1], threads)
        after = layer_seconds(made.path, self._layers, self._feeds[-1], threads)
        total, found = sum(e * e for e in errors) or 1.0, []
        for group, error in zip(self._groups, errors, strict=True):
            for layer in group:
                bits = _WIDE if layer.name in form.wide else form.bits
                share = f"{error * error / total:.0%} of the squared error"
                why = f"sensitive: {share}" if layer.name in form.wide else f"loses little: {share}"
                found.append(
                    LayerResult(
                        layer.name,
                        layer.op,
                        f"{bits} bits, blocks of {form.block}",
                        why if form.wide else f"all layers fit: {share}",
                        error,
                        len(group),
                        layer.weight_bytes,
                        _stored(layer, bits, form.block),
                        before.get(layer.name, 0.0),
                        after.get(layer.name, 0.0),
                    )
                )
        return found


def _stored(layer: Layer, bits: int, block: int) -> int:
    """Return the bytes of a weight with its scales and zero points; 3 bits are stored as 4."""
    stored = 4 if bits == 3 else bits
    per_block = layer.weight_bytes // max(layer.weight_count, 1) + stored / 8
    return round(layer.weight_count * (stored / 8 + per_block / block))
