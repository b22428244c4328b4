"""Graphs with control flow, sequences and optionals, each by what it shows."""

from __future__ import annotations

from typing import Any

import numpy as np

YES = "yes = Constant<value = bool {1}>()"
CONSTANTS = f"""{YES} zero = Constant<value = int64 {{0}}>() one = Constant<value = int64 {{1}}>()
    two = Constant<value = int64 {{2}}>() last = Constant<value = int64 {{-1}}>()
    axes = Constant<value_ints = [0]>() fifty = Constant<value = double {{50}}>()"""
C, N = "bool c", "int64 n"


def trips(*counts: int) -> list[dict[str, Any]]:
    return [{"n": np.array(n)} for n in counts]


BOTH: list[dict[str, Any]] = [{"c": np.array(True)}, {"c": np.array(False)}]
# What is shown: inputs beside x and w (both of 4 doubles), nodes that make y of them, and feeds.
Flow = tuple[str, str, list[dict[str, Any]]]

BRANCHES: dict[str, Flow] = {
    "both branches": (
        C,
        """y = If (c) <then_branch = t () => (double[4] a) { s = Mul(x, w) a = Mul(s, s) },
                       else_branch = e () => (double[4] b) { b = Sin(x) }>""",
        BOTH,
    ),
    "outputs of several branches": (
        C,
        """p, q = If (c) <
             then_branch = t () => (double[4] a, double b) { a = Exp(x) b =
               ReduceSum<keepdims=0>(w) },
             else_branch = e () => (double[4] f, double d) { f = Mul(w, x) d =
               ReduceMax<keepdims=0>(x) }>
           y = Mul(p, q)""",
        BOTH,
    ),
    "sizes that depend on the branch": (
        C,
        """p = If (c) <then_branch = t () => (double[k] a) { a = Concat<axis=0>(x, w) },
                       else_branch = e () => (double[k] b) { b = Mul(x, w) }>
           q = Sin(p) y = Mul(q, p)""",
        BOTH,
    ),
    "nested, with values of several levels": (
        f"{C}, bool d",
        """u = Exp(w)
           y = If (c) <
             then_branch = t () => (double[4] a) {
               v = Mul(u, x)
               a = If (d) <then_branch = tt () => (double[4] a1) { r = Mul(v, u) a1 = Mul(r, x) },
                           else_branch = te () => (double[4] a2) { a2 = Sin(v) }> },
             else_branch = e () => (double[4] b) { b = Mul(w, x) }>""",
        [{"c": np.array(c), "d": np.array(d)} for c in (True, False) for d in (True, False)],
    ),
    "an optional that may be empty": (
        C,
        """o = If (c) <then_branch = t () => (optional(double[4]) a) { a = Optional(x) },
              else_branch = e () => (optional(double[4]) b) { b = Optional<type = double[4]>() }>
           has = OptionalHasElement(o)
           y = If (has) <
             then_branch = t2 () => (double[4] a2) { g = OptionalGetElement(o) a2 = Mul(g, w) },
             else_branch = e2 () => (double[4] b2) { b2 = Sin(w) }>""",
        BOTH,
    ),
    "an optional of either value": (
        C,
        """o = If (c) <then_branch = t () => (optional(double[4]) a) { a = Optional(x) },
                 else_branch = e () => (optional(double[4]) b) { v = Mul(x, w) b = Optional(v) }>
           g = OptionalGetElement(o) y = Mul(g, g)""",
        BOTH,
    ),
}

