"""Searches against onnxruntime, over decoders with caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest

import sardonyx
from sardonyx.errors import InvalidArgument, InvalidGraph, NotImplemented
from sardonyx.ops.generation.logits import LogitsProcessor, nucleus
from sardonyx.ops.generation.search import FinishedBeams
from tests.generation.models import WIDTH, WORDS, decoder, encoder, gpt, model, whisper

ORDER = {
    "GreedySearch": "input_ids max_length min_length repetition_penalty vocab_mask "
    "prefix_vocab_mask attention_mask",
    "BeamSearch": "input_ids max_length min_length num_beams num_return_sequences length_penalty "
    "repetition_penalty vocab_mask prefix_vocab_mask attention_mask",
    "WhisperBeamSearch": "input_ids max_length min_length num_beams num_return_sequences "
    "length_penalty repetition_penalty vocab_mask prefix_vocab_mask attention_mask "
    "decoder_input_ids logits_processor cross_qk_layer_head extra_decoding_ids temperature",
    "Sampling": "input_ids max_length min_length repetition_penalty vocab_mask prefix_vocab_mask "
    "attention_mask presence_mask seed",
}
PAD = 0


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


def floats(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def made(op: str, feeds: dict[str, Any], outputs: list[str], **attrs: Any) -> bytes:
    names = [n if n in feeds else "" for n in ORDER[op].split()]
    while not names[-1]:
        names.pop()
    return model(op, names, outputs, pad_token_id=PAD, **attrs)


def both(op: str, feeds: dict[str, Any], outputs: list[str], **attrs: Any) -> tuple[Any, Any]:
    data = made(op, feeds, outputs, **attrs)
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return theirs.run(None, feeds), sardonyx.InferenceSession(data).run(None, feeds)


def prompts(rng: Any, rows: int) -> Any:
    ids = rng.integers(1, WORDS, (rows, int(rng.integers(1, 5)))).astype(np.int32)
    if rng.random() < 0.4:
        ids[0, : int(rng.integers(0, ids.shape[1]))] = PAD
    return ids


def common(rng: Any, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Feeds and attributes that all searches take."""
    ids = prompts(rng, rows)
    feeds = {"input_ids": ids, "max_length": ints(ids.shape[1] + int(rng.integers(1, 12)))}
    feeds["min_length"] = ints(int(rng.integers(0, 9)))
    if rng.random() < 0.5:
        feeds["repetition_penalty"] = floats(rng.choice([1.0, 1.2, 0.7]))
    for name, shape in (("vocab_mask", (WORDS,)), ("prefix_vocab_mask", (rows, WORDS))):
        if rng.random() < 0.3:
            feeds[name] = (rng.random(shape) < 0.8).astype(np.int32)
            feeds[name][..., int(rng.integers(WORDS))] = 1
    if rng.random() < 0.3:
        feeds["attention_mask"] = (ids != PAD).astype(np.int32)
    attrs = {"eos_token_id": int(rng.integers(1, WORDS)), "decoder": gpt(int(rng.integers(99)))}
    if rng.random() < 0.4:
        attrs["no_repeat_ngram_size"] = int(rng.integers(2, 4))
    return feeds, attrs


def written(rows: Any, begin: int) -> int:
    """Return the length of the longest sequence; onnxruntime writes nothing after it."""
    return max(int(np.flatnonzero(row != PAD)[-1]) + 1 if row.any() else begin for row in rows)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("op", ["GreedySearch", "Sampling"])
