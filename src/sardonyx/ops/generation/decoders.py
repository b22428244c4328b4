"""The decoders of a search: subgraphs of a node, run once for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.ops.arrays import Array


class DecoderGraph(Protocol):
    """A subgraph as a function."""

    @property
    def input_names(self) -> list[str]:
        """The names of its inputs."""
        ...

    @property
    def input_facts(self) -> list[Any]:
        """The types of its inputs."""
        ...

    def __call__(self, *values: Any) -> list[Any]: ...


class Decoder(Protocol):
    """Computes the logits of next tokens; a row is a sequence, with `copies` rows per prompt."""

    def first(self, copies: int) -> Array:
        """Return the logits after the prompt."""
        ...

    def next(self, tokens: Array) -> Array:
        """Return the logits after one more token in each row."""
        ...

    def reorder(self, rows: Array) -> None:
        """Reorder the caches: row i continues from row `rows[i]`."""
        ...


class FirstLogits:
    """A decoder, of which the logits after the prompt are kept."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.logits: Array = np.zeros((0, 0), np.float32)
        self.next = decoder.next
        self.reorder = decoder.reorder

    def first(self, copies: int) -> Array:
        self.logits = self._decoder.first(copies)
        return self.logits


def run_graph(body: DecoderGraph, values: dict[str, Any]) -> list[Any]:
    """Run a subgraph by the names of its inputs; raise if one has no value."""
    missing = [n for n in body.input_names if n not in values]
    if missing:
        raise InvalidGraph(f"the decoder has the unknown inputs {', '.join(missing)}")
    return body(*(values[n] for n in body.input_names))


def cache_inputs(body: DecoderGraph, mark: str) -> list[str]:
    """Return the cache inputs, in the order of the corresponding outputs."""
    return [n for n in body.input_names if n.startswith("past_") and mark in n]


def last_logits(logits: Array) -> Array:
    """Return the logits at the last position."""
    if logits.ndim != 3:
        raise InvalidGraph(f"the decoder gives logits of shape {list(logits.shape)}, not 3 dims")
    return np.asarray(logits[:, -1, :], np.float32)


def empty_state(fact: Any, rows: int, rows_axis: int) -> Array:
    """Return an empty cache: dynamic sizes are 0, except for the rows."""
    dims = [d if isinstance(d, int) else 0 for d in fact.dims]
    dims[rows_axis] = rows
    return np.zeros(dims, fact.dtype.np)


def _takes_sequences(decoder: DecoderGraph) -> bool:
    """Return whether each step reads all tokens so far: unless one is declared, as onnxruntime."""
    facts = dict(zip(decoder.input_names, decoder.input_facts, strict=True))
    fact = facts.get("input_ids")
    return fact is not None and fact.dims[1:] != (1,)


class Gpt:
    """A decoder-only model: inputs are ids, positions, mask and [2, rows, heads, length, size]."""

    def __init__(
        self, bodies: dict[str, DecoderGraph | None], ids: Array, mask: Array | None, pad: int
    ):
        decoder = bodies["decoder"]
        assert decoder is not None
        self._decoder = decoder
        self._start = bodies.get("init_decoder") or decoder
        self._ids = ids
        self._mask = np.asarray(ids != pad if mask is None else mask, np.int32)
        if self._mask.shape != ids.shape:
            raise InvalidArgument(
                f"attention_mask is of shape {list(self._mask.shape)}, "
                f"and the prompts of {list(ids.shape)}"
            )
        self._caches: dict[str, Array] = {}

    def first(self, copies: int) -> Array:
        ids, mask = (np.repeat(a, copies, 0) for a in (self._ids, self._mask))
        self._mask = mask
        # Positions count real tokens only: prompts are padded on the left.
        positions = np.cumsum(mask, 1) - 1
        self._positions = positions[:, -1:] + 1
        for name, fact in zip(self._start.input_names, self._start.input_facts, strict=True):
            if name.startswith("past_"):
                self._caches[name] = empty_state(fact, len(ids), 1)
        return self._run(self._start, ids, np.where(mask > 0, positions, 0))

    def next(self, tokens: Array) -> Array:
        ones = np.ones((len(tokens), 1), np.int32)
        self._mask = np.concatenate([self._mask, ones], 1)
        scores = self._run(self._decoder, tokens[:, None], self._positions)
        self._positions = self._positions + 1
        return scores

    def _run(self, body: DecoderGraph, ids: Array, positions: Array) -> Array:
        logits, *outputs = run_graph(
            body,
            {
                "input_ids": ids.astype(np.int32),
                "position_ids": positions.astype(np.int32),
                "attention_mask": self._mask,
                **self._caches,
            },
        )
        # Present caches become the past of the next step, in the order of the inputs.
        self._caches = dict(zip(self._caches, outputs, strict=False))
        return last_logits(logits)

    def reorder(self, rows: Array) -> None:
        self._mask, self._positions = self._mask[rows], self._positions[rows]
        self._caches = {n: np.ascontiguousarray(a[:, rows]) for n, a in self._caches.items()}


