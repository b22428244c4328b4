"""The models that a search drives: bodies of a node, run once for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.ops.arrays import Array


class Body(Protocol):
    """A graph as references see it."""

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
    """What makes scores of next tokens; a row is a sequence, `copies` of them for each prompt."""

    def first(self, copies: int) -> Array:
        """The scores after the prompt."""
        ...

    def next(self, tokens: Array) -> Array:
        """The scores after one more token in each row."""
        ...

    def reorder(self, rows: Array) -> None:
        """Goes on from other rows: the i-th from what was row `rows[i]`."""
        ...


def call(body: Body, values: dict[str, Any]) -> list[Any]:
    """Runs a body by the names of its inputs; one that nothing was made for is an error."""
    missing = [n for n in body.input_names if n not in values]
    if missing:
        raise InvalidGraph(f"nothing is known to feed to {', '.join(missing)} of the decoder")
    return body(*(values[n] for n in body.input_names))


def caches_of(body: Body, mark: str) -> list[str]:
    """The inputs that take what an earlier run made, in the order in which runs make them."""
    return [n for n in body.input_names if n.startswith("past_") and mark in n]


def last(logits: Array) -> Array:
    """The scores at the last position."""
    if logits.ndim != 3:
        raise InvalidGraph(f"the decoder gives logits of shape {list(logits.shape)}, not 3 dims")
    return np.asarray(logits[:, -1, :], np.float32)


def empty_state(fact: Any, rows: int, rows_axis: int) -> Array:
    """A cache that holds nothing yet: the open sizes but that of rows are 0."""
    dims = [d if isinstance(d, int) else 0 for d in fact.dims]
    dims[rows_axis] = rows
    return np.zeros(dims, fact.dtype.np)


class Gpt:
    """A decoder alone: ids, positions, a mask and caches [2, rows, heads, length, size] go in."""

    def __init__(self, bodies: dict[str, Body | None], ids: Array, mask: Array | None, pad: int):
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
        counted = np.cumsum(mask, 1) - 1
        self._positions = counted[:, -1:] + 1
        for name, fact in zip(self._start.input_names, self._start.input_facts, strict=True):
            if name.startswith("past_"):
                self._caches[name] = empty_state(fact, len(ids), 1)
        return self._run(self._start, ids, np.where(mask > 0, counted, 0))

    def next(self, tokens: Array) -> Array:
        ones = np.ones((len(tokens), 1), np.int32)
        self._mask = np.concatenate([self._mask, ones], 1)
        scores = self._run(self._decoder, tokens[:, None], self._positions)
        self._positions = self._positions + 1
        return scores

    def _run(self, body: Body, ids: Array, positions: Array) -> Array:
        logits, *made = call(
            body,
            {
                "input_ids": ids.astype(np.int32),
                "position_ids": positions.astype(np.int32),
                "attention_mask": self._mask,
                **self._caches,
            },
        )
        self._caches = dict(zip(self._caches, made, strict=False))
        return last(logits)

    def reorder(self, rows: Array) -> None:
        self._mask, self._positions = self._mask[rows], self._positions[rows]
        self._caches = {n: np.ascontiguousarray(a[:, rows]) for n, a in self._caches.items()}


class EncoderDecoder:
    """An encoder that runs once, and a decoder that reads what it made in each step.

    The encoder gives the keys and values of cross attention; one that takes `decoder_input_ids`
    makes the first scores and caches as well.
    """

    def __init__(self, bodies: dict[str, Body | None], prompt: Sequence[Any], start: Array) -> None:
        encoder, decoder = bodies["encoder"], bodies["decoder"]
        if encoder is None or decoder is None:
            raise InvalidGraph("a model of this type needs the attributes encoder and decoder")
        self._encoder, self._decoder = encoder, decoder
        self._ids, self._mask = prompt
        self._tokens = start  # what each row begins with
        self._fed: dict[str, Any] = {}
        self._own: dict[str, Array] = {}  # caches of the rows' own tokens

    def first(self, copies: int) -> Array:
        start = np.repeat(self._tokens, copies, 0).astype(np.int32)
        takes_start = "decoder_input_ids" in self._encoder.input_names
        n = copies if takes_start else 1
        ids, mask = (np.repeat(a, n, 0) for a in (self._ids, self._mask))
        given = {"encoder_attention_mask": mask, "decoder_input_ids": start}
        given |= dict.fromkeys(("encoder_input_ids", "encoder_input_features"), ids)
        made = call(self._encoder, given)
        own, cross = (caches_of(self._decoder, mark) for mark in ("_self_", "_cross_"))
        if len(made) < len(cross) + takes_start * (len(own) + 1):
            raise InvalidGraph(f"the encoder gives {len(made)} values, too few for the decoder")
        spread = 1 if takes_start else copies
        mask, *shared = (np.repeat(a, spread, 0) for a in (mask, *made[len(made) - len(cross) :]))
        self._fed = {"encoder_attention_mask": mask, **dict(zip(cross, shared, strict=True))}
        if takes_start:
            self._fed["encoder_hidden_states"] = made[1]
            caches = made[len(made) - len(cross) - len(own) :]
            self._own = dict(zip(own, caches, strict=False))
            return last(made[0])
        for name, fact in zip(self._decoder.input_names, self._decoder.input_facts, strict=True):
            if name in own:
                self._own[name] = empty_state(fact, len(start), 0)
        return self._run(start)

    def next(self, tokens: Array) -> Array:
        return self._run(tokens[:, None].astype(np.int32))

    def _run(self, ids: Array) -> Array:
        logits, *made = call(self._decoder, {"input_ids": ids, **self._fed, **self._own})
        self._own = dict(zip(self._own, made, strict=False))
        return last(logits)

    def reorder(self, rows: Array) -> None:
        self._own = {n: np.ascontiguousarray(a[rows]) for n, a in self._own.items()}