def test_greedy_search_and_sampling(op: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    feeds, attrs = common(rng, rows=int(rng.integers(1, 4)))
    if op == "Sampling":  # with so little left to draw from, the best is drawn
        attrs |= {"top_p": 1e-6, "temperature": 0.7}
        feeds["seed"] = ints(seed)
    (want,), (got,) = both(op, feeds, ["sequences"], **attrs)
    assert got.shape == want.shape
    length = written(got, feeds["input_ids"].shape[1])
    assert got[:, :length].tolist() == want[:, :length].tolist()


@pytest.mark.parametrize("seed", range(16))
def test_beam_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # onnxruntime judges whether a second prompt is done by beams of the first.
    rows = int(rng.integers(1, 3))
    feeds, attrs = common(rng, rows)
    count = int(rng.integers(1, 5))
    feeds |= {
        "num_beams": ints(count),
        "num_return_sequences": ints(int(rng.integers(1, count + 1))),
    }
    feeds["length_penalty"] = floats(rng.choice([0.0, 0.5, 1.0, 2.0]))
    attrs["early_stopping"] = 1 if rows > 1 else int(rng.integers(2))
    want, got = both("BeamSearch", feeds, ["sequences", "sequences_scores"], **attrs)
    assert got[0].tolist() == want[0].tolist()
    np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reads_all", [False, True], ids=["last", "all"])
@pytest.mark.parametrize("is_first_step", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("seed", range(4))
def test_beam_search_of_an_encoder_decoder(seed: int, is_first_step: bool, reads_all: bool) -> None:
    ids = np.random.default_rng(seed).integers(1, WORDS, (1 + seed % 2, 4)).astype(np.int32)
    ids[0, seed : seed + 2] = PAD
    feeds = {"input_ids": ids, "max_length": ints(10), "min_length": ints(0), "num_beams": ints(3),
             "num_return_sequences": ints(2), "length_penalty": floats(1)}  # fmt: skip
    want, got = both(
        "BeamSearch", feeds, ["sequences", "sequences_scores"], eos_token_id=seed + 1, model_type=1,
        decoder=decoder(seed, reads_all=reads_all),
        encoder=encoder(seed, is_first_step=is_first_step),
        decoder_start_token_id=2, early_stopping=1,
    )  # fmt: skip
    assert got[0].tolist() == want[0].tolist()
    np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-5)


def test_sampling_is_seeded() -> None:
    feeds = {"input_ids": ints(4, 5)[None], "max_length": ints(20)}
    data = made("Sampling", {**feeds, "seed": 0}, ["sequences"], eos_token_id=1, decoder=gpt(1),
                temperature=4.0)  # fmt: skip
    session = sardonyx.InferenceSession(data)
    first, again, other = (
        session.run(None, {**feeds, "seed": ints(s)})[0].tolist() for s in (7, 7, 12)
    )
    assert first == again
    assert first != other


def test_nucleus_top_p() -> None:
    scores = np.log(floats(0.5, 0.3, 0.15, 0.05))[None]
    assert (nucleus(scores, 0.7, -1e20, 0) > -1e19).tolist() == [[True, True, False, False]]
    assert (nucleus(scores, 0.1, -1e20, 3) > -1e19).tolist() == [[True, True, True, False]]


def test_finished_beams_of_equal_scores() -> None:
    """The best sequence then depends on the order, not on the tokens."""
    finished = FinishedBeams(2, 0.0, stops_early=False)
    for total in (1, 2, 2, 3, 3, 3):
        finished.add(ints(4, total), np.float32(total))
    assert [score for score, _, _ in finished.heap] == [3, 3]


@pytest.mark.parametrize("eos", [-1, WORDS, 2**40])
def test_eos_outside_the_vocabulary(eos: int) -> None:
    scores = floats(0.1, 0.2, 0.3)[None]
    rules = LogitsProcessor(eos=eos, min_length=9)
    assert rules.apply(scores, ints(1, 2)[None], is_first=False).tolist() == scores.tolist()


REFUSED = {
    "no prompts": ({"input_ids": np.zeros((0, 2), np.int32)}, InvalidArgument, "input_ids is of"),
    "no tokens": ({"input_ids": np.zeros((1, 0), np.int32)}, InvalidArgument, "input_ids is of"),
    "other prompts": (
        {"prefix_vocab_mask": np.ones((2, WORDS), np.int32)},
        InvalidArgument,
        "a mask by prompt",
    ),
    "no capacity": (
        {"max_length": ints(2)},
        InvalidArgument,
        "max_length must be more than the 2",
    ),
    "too long": ({"max_length": ints(2**31 - 1)}, InvalidArgument, "at most"),
    "penalty": ({"repetition_penalty": floats(0)}, InvalidArgument, "above 0"),
    "mask": ({"vocab_mask": ints(1, 1)}, InvalidArgument, "vocab_mask is for 2 tokens"),
    "attention": ({"attention_mask": ints(1)[None]}, InvalidArgument, "attention_mask is of shape"),
    "unknown word": ({"input_ids": ints(4, 99)[None]}, sardonyx.SardonyxError, "99|outside|range"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    changed, kind, said = REFUSED[name]
    feeds = {"input_ids": ints(4, 5)[None], "max_length": ints(9), **changed}
    session = sardonyx.InferenceSession(
        made("GreedySearch", feeds, ["sequences"], eos_token_id=1, decoder=gpt(1))
    )
    with pytest.raises(kind, match=said):
        session.run(None, feeds)


def test_a_decoder_with_an_unknown_input_is_refused() -> None:
    graph = gpt(1)
    graph.input.append(graph.input[0])
    graph.input[-1].name = "odd"
    feeds = {"input_ids": ints(4, 5)[None], "max_length": ints(9)}
    data = made("GreedySearch", feeds, ["sequences"], eos_token_id=1, decoder=graph)
    with pytest.raises(InvalidGraph, match="odd"):
        sardonyx.InferenceSession(data).run(None, feeds)


def test_a_search_is_not_saved(tmp_path: Path) -> None:
    feeds = {"input_ids": ints(4, 5)[None], "max_length": ints(9)}
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    data = made("GreedySearch", feeds, ["sequences"], eos_token_id=1, decoder=gpt(1))
    with pytest.raises(NotImplemented, match="refers to values by name"):
        sardonyx.InferenceSession(data, options)
    assert not list(tmp_path.iterdir())


def test_a_search_can_be_terminated() -> None:
    feeds = {"input_ids": ints(4, 5)[None], "max_length": ints(1 << 20)}
    data = made("GreedySearch", feeds, ["sequences"], eos_token_id=1, decoder=gpt(1))
    options = sardonyx.RunOptions()
    options.terminate = True
    with pytest.raises(sardonyx.SardonyxError, match="terminate"):
        sardonyx.InferenceSession(data).run(None, feeds, options)


def test_min_tokens_to_keep_above_the_vocabulary_is_refused() -> None:
    feeds = {"input_ids": ints(4, 5)[None], "max_length": ints(9)}
    attrs = {"eos_token_id": 1, "decoder": gpt(1), "min_tokens_to_keep": WORDS}
    session = sardonyx.InferenceSession(made("Sampling", feeds, ["sequences"], **attrs))
    with pytest.raises(InvalidGraph, match="min_tokens_to_keep"):
        session.run(None, feeds)


def test_a_whisper_search_decodes_as_that_of_t5() -> None:
    """Only what the encoder reads differs, which its own graph says."""
    graph = encoder(1, is_first_step=True)
    feeds = {"input_ids": ints(4, 5, 6)[None], "max_length": ints(9), "num_beams": ints(2),
             "num_return_sequences": ints(1)}  # fmt: skip
    attrs = {"decoder": decoder(1), "encoder": graph, "decoder_start_token_id": 2}
    results = []
    for kind in (1, 2):
        data = made("BeamSearch", feeds, ["sequences"], eos_token_id=1, model_type=kind, **attrs)
        results.append(sardonyx.InferenceSession(data).run(None, feeds)[0].tolist())
    assert results[0] == results[1]


SPECIAL = {"translate_token_id": 3, "transcribe_token_id": 4, "start_of_lm_token_id": 5,
           "no_timestamps_token_id": 6, "beginning_timestamp_token_id": 7}  # fmt: skip


@pytest.mark.parametrize("timed", [False, True], ids=["text", "timestamps"])
@pytest.mark.parametrize("seed", range(8))
def test_whisper(seed: int, timed: bool) -> None:
    rng = np.random.default_rng(seed)
    feeds = {
        "input_ids": rng.standard_normal((1 + seed % 2, 3, WIDTH)).astype(np.float32),
        "max_length": ints(12), "min_length": ints(seed % 5), "num_beams": ints(3),
        "num_return_sequences": ints(2), "length_penalty": floats(1), "temperature": floats(0.7),
        "logits_processor": ints(int(timed)), "repetition_penalty": floats(1.2),
        "decoder_input_ids": np.tile(ints(2, 3, 4)[: 1 + seed % 3], (1 + seed % 2, 1)),
    }  # fmt: skip
    attrs = {**whisper(seed), **SPECIAL, "eos_token_id": 1, "decoder_start_token_id": 2,
             "no_speech_token_id": 0, "early_stopping": 1}  # fmt: skip
    names = ["sequences", "sequences_scores"]
    want, got = both("WhisperBeamSearch", feeds, names, **attrs)
    assert got[0].tolist() == want[0].tolist()
    np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-5)


def test_whisper_no_speech_probabilities() -> None:
    """onnxruntime computes this probability on CUDA only."""
    feeds = {"input_ids": np.zeros((1, 3, WIDTH), np.float32), "max_length": ints(9),
             "num_beams": ints(2), "num_return_sequences": ints(1)}  # fmt: skip
    attrs = {**whisper(1), "eos_token_id": 1, "decoder_start_token_id": 2}
    names = ["sequences", "", "", "cross_qk", "non_speech_probs"]
    shares = []
    for token in range(WORDS):
        data = made("WhisperBeamSearch", feeds, names, no_speech_token_id=token, **attrs)
        _, weights, share = sardonyx.InferenceSession(data).run(None, feeds)
        assert weights.shape == (1, 1, 0, 9, 0)
        shares.append(float(share[0]))
    assert len(set(shares)) == WORDS
    assert sum(shares) == pytest.approx(1)
    data = made("WhisperBeamSearch", feeds, names, decoder_output_cross_qk=1, **attrs)
    session = sardonyx.InferenceSession(data)
    with pytest.raises(NotImplemented, match="cross-attention are not collected"):
        session.run(None, feeds)