LOOPS: dict[str, Flow] = {
    "carried values and scan outputs": (
        N,
        """p, q = Loop (n, yes, x) <body = b (int64 k, bool c, double[4] s) =>
             (bool d, double[4] t, double[4] u) { d = Identity(c) m = Mul(s, w) t = Sin(m) u =
               Mul(t, s) }>
           r = ReduceSum<keepdims=0>(q) y = Mul(p, r)""",
        trips(0, 1, 4),
    ),
    "a fixed trip count": (
        "",
        """y = Loop (two, yes, x) <body = b (int64 k, bool c, double[4] s) => (bool d, double[4] t)
             { d = Identity(c) m = Mul(s, w) t = Sin(m) }>""",
        [{}],
    ),
    "until a condition fails": (
        N,
        """y, z = Loop (, yes, x, zero) <body = b (int64 k, bool c, double[4] s, int64 i) =>
             (bool d, double[4] t, int64 j)
             { m = Mul(s, w) t = Add(m, x) one1 = Constant<value = int64 {1}>() j = Add(i, one1)
               d = Less(j, n) }>""",
        trips(0, 1, 3),
    ),
    "a condition on floats": (
        "",
        """y = Loop (, yes, x) <body = b (int64 k, bool c, double[4] s) => (bool d, double[4] t)
             { e = Exp(w) m = Add(e, one2) one2 = Constant<value = double {1}>() a = Mul(s, s) b1
               = Add(a, e)
               t = Add(b1, m) r = ReduceSum<keepdims=0>(t) d = Less(r, fifty) }>""",
        [{}],
    ),
    "the number of the iteration": (
        N,
        """y = Loop (n, yes, x) <body = b (int64 k, bool c, double[4] s) => (bool d, double[4] t)
             { d = Identity(c) i = Cast<to=11>(k) e = Add(w, i) t = Mul(s, e) }>""",
        trips(0, 3),
    ),
    "slices of a value from outside": (
        "",
        """v = Loop (two, yes, w) <body = b (int64 k, bool c, double[4] s) => (bool d, double[4] t)
             { d = Identity(c) e = Gather(x, k) t = Mul(s, e) }> y = Mul(v, x)""",
        [{}],
    ),
    "columns of a matrix from outside, and elements at one place": (
        N,
        """a = Unsqueeze(x, axes) at = Constant<value_ints = [1]>() b0 = Unsqueeze(w, at) r =
          Mul(b0, a)
           places = Constant<value_ints = [0, 2, 2, 1]>()
           y = Loop (n, yes, w) <body = b (int64 k, bool c, double[4] s) => (bool d, double[4] t)
             { d = Identity(c) e = Gather<axis=1>(r, k) f = Gather(x, places) g0 = Mul(e, f)
               h = Mul(s, g0) i = ReduceSum<keepdims=0>(r) t = Add(h, i) }>""",
        trips(0, 1, 4),
    ),
    "a trip count alone": (
        N,
        """y = Loop (n) <body = b (int64 k, bool c) => (bool d, double[4] t)
             { d = Identity(c) m = Mul(x, w) t = Sin(m) }>""",
        trips(1, 3),
    ),
    "sizes that change": (
        N,
        """y = Loop (n, yes, x) <body = b (int64 k, bool c, double[a] s) => (bool d, double[e] t)
             { d = Identity(c) u = Concat<axis=0>(s, w) t = Sin(u) }>""",
        trips(0, 1, 3),
    ),
    "a carried value that is exchanged": (
        N,
        """y, z = Loop (n, yes, x, w) <body = b (int64 k, bool c, double[4] s, double[4] t) =>
             (bool d, double[4] u, double[4] v) { d = Identity(c) u = Mul(t, s) v = Identity(s)
               }>""",
        trips(0, 1, 2, 5),
    ),
    "nested loops": (
        N,
        """y = Loop (n, yes, x) <body = b (int64 k, bool c, double[4] s) => (bool d, double[4] t) {
             d = Identity(c) e = Mul(s, w)
             r, q = Loop (k, yes, e) <body = b2 (int64 k2, bool c2, double[4] s2) =>
               (bool d2, double[4] t2, double[4] q2) {
                 d2 = Identity(c2) m2 = Mul(s2, s) n2 = Add(m2, w) t2 = Sin(n2) q2 = Mul(t2, x) }>
             z = ReduceSum<keepdims=0>(q, axes) t = Add(r, z) }>""",
        trips(0, 1, 3),
    ),
    "a branch in a loop": (
        N,
        """y = Loop (n, yes, x) <body = b (int64 k, bool c, double[4] s) => (bool d, double[4] t) {
             d = Identity(c) f = Less(k, one)
             t = If (f) <then_branch = th () => (double[4] a) { a = Mul(s, w) },
                         else_branch = el () => (double[4] b1) { u = Mul(s, x) b1 = Sin(u) }> }>""",
        trips(0, 1, 3),
    ),
    "a loop in a branch": (
        f"{C}, {N}",
        """y = If (c) <
             then_branch = th () => (double[4] a) {
               a = Loop (n, yes, x) <body = b (int64 k, bool c1, double[4] s) => (bool d,
                 double[4] t)
                 { d = Identity(c1) m = Mul(s, w) t = Sin(m) }> },
             else_branch = el () => (double[4] e) { e = Mul(w, w) }>""",
        [{"c": np.array(c), "n": np.array(2)} for c in (True, False)],
    ),
    "a value that leaves through a scan output alone": (
        N,
        """p, y = Loop (n, yes, zero) <body = b (int64 k, bool c, int64 i) =>
             (bool d, int64 j, double[4] t)
             { d = Identity(c) j = Add(i, one) f = Cast<to=11>(i) m = Mul(x, f) t = Mul(m, w) }>""",
        trips(1, 3),
    ),
}

