"""Nodes with strings on the CPU: an element is 16 bytes that say where its text lies.

What only moves elements is lowered as for numbers; everything else has rows of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.graph.dtype import BF16, BOOL, F16, F32, F64, INTS, STRING
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.op import MICROSOFT, ML
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import string_array
from sardonyx.ops.inference import axis_of
from sardonyx.ops.text.case import case_pairs, is_dotted
from sardonyx.ops.text.grams import MODES, gram_table, pool_of
from sardonyx.ops.text.strings import stopword_set
from sardonyx.place.lowered import Call, Lowered, Sliced
from sardonyx.place.provider import No
from sardonyx.providers.cpu import features, gather, move, shape
from sardonyx.providers.cpu.features import index_of
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.scores import held

_ACTIONS: Final = (b"NONE", b"LOWER", b"UPPER")
_UPPER: Final = 2
_MATCHES, _BETWEEN, _CHARACTERS = range(3)  # how tokens are found
_MOST_PATTERNS: Final = 64  # separators that are looked for one inside the other
_READ: Final = (INTS | {BOOL, F32, F64}) - {d for d in INTS if d.bits < 8}
_WRITTEN: Final = _READ | {F16, BF16}


def _texts(strings: list[str]) -> Array:
    made = np.empty(len(strings), object)
    made[:] = strings
    return made


def _concat(node: Node) -> Lowered:
    axis = axis_of(node.attrs["axis"], node.outputs[0].tensor.rank)
    return Call("concat", tuple(node.inputs), (axis,), is_concat=True, writes_rows=True)


def _gather(node: Node) -> Lowered:
    """One element along an axis is a view; with strings that is how columns are told apart."""
    x, index = input_of(node, 0), input_of(node, 1)
    axis = axis_of(node.attrs["axis"], x.tensor.rank)
    places, size = index.tensor.ints, x.tensor.dims[axis]
    if places is None or index.tensor.dims != (1,) or not isinstance(size, int):
        return gather.gather(node)
    (place,) = places
    if not -size <= place < size:
        return gather.gather(node)  # which says what is wrong
    starts = tuple(place % size if i == axis else 0 for i in range(x.tensor.rank))
    return Sliced(x, (starts,), (1,) * x.tensor.rank)


def _scatter(node: Node) -> Lowered | No:
    if node.attrs["reduction"] != b"none":
        return No("strings are not reduced")
    return gather.LOWERINGS[node.op.key](node)


def _split(node: Node) -> Call:
    mark, most = node.attrs["delimiter"], node.attrs["maxsplit"]
    marks = held(string_array([mark])) if mark else None
    return Call("split_texts", (input_of(node, 0), marks), (-1 if most is None else most,))


def _normalizer(node: Node) -> Call:
    x, attrs = input_of(node, 0), node.attrs
    action, dotted = _ACTIONS.index(attrs["case_change_action"]), is_dotted(attrs["locale"])
    change = None if not action else held(case_pairs(action == _UPPER, dotted))
    if not attrs["stopwords"]:
        return Call("normalize_texts", (x, None, change, None, None), (action, 0, not dotted))
    folds = not attrs["is_case_sensitive"]
    fold = held(case_pairs(False, dotted)) if folds else None
    words = stopword_set(attrs["stopwords"], attrs["is_case_sensitive"], dotted)
    inputs = (x, fold, change, *index_of([w.encode() for w in words]))
    return Call("normalize_texts_open", inputs, (action, folds, not dotted))


def _tokenizer(node: Node) -> Call | No:
    from sardonyx.ops.text.automaton import automaton
    from sardonyx.ops.text.tokenizer import END, START  # few models with strings have it

    attrs = node.attrs
    separators, expression = attrs["separators"], attrs["tokenexp"]
    patterns: tuple[bytes, ...] = ()
    if expression:
        way, patterns = _MATCHES, (expression,)
    elif separators == (b"",):
        way = _CHARACTERS
    else:
        way, patterns = _BETWEEN, separators
    if len(patterns) > _MOST_PATTERNS:
        return No(f"no kernel for more than {_MOST_PATTERNS} separators")
    takes_nothing = way == _MATCHES  # which is no token; what lies between is another matter
    found = [a for p in patterns if (a := automaton(p)) is not None and a.has_bounded_scan]
    tables = [held(a.numbers) for a in found if takes_nothing or not a.matches_empty]
    if len(tables) < len(patterns):
        return No("the kernel takes expressions that tell soon whether they match")
    marks = held(_texts([attrs["pad_value"].decode("utf-8", "replace"), START, END]))
    ints = (way, int(attrs["mark"] != 0), attrs["mincharnum"])
    return Call("tokenize", (input_of(node, 0), marks, *tables), ints)


def _match(node: Node) -> Call | No:
    from sardonyx.ops.text.automaton import automaton  # few models with strings have it

    found = automaton(node.attrs["pattern"], is_whole=True)
    if found is None:
        return No("the kernel takes expressions without flags and anchors")
    return Call("text_match", (input_of(node, 0), held(found.numbers)))


def grams(node: Node) -> Call:
    """TfIdfVectorizer, of strings or integers."""
    x, attrs = input_of(node, 0), node.attrs
    is_text = x.tensor.dtype is STRING
    table = gram_table(pool_of(is_text, attrs), attrs["ngram_counts"], attrs["max_gram_length"])
    first = np.full(table.n_words, -1)
    first[table.keys[0]] = np.arange(len(table.keys[0]))
    places = held(np.arange(table.n_words))
    words = index_of(table.words) if table.words else (held(table.numbers), places)
    starts = np.cumsum([0, *map(len, table.keys)]).tolist()
    weights = attrs["weights"]
    inputs = (
        x,
        *words,
        held(first),
        held(np.concatenate(table.keys)),
        held(np.concatenate(table.gram)),
        held(attrs["ngram_indexes"]),
        None if weights is None else held(weights),
    )
    mode, skips = MODES.index(attrs["mode"]), attrs["max_skip_count"]
    return Call("count_grams", inputs, (mode, attrs["min_gram_length"], skips, *starts))


def _cast(node: Node) -> Lowered | No:
    x, y = input_of(node, 0), node.outputs[0].tensor.dtype
    if x.tensor.dtype is y:
        return shape.identity(node)
    if y is STRING:
        if x.tensor.dtype not in _WRITTEN:
            return No(f"no kernel writes {x.tensor.dtype}")
        return Call("numbers_to_texts", (x,))
    return Call("texts_to_numbers", (x,)) if y in _READ else No(f"no kernel reads {y}")


def hashed(node: Node) -> Call:
    """MurmurHash3, of strings or numbers."""
    return Call("murmur_hash", (input_of(node, 0),), (node.attrs["seed"],))


def _unique(node: Node) -> Call | No:
    x = input_of(node, 0)
    if node.attrs["axis"] is not None and x.tensor.rank != 1:
        return No("no kernel for rows of strings")
    return Call("unique_texts", (x,), (int(node.attrs["sorted"] != 0),))


def _pairwise(row: str) -> Lowering:
    return lambda node: Call(row, tuple(node.inputs))


TEXT_LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    ("", "Cast"): _cast,
    ("", "CastLike"): _cast,
    ("", "Compress"): gather.compress,
    ("", "Concat"): _concat,
    ("", "Equal"): _pairwise("text_equal"),
    ("", "Expand"): shape.expand,
    ("", "Flatten"): shape.reshaped,
    ("", "Gather"): _gather,
    ("", "GatherElements"): gather.gather_elements,
    ("", "GatherND"): gather.gather_nd,
    ("", "Identity"): shape.identity,
    ("", "RegexFullMatch"): _match,
    ("", "Reshape"): shape.reshape,
    ("", "ReverseSequence"): move.reverse_sequence,
    ("", "ScatterElements"): _scatter,
    ("", "ScatterND"): _scatter,
    ("", "Shape"): shape.sizes,
    ("", "Size"): shape.sizes,
    ("", "Slice"): move.slice_,
    ("", "Split"): move.split,
    ("", "Squeeze"): shape.with_axes,
    ("", "StringConcat"): _pairwise("text_concat"),
    ("", "StringNormalizer"): _normalizer,
    ("", "StringSplit"): _split,
    ("", "TfIdfVectorizer"): grams,
    ("", "Tile"): move.tile,
    ("", "Transpose"): move.transpose,
    ("", "Unique"): _unique,
    ("", "Unsqueeze"): shape.with_axes,
    ("", "Where"): _pairwise("text_where"),
    (MICROSOFT, "MurmurHash3"): hashed,
    (MICROSOFT, "Tokenizer"): _tokenizer,
    (ML, "ArrayFeatureExtractor"): features.extractor,
    (ML, "CategoryMapper"): features.mapper,
    (ML, "LabelEncoder"): features.encoder,
    (ML, "OneHotEncoder"): features.one_hot,
}

# Those that may have to do with numbers alone.
LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    ("", "TfIdfVectorizer"): grams,
    (MICROSOFT, "MurmurHash3"): hashed,
}
