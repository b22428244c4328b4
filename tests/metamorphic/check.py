"""Whether a variant of a case gives what the case gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto

from sardonyx.errors import InternalError, SardonyxError
from tests.metamorphic import settings
from tests.metamorphic.known import KNOWN
from tests.metamorphic.sources import Case
from tests.metamorphic.table import TRANSFORMS
from tests.metamorphic.variant import Variant
from tests.oracle import ORT_IR, ORT_NEWEST
from tests.random_graphs.onnxruntime_process import OrtError, OrtProcess
from tests.two_paths import Disagree
from tests.two_paths import difference as bits

GOOD = ("same", "both refuse", "refused as by onnxruntime", "does not apply", "known", "no case")


@dataclass
class Outcome:
    """The outcome of a variant. `kind` is one of GOOD, or the kind of the fault."""

    case: str
    transforms: list[str]
    kind: str
    detail: str = ""
    reason: str = ""  # of a refusal or a known difference, without names and numbers


@dataclass
class Original:
    """A case and what it gives: outputs, or an error."""

    case: Case
    outputs: Sequence[Any] = ()
    error: str = ""
    wrong: str = ""  # what is wrong with it before any transform
    cache: dict[str, Any] = field(default_factory=dict)


def original(case: Case) -> Original:
    """The case as it is, run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = settings.run(case.model.SerializeToString(), case.feeds, settings.Settings())
        except SardonyxError as error:
            is_ours = isinstance(error, InternalError)
            return Original(case, error=str(error), wrong=_text(error) if is_ours else "")
        except (ValueError, TypeError) as error:
            return Original(case, error=_text(error))
        except Exception as error:
            return Original(case, wrong=_text(error))
    return Original(case, [np.asarray(x) if np.isscalar(x) else x for x in found])


def check(
    it: Original,
    names: Sequence[str],
    rng: Random,
    ort: OrtProcess,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Whether a case gives the same after some transforms, one after the other."""
    if it.wrong:
        return Outcome(it.case.name, [], "wrong as it is", it.wrong)
    v, applied = transformed(it, names, rng)
    if not applied:
        return Outcome(it.case.name, list(names), "does not apply")
    say(f"{it.case.name}: {' '.join(applied)}")
    outcome = Outcome(it.case.name, applied, "same")
    _judge(it, v, ort, outcome)
    if outcome.kind not in GOOD:
        for known in KNOWN:
            if known.excuses(outcome.transforms, it.case.name, outcome.kind, outcome.detail):
                outcome.kind, outcome.reason = "known", known.why
    return outcome


def transformed(it: Original, names: Sequence[str], rng: Random) -> tuple[Variant, list[str]]:
    """A case after some transforms, and the names of those that apply."""
    case, applied = it.case, []
    v = Variant(case.model, case.feeds, it.outputs, is_random=case.is_random)
    for name in names:
        changed = TRANSFORMS[name](v, rng)
        if changed is not None:
            v = changed
            applied.append(name)
    return v, applied


def _judge(it: Original, v: Variant, ort: OrtProcess, outcome: Outcome) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = settings.run(v.model.SerializeToString(), v.feeds, v.settings)
    except Disagree as error:
        outcome.kind, outcome.detail = "paths differ", str(error)
        return
    except InternalError as error:
        outcome.kind, outcome.detail = "internal error", str(error)
        return
    except (SardonyxError, ValueError, TypeError) as error:
        if not isinstance(error, SardonyxError) and not it.error:
            raise
        _judge_refusal(it, v, ort, outcome, error)
        return
    if it.error:
        outcome.kind, outcome.detail = "only transformed", it.error
        return
    wrong = _difference(it, v, found)
    if wrong:
        outcome.kind, outcome.detail = "differs", wrong


def _judge_refusal(
    it: Original, v: Variant, ort: OrtProcess, outcome: Outcome, error: Exception
) -> None:
    if it.error:
        outcome.kind = "both refuse"
        return
    outcome.detail = _text(error)
    try:
        ort.run(_for_onnxruntime(v.model), [v.feeds])
    except OrtError as theirs:
        outcome.kind = "refused as by onnxruntime"
        outcome.reason = f"{_brief(error)} | onnxruntime: {str(theirs)[:80]}"
        return
    outcome.kind = "refused"


def _for_onnxruntime(model: ModelProto) -> bytes:
    """The model in versions that onnxruntime knows: others it refuses, whatever is in them."""
    made = ModelProto()
    made.CopyFrom(model)
    made.ir_version = min(made.ir_version, ORT_IR)
    for part in (made, *made.functions):
        for imported in part.opset_import:
            newest = ORT_NEWEST.get(imported.domain, imported.version)
            imported.version = min(imported.version, newest)
    return bytes(made.SerializeToString())


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1500]


def _difference(it: Original, v: Variant, found: Sequence[Any]) -> str:
    if len(found) < len(v.wanted):
        return f"{len(found)} outputs, not {len(v.wanted)}"
    for i, (a, b) in enumerate(zip(found, v.wanted, strict=False)):
        if it.case.is_random:
            text = _kinds(a, b)
        else:
            text = bits(a, b)
            if text and not v.exact:
                text = it.case.compare(i % len(it.outputs), a, b)
        if text:
            return f"output {i}: {text}"
    return ""


def _kinds(a: Any, b: Any) -> str:
    """Random numbers have the same types and shapes."""
    if isinstance(b, np.ndarray):
        a = np.asarray(a)
        same = a.dtype == b.dtype and a.shape == b.shape
        return "" if same else f"{a.dtype}{a.shape}, not {b.dtype}{b.shape}"
    return "" if type(a) is type(b) else f"{type(a)}, not {type(b)}"
