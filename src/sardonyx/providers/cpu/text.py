"""Ops on string tensors on the CPU: an element is a 16-byte record: pointer and length in bytes.

Ops that only move elements are lowered as for numbers; all others have kernels for strings.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.graph.dtype import BF16, BOOL, F16, F32, F64, INTS, STRING
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.op import MICROSOFT, ML
from sardonyx.ops.estimators.scores import string_array
from sardonyx.ops.inference import axis_of
from sardonyx.ops.text.case import case_pairs, is_dotted
from sardonyx.ops.text.grams import MODES, gram_table, pool_of
from sardonyx.ops.text.strings import stopword_set
from sardonyx.place.lowered import Call, Lowered, Sliced
from sardonyx.place.provider import No
from sardonyx.providers.cpu import features, gather, move, shape
from sardonyx.providers.cpu.features import index_of
from sardonyx.providers.cpu.index import Lowerings, direct
from sardonyx.providers.cpu.scores import array_constant

_ACTIONS: Final = (b"NONE", b"LOWER", b"UPPER")
_UPPER: Final = 2
_MATCHES, _BETWEEN, _CHARACTERS = range(3)  # tokens: matches, text between them, characters
_MAX_PATTERNS: Final = 64  # separators, each of which splits the results of the one before
_PARSED: Final = INTS | {BOOL, F32, F64}  # types that strings are cast to
_FORMATTED: Final = _PARSED | {F16, BF16}


def _concat(node: Node) -> Lowered:
    axis = axis_of(node.attrs["axis"], node.outputs[0].tensor.rank)
    return Call("concat", node.inputs, (axis,), is_concat=True, writes_rows=True)


def _gather(node: Node) -> Lowered:
    """Lower to a view if one element along an axis is read: so models select string columns."""
    x, indices = input_of(node, 0), input_of(node, 1).tensor
    axis = axis_of(node.attrs["axis"], x.tensor.rank)
    size = x.tensor.dims[axis]
    if indices.ints is None or indices.dims != (1,) or not isinstance(size, int):
        return gather.gather(node)
    (index,) = indices.ints
    if not -size <= index < size:
        return gather.gather(node)  # the kernel reports the error
    starts = tuple(index % size if i == axis else 0 for i in range(x.tensor.rank))
    return Sliced(x, (starts,), (1,) * x.tensor.rank)


def _scatter(node: Node) -> Lowered | No:
    if node.attrs["reduction"] != b"none":
        return No("strings are not reduced")
    return gather.LOWERINGS[node.op.key](node)


def _split(node: Node) -> Call:
    delimiter, max_splits = node.attrs["delimiter"], node.attrs["maxsplit"]
    # Without a delimiter, texts are split at whitespace.
    delimiters = array_constant(string_array([delimiter])) if delimiter else None
    ints = (-1 if max_splits is None else max_splits,)
    return Call("split_texts", (input_of(node, 0), delimiters), ints)


def _normalizer(node: Node) -> Call:
    x, attrs = input_of(node, 0), node.attrs
    # `dotted`: Turkish and Azeri have a dotted and a dotless i.
    action, dotted = _ACTIONS.index(attrs["case_change_action"]), is_dotted(attrs["locale"])
    change = None if not action else array_constant(case_pairs(action == _UPPER, dotted))
    if not attrs["stopwords"]:
        return Call("normalize_texts", (x, None, change, None, None), (action, 0, not dotted))
    folds = not attrs["is_case_sensitive"]
    fold = array_constant(case_pairs(False, dotted)) if folds else None
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
        mode, patterns = _MATCHES, (expression,)
    elif separators == (b"",):
        mode = _CHARACTERS
    else:
        mode, patterns = _BETWEEN, separators
    if len(patterns) > _MAX_PATTERNS:
        return No(f"no kernel for more than {_MAX_PATTERNS} separators")
    # Empty matches are not tokens, but as separators they would split everywhere.
    allows_empty = mode == _MATCHES
    scanned = [a for p in patterns if (a := automaton(p)) is not None and a.has_bounded_scan]
    tables = [array_constant(a.numbers) for a in scanned if allows_empty or not a.matches_empty]
    if len(tables) < len(patterns):
        return No("no kernel for expressions with unbounded lookahead or empty matches")
    padding = attrs["pad_value"].decode("utf-8", "replace")
    marks = array_constant(np.array([padding, START, END], object))
    ints = (mode, int(attrs["mark"] != 0), attrs["mincharnum"])
    return Call("tokenize", (input_of(node, 0), marks, *tables), ints)


def _match(node: Node) -> Call | No:
    from sardonyx.ops.text.automaton import automaton  # few models with strings have it

    dfa = automaton(node.attrs["pattern"], is_whole=True)
    if dfa is None:
        return No("no kernel for expressions with flags or anchors")
    return Call("text_match", (input_of(node, 0), array_constant(dfa.numbers)))


def grams(node: Node) -> Call:
    """Lower TfIdfVectorizer, of strings or integers: n-grams are paths in a trie of words."""
    x, attrs = input_of(node, 0), node.attrs
    is_text = x.tensor.dtype is STRING
    table = gram_table(pool_of(is_text, attrs), attrs["ngram_counts"], attrs["max_gram_length"])
    first = np.full(table.n_words, -1)
    first[table.keys[0]] = np.arange(len(table.keys[0]))
    numbers = (array_constant(table.numbers), array_constant(np.arange(table.n_words)))
    words = index_of(table.words) if table.words else numbers
    starts = np.cumsum([0, *map(len, table.keys)]).tolist()
    weights = None if attrs["weights"] is None else array_constant(attrs["weights"])
    trie = (
        array_constant(first),
        array_constant(np.concatenate(table.keys)),
        array_constant(np.concatenate(table.gram)),
    )
    inputs = (x, *words, *trie, array_constant(attrs["ngram_indexes"]), weights)
    mode, skips = MODES.index(attrs["mode"]), attrs["max_skip_count"]
    return Call("count_grams", inputs, (mode, attrs["min_gram_length"], skips, *starts))


def _cast(node: Node) -> Lowered | No:
    x, y = input_of(node, 0), node.outputs[0].tensor.dtype
    if x.tensor.dtype is y:
        return shape.identity(node)
    if y is STRING:
        if x.tensor.dtype not in _FORMATTED:
            return No(f"no kernel formats {x.tensor.dtype}")
        return Call("numbers_to_texts", (x,))
    return Call("texts_to_numbers", (x,)) if y in _PARSED else No(f"no kernel parses {y}")


def _unique(node: Node) -> Call | No:
    x = input_of(node, 0)
    if node.attrs["axis"] is not None and x.tensor.rank != 1:
        return No("no kernel for rows of strings")
    return Call("unique_texts", (x,), (int(node.attrs["sorted"] != 0),))


_murmur_hash: Final = direct("murmur_hash", ("seed",))

# Ops that have one lowering for strings and numbers: most only move elements.
_AS_NUMBERS: Final[tuple[tuple[Lowerings, str, tuple[str, ...]], ...]] = (
    (gather.LOWERINGS, "", ("Compress", "GatherElements", "GatherND")),
    (move.LOWERINGS, "", ("ReverseSequence", "Slice", "Split", "Tile", "Transpose")),
    (shape.LOWERINGS, "", ("Expand", "Flatten", "Identity", "Reshape", "Shape", "Size")),
    (shape.LOWERINGS, "", ("Squeeze", "Unsqueeze")),
    (features.LOWERINGS, ML, ("ArrayFeatureExtractor", "CategoryMapper", "LabelEncoder")),
    (features.LOWERINGS, ML, ("OneHotEncoder",)),
)

TEXT_LOWERINGS: Final[Lowerings] = {
    **{(d, name): table[d, name] for table, d, names in _AS_NUMBERS for name in names},
    ("", "Cast"): _cast,
    ("", "CastLike"): _cast,
    ("", "Concat"): _concat,
    ("", "Equal"): direct("text_equal"),
    ("", "Gather"): _gather,
    ("", "RegexFullMatch"): _match,
    ("", "ScatterElements"): _scatter,
    ("", "ScatterND"): _scatter,
    ("", "StringConcat"): direct("text_concat"),
    ("", "StringNormalizer"): _normalizer,
    ("", "StringSplit"): _split,
    ("", "TfIdfVectorizer"): grams,
    ("", "Unique"): _unique,
    ("", "Where"): direct("text_where"),
    (MICROSOFT, "MurmurHash3"): _murmur_hash,
    (MICROSOFT, "Tokenizer"): _tokenizer,
}

# Ops of the family on tensors of numbers.
LOWERINGS: Final[Lowerings] = {
    ("", "TfIdfVectorizer"): grams,
    (MICROSOFT, "MurmurHash3"): _murmur_hash,
}