class EncoderDecoder:
    """An encoder that runs once, and a decoder that reads its outputs in each step.

    The encoder returns the keys and values of cross-attention; one with `decoder_input_ids` also
    returns the first logits and caches.
    """

    def __init__(
        self, bodies: dict[str, DecoderGraph | None], prompt: Sequence[Any], start: Array
    ) -> None:
        encoder, decoder = bodies["encoder"], bodies["decoder"]
        if encoder is None or decoder is None:
            raise InvalidGraph("a model of this type needs the attributes encoder and decoder")
        self._encoder, self._decoder = encoder, decoder
        self._ids, self._mask = prompt
        self._tokens = start  # of each row, so far
        self._takes_sequences = _takes_sequences(decoder)
        self._encoder_inputs: dict[str, Any] = {}  # the same in each step
        self._self_caches: dict[str, Array] = {}

    def first(self, copies: int) -> Array:
        start = self._tokens = np.repeat(self._tokens, copies, 0).astype(np.int32)
        takes_start = "decoder_input_ids" in self._encoder.input_names
        n = copies if takes_start else 1
        ids, mask = (np.repeat(a, n, 0) for a in (self._ids, self._mask))
        inputs = {"encoder_attention_mask": mask, "decoder_input_ids": start}
        inputs |= dict.fromkeys(("encoder_input_ids", "encoder_input_features"), ids)
        outputs = run_graph(self._encoder, inputs)
        self_names = cache_inputs(self._decoder, "_self_")
        cross_names = cache_inputs(self._decoder, "_cross_")
        if len(outputs) < len(cross_names) + takes_start * (len(self_names) + 1):
            raise InvalidGraph(f"the encoder gives {len(outputs)} values, too few for the decoder")
        # An encoder that also runs the first decoder step was called with all copies.
        repeats = 1 if takes_start else copies
        ids, mask, *shared = (
            np.repeat(a, repeats, 0)
            for a in (ids, mask, *outputs[len(outputs) - len(cross_names) :])
        )
        self._encoder_inputs = dict(zip(cross_names, shared, strict=True))
        self._encoder_inputs |= {"encoder_attention_mask": mask, "encoder_input_ids": ids}
        if takes_start:
            self._encoder_inputs["encoder_hidden_states"] = outputs[1]
            caches = outputs[len(outputs) - len(cross_names) - len(self_names) :]
            self._self_caches = dict(zip(self_names, caches, strict=False))
            return last_logits(outputs[0])
        for name, fact in zip(self._decoder.input_names, self._decoder.input_facts, strict=True):
            if name in self_names:
                self._self_caches[name] = empty_state(fact, len(start), 0)
        return self._run(start)

    def next(self, tokens: Array) -> Array:
        last = tokens[:, None].astype(np.int32)
        self._tokens = np.concatenate([self._tokens, last], 1)
        return self._run(self._tokens if self._takes_sequences else last)

    def _run(self, ids: Array) -> Array:
        logits, *outputs = run_graph(
            self._decoder, {"input_ids": ids, **self._encoder_inputs, **self._self_caches}
        )
        self._self_caches = dict(zip(self._self_caches, outputs, strict=False))
        return last_logits(logits)

    def reorder(self, rows: Array) -> None:
        self._tokens = self._tokens[rows]
        self._self_caches = {n: np.ascontiguousarray(a[rows]) for n, a in self._self_caches.items()}
