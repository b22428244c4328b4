"""Internal nodes that no pass creates: a pack with one is rejected before it can run."""

from __future__ import annotations

import pytest

from sardonyx.errors import SardonyxError
from sardonyx.graph.op import INTERNAL
from sardonyx.load.graph_text import parse
from sardonyx.ops import names
from sardonyx.pack.check import check_graph
from sardonyx.pack.contracts import CONTRACTS, DEVICES, WITHOUT_CONTRACT
from sardonyx.pack.errors import InvalidPack

CACHE = """
in k: f32[B,2,S,8]
in v: f32[B,2,S,{value}]
in pk: f32[B,2,P,{past}]
in pv: f32[B,{heads},P,6]
in spans: i32[{spans}]
in total: i32[{total}]
in q: f32[B,4,S,{query}]
const cos: f32[16,{half}]
const sin: f32[{angles},4]
in at: i64[B,{rows}]
a, b, c = sardonyx.Append(k, v, pk, pv, spans, total, q, cos, sin, at)
out a, b, c
"""
CACHED = {
    "value": "6", "past": "8", "heads": "2", "spans": "B,2", "total": "1", "query": "8",
    "half": "4", "angles": "16", "rows": "S",
}  # fmt: skip
ATTEND = """
in q: f32[2,{heads},5,8]
in k: f32[{batch},2,7,8]
in v: f32[2,2,7,6]
in spans: i32[{spans}]
in sink: f32[{sink}]
y = sardonyx.Attention(q, k, v, _, spans, sink, group={group}, nan_rows={nan_rows})
out y
"""
ATTENDED = {
    "heads": "4", "batch": "2", "spans": "2,2", "sink": "4", "group": "2", "nan_rows": "0"
}  # fmt: skip
PRODUCT = """
in x: u8[3,8]
const w: i8[8,4]
const xs: f32[{x_scale}]
const ws: f32[{w_scale}]
const bias: f32[{bias}]
const ys: f32[1]
const yz: {zero}[1]
y = sardonyx.QMatMul(x, w, xs, _, ws, _, bias, ys, yz, dtype={dtype})
out y
"""
MULTIPLIED = {"x_scale": "1", "w_scale": "4", "bias": "4", "zero": "u8", "dtype": "u8"}
SUM = """
in a: u8[3,{a}]
in b: u8[3,{b}]
const s: f32[{scale}]
y = sardonyx.QAdd(a, s, _, b, s, _, s, _)
out y
"""
SUMMED = {"a": "4", "b": "4", "scale": "1"}
BITS = """
in x: f32[3,64]
const q: u8[4,2,{bytes}]
const s: f32[4,2]
const z: {zero}[4,{zeros}]
y = sardonyx.MatMulNBits(x, q, s, z, K=64, N=4, bits=4, block_size=32)
out y
"""
STORED = {"bytes": "16", "zero": "u8", "zeros": "1"}
TABLE = """
const t: u8[5,{columns}]
in i: i64[3]
const s: f32[5,2]
const z: u8[{zeros},1]
y = sardonyx.GatherDequantized(t, i, s, z, bits=4, block_size={block}, axis={axis})
out y
"""
TABLED = {"columns": "16", "zeros": "5", "block": "16", "axis": "0"}
SPANS = """
in lengths: {type}[{lengths}]
in total: i32[{total}]
in q: f32[B,2,S,8]
y = sardonyx.Spans(lengths, {given}, q)
out y
"""
SPANNED = {"type": "i32", "lengths": "B,1", "total": "1", "given": "total"}
COUNTS = """
in counts: {type}[{counts}]
in q: f32[B,2,S,8]
in k: f32[B,2,T,8]
y = sardonyx.Spans(counts, _, q{keys})
out y
"""
COUNTED = {"type": "i64", "counts": "B", "keys": ", k"}

# The text, what makes it right, and one change that makes it wrong.
WRONG = [
    *((CACHE, CACHED, change) for change in (
        {"past": "9"}, {"heads": "3"}, {"spans": "B,3"}, {"spans": "4"}, {"total": "2"},
        {"query": "7"}, {"half": "5"}, {"angles": "15"},
    )),
    *((ATTEND, ATTENDED, change) for change in (
        {"heads": "5"}, {"batch": "1"}, {"spans": "3,2"}, {"spans": "2,1"}, {"sink": "3"},
        {"nan_rows": "7"}, {"group": "0"},
    )),
    *((PRODUCT, MULTIPLIED, change) for change in (
        {"x_scale": "3"}, {"w_scale": "3"}, {"bias": "5"}, {"zero": "i8"}, {"dtype": "f64"},
        {"bias": "2,4"},
    )),
    *((SUM, SUMMED, change) for change in ({"b": "3"}, {"scale": "4"})),
    *((BITS, STORED, change) for change in ({"zero": "i4"}, {"zeros": "2"}, {"bytes": "15"})),
    *((TABLE, TABLED, change) for change in (
        {"zeros": "1"}, {"axis": "1"}, {"axis": "-1"}, {"block": "-1"},
    )),
    *((SPANS, SPANNED, change) for change in ({"total": "2"}, {"type": "i64"}, {"given": "_"})),
    *((COUNTS, COUNTED, change) for change in ({"type": "i32"}, {"keys": ""})),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "right"),
    [(CACHE, CACHED), (ATTEND, ATTENDED), (PRODUCT, MULTIPLIED), (SUM, SUMMED), (BITS, STORED),
     (TABLE, TABLED), (SPANS, SPANNED), (COUNTS, COUNTED)],
)  # fmt: skip
def test_valid_nodes(text: str, right: dict[str, str]) -> None:
    graph = parse(text.format(**right))
    guards = len(graph.scope.guards)
    check_graph(graph)
    assert len(graph.scope.guards) == guards


@pytest.mark.parametrize(("text", "right", "change"), WRONG)
def test_nodes_that_break_a_contract(
    text: str, right: dict[str, str], change: dict[str, str]
) -> None:
    with pytest.raises((InvalidPack, SardonyxError, AssertionError, IndexError, ValueError)):
        check_graph(parse(text.format(**(right | change))))


def test_open_sizes_are_guarded() -> None:
    """Sizes that are not proven to fit are checked before a run."""
    graph = parse(CACHE.format(**(CACHED | {"rows": "R"})))
    check_graph(graph)
    assert "R = S" in {g.needs for g in graph.scope.guards}


def test_every_internal_op_has_a_contract() -> None:
    assert set(names(INTERNAL)) == CONTRACTS.keys() | WITHOUT_CONTRACT | DEVICES
