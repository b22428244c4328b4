"""Searches and Sampling of com.microsoft: they run a decoder graph per token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, NotImplemented
from sardonyx.graph.dim import Size, symbols
from sardonyx.graph.dtype import F16, F32, I32
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.graph import Graph
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, contrib_op, optional, required
from sardonyx.ops.arrays import Array, one_int
from sardonyx.ops.generation.decoders import Decoder, EncoderDecoder, FirstLogits, Gpt
from sardonyx.ops.generation.logits import LogitsProcessor, nucleus
from sardonyx.ops.generation.search import (
    BeamSettings,
    SequenceLimits,
    decode_beams,
    decode_greedily,
)
from sardonyx.ops.generation.timestamps import TimestampRules
from sardonyx.ops.random.streams import generator

_MAX_LENGTH: Final = 1 << 20  # of a sequence: it determines memory
_WHISPER: Final = 2  # model_type
_BODIES: Final = ("decoder", "encoder", "init_decoder")
_ATTRS: Final[dict[str, Any]] = {
    "decoder": required("graph"),
    "encoder": optional("graph"),
    "init_decoder": optional("graph"),
    "eos_token_id": required("int"),
    "pad_token_id": required("int"),
    "decoder_start_token_id": -1,
    "model_type": 0,
    "no_repeat_ngram_size": 0,
    "vocab_size": -1,
}
_TYPES: Final = {
    "I": frozenset((I32,)),
    "M": frozenset((I32,)),
    "T": frozenset((F32, F16)),
    "F": frozenset((F32, F16, I32)),
    "V": frozenset((F32,)),
}


def _op(name: str, inputs: str, outputs: str, **attrs: Any) -> Op:
    types = dict(_TYPES) if "Beam" in name else {"I": _TYPES["I"], "T": frozenset((F32,))}
    return contrib_op(
        name, inputs, outputs, attrs={**_ATTRS, **attrs}, types=types, unranked=True,
        pure=name != "Sampling",
    )  # fmt: skip


greedy_search = _op(
    "GreedySearch",
    "input_ids:I max_length:I min_length:I? repetition_penalty:T? vocab_mask:I? "
    "prefix_vocab_mask:I? attention_mask:I?",
    "sequences:I",
)
beam_search = _op(
    "BeamSearch",
    "input_ids:F max_length:I min_length:I? num_beams:I num_return_sequences:I length_penalty:T? "
    "repetition_penalty:T? vocab_mask:M? prefix_vocab_mask:M? attention_mask:I? "
    "decoder_input_ids:I? logits_processor:I?",
    "sequences:I sequences_scores:T? scores:T?",
    early_stopping=0,
)
whisper_beam_search = _op(
    "WhisperBeamSearch",
    "input_ids:F max_length:I min_length:I? num_beams:I num_return_sequences:I length_penalty:T? "
    "repetition_penalty:T? vocab_mask:M? prefix_vocab_mask:M? attention_mask:I? "
    "decoder_input_ids:I? logits_processor:I? cross_qk_layer_head:I? extra_decoding_ids:I? "
    "temperature:T?",
    "sequences:I sequences_scores:T? scores:T? cross_qk:V? non_speech_probs:T?",
    model_type=_WHISPER,
    early_stopping=0,
    translate_token_id=optional("int"),
    transcribe_token_id=optional("int"),
    start_of_lm_token_id=optional("int"),
    no_speech_token_id=optional("int"),
    no_timestamps_token_id=optional("int"),
    beginning_timestamp_token_id=optional("int"),
    decoder_output_cross_qk=optional("int"),
)
sampling = _op(
    "Sampling",
    "input_ids:I max_length:I min_length:I? repetition_penalty:T? vocab_mask:I? "
    "prefix_vocab_mask:I? attention_mask:I? presence_mask:I? seed:I?",
    "sequences:I filtered_logits:T?",
    temperature=1.0,
    top_p=0.0,
    filter_value=-1e20,
    min_tokens_to_keep=0,
    presence_penalty=0.0,
    custom=0,
)


def _infer_bodies(g: Scope, attrs: dict[str, Any]) -> None:
    """Infer the subgraphs from the declared facts of their inputs."""
    for name in _BODIES:
        if (body := attrs[name]) is not None:
            g.body(body, [_renamed(g, v.fact, {}) for v in _declared(name, body)])


def _declared(name: str, body: Graph) -> list[Any]:
    for value in body.inputs:
        if not isinstance(value.fact, Fact) or value.fact.shape is None:
            raise InvalidGraph(f"the input {value.name} of {name} has no shape")
    return body.inputs


def _renamed(g: Scope, fact: AnyFact | None, names: dict[str, Size]) -> Fact:
    """Return a fact with new dims: names of the outer graph do not apply inside."""
    assert isinstance(fact, Fact)
    dims = [
        d if not symbols(d) else names.setdefault(str(d), g.new_dim("inner")) for d in fact.dims
    ]
    return Fact(fact.dtype, tuple(dims))


def _sequences(g: Scope, ids: Fact, max_length: Fact, *extra: Size) -> Fact:
    batch = ids.dims[0] if ids.shape else g.new_dim("batch")
    length = max_length.ints[0] if max_length.ints else g.new_dim("length")
    return Fact(I32, (batch, *extra, length))


@greedy_search.infer
def _(g: Scope, ids: Fact, max_length: Fact, *_rest: Any, **attrs: Any) -> Fact:
    _infer_bodies(g, attrs)
    return _sequences(g, ids, max_length)


@sampling.infer
def _(g: Scope, ids: Fact, max_length: Fact, *_rest: Any, **attrs: Any) -> tuple[Fact, Fact]:
    _infer_bodies(g, attrs)
    sequences = _sequences(g, ids, max_length)
    return sequences, Fact(F32, (sequences.dims[0], g.new_dim("vocabulary")))


@beam_search.infer
def _(g: Scope, ids: Fact, max_length: Fact, *rest: Any, **attrs: Any) -> tuple[Fact, ...]:
    _infer_bodies(g, attrs)
    returned = rest[2].ints[0] if rest[2].ints else g.new_dim("returned")
    sequences = _sequences(g, ids, max_length, returned)
    score = next((f.dtype for f in rest[3:5] if f is not None), F32)
    batch = sequences.dims[0]
    steps = (g.new_dim("steps"), batch, g.new_dim("beams"), g.new_dim("vocabulary"))
    return sequences, Fact(score, (batch, returned)), Fact(score, steps)


@whisper_beam_search.infer
def _(g: Scope, ids: Fact, max_length: Fact, *rest: Any, **attrs: Any) -> tuple[Fact, ...]:
    _infer_bodies(g, attrs)
    returned = rest[2].ints[0] if rest[2].ints else g.new_dim("returned")
    sequences = _sequences(g, ids, max_length, returned)
    score = next((f.dtype for f in (*rest[3:5], rest[-1]) if f is not None), F32)
    batch = sequences.dims[0]
    steps = (g.new_dim("steps"), batch, g.new_dim("beams"), g.new_dim("vocabulary"))
    weights = (batch, returned, 0, sequences.dims[-1], 0)
    facts = Fact(score, (batch, returned)), Fact(score, steps), Fact(F32, weights)
    return sequences, *facts, Fact(score, (batch,))


class _Search:
    """The checked inputs and attributes of a search."""

    def __init__(self, inputs: SimpleNamespace, attrs: dict[str, Any]) -> None:
        self.inputs, self.attrs, self.ids = inputs, attrs, inputs.input_ids
        if self.ids.ndim < 2 or not self.ids.size:
            shape = list(self.ids.shape)
            raise InvalidArgument(f"input_ids is of shape {shape}, not [batch, length]")
        max_length = one_int(inputs.max_length, "max_length")
        self.limits = SequenceLimits(max_length, attrs["pad_token_id"], attrs["eos_token_id"])

    def decoder(self, start: Array | None = None) -> tuple[Decoder, Array]:
        """Return the decoder, and the prompts that the sequences start with."""
        attrs, mask = self.attrs, self.inputs.attention_mask
        if attrs["model_type"] not in (0, 1, 2):
            raise InvalidGraph(
                f"model_type must be 0 (GPT-2), 1 (T5) or 2 (Whisper), got {attrs['model_type']}"
            )
        bodies = {n: attrs[n] for n in _BODIES}
        prompts = self.ids
        decoder: Decoder
        if attrs["model_type"] == 0:
            decoder = Gpt(bodies, prompts, mask, attrs["pad_token_id"])
        else:
            if mask is None:
                # Leading pad tokens are masked; the same token later is not.
                mask = np.maximum.accumulate(prompts != attrs["pad_token_id"], 1).astype(np.int32)
            first = np.full((len(prompts), 1), attrs["decoder_start_token_id"], np.int32)
            prompts = first if start is None else start
            decoder = EncoderDecoder(bodies, (self.ids, mask), prompts)
        length = prompts.shape[1]
        if not length < self.limits.max_length <= _MAX_LENGTH:
            raise InvalidArgument(
                f"max_length must be more than the {length} tokens of the prompts and at most "
                f"{_MAX_LENGTH}, got {self.limits.max_length}"
            )
        return decoder, prompts

    def processor(self, **more: Any) -> LogitsProcessor:
        """Return the logits processor."""
        shortest, penalty = self.inputs.min_length, _one_float(self.inputs.repetition_penalty)
        if not penalty > 0:
            raise InvalidArgument(f"repetition_penalty must be above 0, got {penalty}")
        return LogitsProcessor(
            eos=self.limits.eos,
            min_length=0 if shortest is None else one_int(shortest, "min_length"),
            repetition=penalty,
            ngram=self.attrs["no_repeat_ngram_size"],
            vocabulary=self.inputs.vocab_mask,
            first=self.inputs.prefix_vocab_mask,
            **more,
        )


def _one_float(x: Array | None) -> float:
    """Return the number of an optional scalar input; 1 where it is absent."""
    return 1.0 if x is None else float(x.reshape(-1)[0])


@greedy_search.reference
def _(*inputs: Any, **attrs: Any) -> Array:
    search = _Search(greedy_search.named(inputs), attrs)
    decoder, prompts = search.decoder()
    sequences, _scores = decode_greedily(
        decoder, prompts, search.processor(), search.limits, lambda scores: scores.argmax(1)
    )
    return sequences


@sampling.reference
def _(*inputs: Any, **attrs: Any) -> tuple[Array, Array]:
    x = sampling.named(inputs)
    search = _Search(x, attrs)
    decoder, prompts = search.decoder()
    temperature = attrs["temperature"]
    if not temperature > 0:
        raise InvalidGraph(f"temperature must be above 0, got {temperature}")
    processor = search.processor(
        temperature=temperature, presence=attrs["presence_penalty"], present=x.presence_mask
    )
    draws = generator(None if x.seed is None else one_int(x.seed, "seed"))
    filtered = np.zeros((len(prompts), 0), np.float32)

    def choose(scores: Array) -> Array:
        nonlocal filtered
        top, fill, kept = attrs["top_p"], attrs["filter_value"], attrs["min_tokens_to_keep"]
        if not 0 <= kept < scores.shape[1]:
            raise InvalidGraph(
                f"min_tokens_to_keep must be at least 0 and below the vocabulary of "
                f"{scores.shape[1]} tokens, got {kept}"
            )
        filtered = nucleus(scores, top, fill, kept) if top > 0 else scores
        # Inverse transform sampling: the first token whose cumulative probability reaches the draw.
        shares = np.exp(filtered - filtered.max(1, keepdims=True)).astype(np.float64)
        bounds = np.cumsum(shares / shares.sum(1, keepdims=True), 1)
        tokens = (bounds < draws.random((len(bounds), 1))).sum(1)
        return np.asarray(np.minimum(tokens, bounds.shape[1] - 1))

    sequences, _scores = decode_greedily(decoder, prompts, processor, search.limits, choose)
    return sequences, filtered


def _beams(x: SimpleNamespace, attrs: dict[str, Any], **more: Any) -> tuple[Array, ...]:
    """Return sequences, their scores, the scores of all steps, and the first logits by prompt."""
    count = one_int(x.num_beams, "num_beams")
    returned = one_int(x.num_return_sequences, "num_return_sequences")
    if not 1 <= returned <= count <= 128:
        raise InvalidArgument(
            f"num_return_sequences is {returned} of {count} beams: it must be at least 1 and at "
            "most num_beams, which must be at most 128"
        )
    search = _Search(x, attrs)
    inner, prompts = search.decoder(x.decoder_input_ids)
    decoder = FirstLogits(inner)
    penalty, stops_early = _one_float(x.length_penalty), bool(attrs["early_stopping"])
    beams = BeamSettings(count, returned, penalty, stops_early)
    sequences, scores, steps = decode_beams(
        decoder, prompts, search.processor(**more), search.limits, beams
    )
    penalties = (x.length_penalty, x.repetition_penalty)
    kind = next((v.dtype for v in penalties if v is not None), np.float32)
    scores, steps = (part.astype(kind, copy=False) for part in (scores, steps))
    return sequences, scores, steps, decoder.logits[::count]


@beam_search.reference
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    return _beams(beam_search.named(inputs), attrs)[:3]


@whisper_beam_search.reference
def _(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
    x = whisper_beam_search.named(inputs)
    if attrs["model_type"] != _WHISPER:
        raise InvalidGraph(f"model_type must be {_WHISPER} (Whisper), got {attrs['model_type']}")
    if attrs["decoder_output_cross_qk"]:
        raise NotImplemented(
            "decoder_output_cross_qk is not 0: weights of cross-attention are not collected",
            hint="convert the model without them; onnxruntime collects them on CUDA only",
        )
    temperature = _one_float(x.temperature)
    uses_times = x.logits_processor is not None and one_int(x.logits_processor, "logits_processor")
    sequences, scores, steps, first = _beams(
        x, attrs, temperature=temperature if temperature > 0 else 1.0,
        timestamps=_timestamps(attrs) if uses_times == 1 else None,
    )  # fmt: skip
    weights = np.zeros((*sequences.shape[:2], 0, sequences.shape[2], 0), np.float32)
    silent = attrs["no_speech_token_id"]
    probs = np.zeros(len(sequences), scores.dtype)
    if silent is not None and 0 <= silent < first.shape[1]:
        shares = np.exp(first - first.max(1, keepdims=True))
        probs = (shares[:, silent] / shares.sum(1)).astype(scores.dtype)
    return sequences, scores, steps, weights, probs


def _timestamps(attrs: dict[str, Any]) -> TimestampRules:
    def ids(*names: str) -> tuple[int, ...]:
        return tuple(-1 if attrs[n] is None else attrs[n] for n in names)

    (first,) = ids("beginning_timestamp_token_id")
    never = ids("no_timestamps_token_id", "start_of_lm_token_id")
    early = ids("decoder_start_token_id", "translate_token_id", "transcribe_token_id")
    return TimestampRules(first, attrs["eos_token_id"], never, early)


OPS: Final = (beam_search, greedy_search, sampling, whisper_beam_search)
