"""The fast path and the checked path of a session, whose results must be equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import sardonyx

SEED = 7  # of nodes that draw random numbers: each run begins with it


class Disagree(AssertionError):
    """The two paths give different outputs, or different errors."""


Result = Sequence[Any] | Exception
Start = Callable[[], sardonyx.InferenceSession]


def fast(session: sardonyx.InferenceSession, feeds: dict[str, Any]) -> Result:
    """Return the outputs of a run without RunOptions, or its error."""
    return outcome(lambda: session.run(None, feeds))


def checked(
    session: sardonyx.InferenceSession,
    feeds: dict[str, Any],
    options: sardonyx.RunOptions | None = None,
) -> Result:
    """Return the outputs of a run with RunOptions, on the checked path, or its error."""
    given = sardonyx.RunOptions() if options is None else options
    return outcome(lambda: session.run(None, feeds, given))


def outcome(run: Callable[[], Sequence[Any]]) -> Result:
    """The outputs of a run, or its error, with the random generator at its start."""
    sardonyx.set_seed(SEED)
    try:
        return run()
    except Exception as error:  # of any class: the other path must raise the same
        return error


def both(start: Start, feeds: dict[str, Any]) -> Sequence[Any]:
    """The outputs that both paths give, or the error that both raise.

    `start` opens a session; each path has one of its own, since a run may compile again, and
    sessions of equal models share their program.
    """
    by_checked = checked(start(), feeds)
    return agreed(by_checked, fast(start(), feeds))


def agreed(by_checked: Result, by_fast: Result) -> Sequence[Any]:
    """The outputs on which two results agree; raises their error, or Disagree."""
    wrong = difference(by_fast, by_checked)
    if wrong:
        raise Disagree(f"fast path: {wrong} (by the checked path)")
    if isinstance(by_checked, Exception):
        raise by_checked
    return by_checked


def difference(found: Any, wanted: Any) -> str:
    """Empty if two results are the same to the bit, NaN being equal to NaN, or the same error."""
    if isinstance(found, Exception) or isinstance(wanted, Exception):
        a, b = _described(found), _described(wanted)
        return "" if a == b else f"{a}, not {b}"
    if isinstance(wanted, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(wanted):
            return f"{_brief(found)}, not {_brief(wanted)}"
        pairs = enumerate(zip(found, wanted, strict=True))
        texts = ((i, difference(a, b)) for i, (a, b) in pairs)
        return next((f"at {i}: {text}" for i, text in texts if text), "")
    if isinstance(wanted, dict):
        if not isinstance(found, dict) or found.keys() != wanted.keys():
            return f"{_brief(found)}, not {_brief(wanted)}"
        keyed = ((k, difference(found[k], v)) for k, v in wanted.items())
        return next((f"at {k!r}: {text}" for k, text in keyed if text), "")
    if isinstance(wanted, (np.ndarray, np.generic)):
        return _arrays(np.asarray(found), np.asarray(wanted))
    is_nan = found != found and wanted != wanted
    same = type(found) is type(wanted) and (found == wanted or is_nan)
    return "" if same or found is wanted else f"{_brief(found)}, not {_brief(wanted)}"


def _described(result: Any) -> str:
    if isinstance(result, Exception):
        return f"{type(result).__name__}: {result}"
    return f"a result {_brief(result)}"


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_brief(v) for v in value[:4])}]"
    return f"{value!r:.100}"


def _arrays(found: Any, wanted: Any) -> str:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return f"{_brief(found)}, not {_brief(wanted)}"
    if wanted.dtype == object:
        a, b = found.reshape(-1).tolist(), wanted.reshape(-1).tolist()
        wrong = np.array([x != y for x, y in zip(a, b, strict=True)], bool).reshape(wanted.shape)
    elif found.tobytes() == wanted.tobytes():
        return ""
    else:
        wrong = _odd_bits(found, wanted)
    if not np.any(wrong):
        return ""
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = int(np.count_nonzero(wrong))
    return (
        f"{count} of {wrong.size} differ in {_brief(wanted)}, "
        f"first at {where}: {found[where]!s:.60}, not {wanted[where]!s:.60}"
    )


def _odd_bits(found: Any, wanted: Any) -> Any:
    """Where two arrays differ in their bits and are not both NaN."""
    size = wanted.dtype.itemsize
    bits = [np.ascontiguousarray(x).reshape(-1).view(f"V{size}") for x in (found, wanted)]
    wrong = np.array([a.tobytes() != b.tobytes() for a, b in zip(*bits, strict=True)], bool)
    wrong = wrong.reshape(wanted.shape)
    if is_float(wanted.dtype):
        wrong &= ~(np.isnan(found) & np.isnan(wanted))
    return wrong


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type has NaN: numpy's floats, complex numbers, and small ones."""
    if dtype.kind in "fc":
        return True
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return False
    return True