SCANS: dict[str, Flow] = {
    "states and slices": (
        "",
        """h = ReduceSum<keepdims=0>(w)
           p, y = Scan <num_scan_inputs = 1, body = b (double s, double e) => (double t, double u)
             { m = Mul(s, e) t = Sin(m) v = Gather(w, zero) u = Mul(t, v) }> (h, x)""",
        [{}],
    ),
    "backwards, along another axis": (
        "",
        """a = Unsqueeze(x, axes) b0 = Unsqueeze(w, one1) one1 = Constant<value_ints = [1]>() r =
          Mul(b0, a)
           h = Sin(w)
           p, y = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions =
             [1, 0],
              scan_output_axes = [1], scan_output_directions = [1],
              body = b (double[4] s, double[4] e, double f) => (double[4] t, double[4] u)
             { m = Mul(s, e) t = Sin(m) k = Mul(t, f) u = Add(k, x) }> (h, r, w)""",
        [{}],
    ),
    "without states": (
        "",
        """y = Scan <num_scan_inputs = 2, body = b (double e, double f) => (double u)
             { m = Mul(e, f) u = Exp(m) }> (x, w)""",
        [{}],
    ),
    "a scan in a loop": (
        N,
        """y = Loop (n, yes, x) <body = b (int64 k, bool c, double[4] s) => (bool d, double[4] t) {
             d = Identity(c) h = ReduceSum<keepdims=0>(w)
             p, t = Scan <num_scan_inputs = 1, body = b2 (double s2, double e2) => (double t2,
               double u2)
               { m2 = Mul(s2, e2) t2 = Sin(m2) u2 = Add(t2, e2) }> (h, s) }>""",
        trips(0, 2),
    ),
}

P = "int64 p"


def at(*positions: int) -> list[dict[str, Any]]:
    return [{"p": np.array(p)} for p in positions]


SEQUENCES: dict[str, Flow] = {
    "an element at a position": (
        P,
        "z = Mul(x, w) s = SequenceConstruct(x, z, w) e = SequenceAt(s, p) y = Mul(e, e)",
        at(0, 1, 2, -1, -3),
    ),
    "elements of several sizes": (
        P,
        """z = Concat<axis=0>(x, w) s = SequenceConstruct(x, z) e = SequenceAt(s, p)
           f = ReduceSum<keepdims=0>(e) y = Mul(f, w)""",
        at(0, 1),
    ),
    "inserted at a position": (
        P,
        """s = SequenceConstruct(x, w) z = Mul(x, w) t = SequenceInsert(s, z, p)
           v = ConcatFromSequence<axis=0>(t) y = Mul(v, v)""",
        at(0, 1, 2, -1, -2),
    ),
    "erased at a position": (
        P,
        """z = Mul(x, w) s = SequenceConstruct(x, z, w) t = SequenceErase(s, p)
           v = ConcatFromSequence<axis=0, new_axis=1>(t) y = Mul(v, v)""",
        at(0, 1, 2, -1),
    ),
    "split into parts": (
        "int64[k] sizes",
        """z = Mul(x, w) s = SplitToSequence(z, sizes) a = SequenceAt(s, zero) b = SequenceAt(s,
          one)
           c = ReduceSumSquare<keepdims=0>(a) y = Mul(b, c)""",
        [{"sizes": np.array([1, 3])}, {"sizes": np.array([2, 1, 1])}],
    ),
    "split into slices, joined otherwise": (
        P,
        """z = Mul(x, w) s = SplitToSequence<keepdims=0>(z) t = SequenceErase(s, p)
           y = ConcatFromSequence<axis=0, new_axis=1>(t)""",
        at(0, 3),
    ),
    "mapped": (
        P,
        """u = Exp(w) s = SequenceConstruct(x, w)
           m = SequenceMap <body = b (double[4] v, double[4] r) => (double[4] q)
             { a = Mul(v, v) b1 = Mul(a, u) q = Mul(b1, r) }> (s, x)
           e = SequenceAt(m, p) f = SequenceAt(m, zero) y = Mul(e, f)""",
        at(0, 1),
    ),
    "one appended per iteration": (
        N,
        """s0 = SequenceEmpty<dtype=11>()
           p, s = Loop (n, yes, x, s0) <body = b (int64 k, bool c, double[4] v, seq(double[4])
             s1) =>
             (bool d, double[4] u, seq(double[4]) s2)
             { d = Identity(c) m = Mul(v, w) u = Sin(m) s2 = SequenceInsert(s1, u) }>
           q = ConcatFromSequence<axis=0>(s) y = Mul(q, q)""",
        trips(1, 3),
    ),
    "one appended per iteration, then stacked": (
        N,
        """s0 = SequenceEmpty<dtype=11>()
           p, s = Loop (n, yes, x, s0) <body = b (int64 k, bool c, double[4] v, seq(double[4])
             s1) =>
             (bool d, double[4] u, seq(double[4]) s2)
             { d = Identity(c) m = Mul(v, w) u = Sin(m) s2 = SequenceInsert(s1, u) }>
           q = ConcatFromSequence<axis=0, new_axis=1>(s) y = Mul(q, q)""",
        trips(1, 3),
    ),
    "earlier elements read in a loop": (
        N,
        """s0 = SequenceConstruct(x, w)
           s = Loop (n, yes, s0) <body = b (int64 k, bool c, seq(double[4]) s1) =>
             (bool d, seq(double[4]) s2)
             { d = Identity(c) a = SequenceAt(s1, k) b1 = SequenceAt(s1, last) m = Mul(a, b1) u =
               Sin(m)
               s2 = SequenceInsert(s1, u) }>
           a0 = SequenceAt(s, last) b0 = SequenceAt(s, one) y = Mul(a0, b0)""",
        trips(0, 1, 3),
    ),
    "a sequence from outside, read in a loop": (
        N,
        """z = Mul(x, w) s = SequenceConstruct(x, z, w)
           y = Loop (n, yes, w) <body = b (int64 k, bool c, double[4] v) => (bool d, double[4] u)
             { d = Identity(c) a = SequenceAt(s, k) m = Mul(v, a) u = Sin(m) }>""",
        trips(0, 3),
    ),
    "the sequence of a branch": (
        C,
        """s = If (c) <then_branch = t () => (seq(double[4]) a) { a = SequenceConstruct(x, w) },
                    else_branch = e () => (seq(double[4]) b) { v = Mul(x, w) b =
                      SequenceConstruct(v) }>
           f = SequenceAt(s, last) y = Mul(f, f)""",
        BOTH,
    ),
}
FLOWS = BRANCHES | LOOPS | SCANS | SEQUENCES
