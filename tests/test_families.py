"""An op has one family name on every side: ops/, providers, native kernels, cases, upgrades."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

import sardonyx._native as native
from sardonyx import ops
from sardonyx.base.name_index import module_names, read
from sardonyx.graph.op import Decomposition, Op
from sardonyx.load import upgrade
from sardonyx.load.upgrade import family_of_replaced, find
from sardonyx.ops import family_of, lookup
from sardonyx.ops.elementwise.fusible import CUSTOM, FUSIBLE
from sardonyx.ops.gradient_rules import rule_of
from tests.op_cases import case_modules

Key = tuple[str, str]
KEYS = list(ops.OPS_INDEX.all())
FAMILIES = sorted(ops.families())
CPU = Path(importlib.import_module("sardonyx.providers.cpu").__file__ or "").parent
LOWERED = [family for family in FAMILIES if (CPU / f"{family}.py").exists()]
GLOSSARY = frozenset((
    "attention", "control", "conv", "elementwise", "estimators", "features", "gather", "generation",
    "loss", "matmul", "matrix", "moe", "move", "nbits", "normalize", "optimizer", "pooling",
    "quantize", "random", "recurrent", "reduce", "resize", "sample", "select", "sequence", "shape",
    "signal", "softmax", "text", "trees",
))  # fmt: skip

# Lowerings of one family that call kernels of another, and why.
SHARED = {
    ("conv", "sample"): "deform_columns interpolates as GridSample does",
    ("elementwise", "quantize"): "quantize and dequantize are instructions of chains, too",
    ("features", "estimators"): "the native kernels of ai.onnx.ml are one family",
    ("features", "text"): "categories that are strings",
    ("recurrent", "quantize"): "the weights of QLSTM are packed as those of QMatMul",
    ("select", "gather"): "NonZero makes indices",
    ("shape", "move"): "ops on shapes that copy elements",
    ("text", "move"): "concatenation of 16-byte string descriptors",
}
# Ops of the family elementwise that are not in FUSIBLE, and why.
NOT_FUSIBLE = {
    ("", "BitCast"): "reinterprets the bytes: its reference is a view",
    ("", "CastLike"): "rewritten to Cast",
    ("sardonyx", "Chain"): "the fused ops themselves",
}
CASES_OF_OTHERS = {"tests.cases.text.any_type": "ops of any type, on strings"}


def family_of_module(module: ModuleType | str, root: str) -> str:
    """The first part of a module's name after its root."""
    name = module if isinstance(module, str) else module.__name__
    return name.removeprefix(f"{root}.").partition(".")[0]


def test_every_declared_op_is_listed() -> None:
    """The index and imports by family read `OPS` of each module."""
    wrong = []
    for name in module_names(ops.FOLDER):
        module = importlib.import_module(f"sardonyx.ops.{name}")
        declared = (op for op in vars(module).values() if isinstance(op, Op))
        wrong += [f"add {op} to OPS of ops/{name}" for op in declared if op.key not in KEYS]
    assert not wrong, "\n".join(wrong)


def test_every_op_has_a_reference() -> None:
    declared = [op for key in KEYS if (op := lookup(*key)) is not None]
    missing = [op for op in declared if op.reference_rule is None and not op.has_bodies]
    lines = [f"{op}: add an @op.reference in ops/{ops.module_of(*op.key)}.py" for op in missing]
    assert not lines, "\n".join(lines)


def test_every_elementwise_op_is_fusible() -> None:
    """Without an entry an op has no native kernel and ends every chain that it is in."""
    declared = {key for key in KEYS if family_of(*key) == "elementwise"}
    lines = [
        f"{key}: add an entry to FUSIBLE of ops/elementwise/fusible.py, or a reason to NOT_FUSIBLE"
        for key in sorted(declared - FUSIBLE.keys() - NOT_FUSIBLE.keys())
    ]
    assert not lines, "\n".join(lines)
    assert NOT_FUSIBLE.keys() <= declared - FUSIBLE.keys(), "remove what is fusible"


def test_custom_triton_forms_have_an_emitter() -> None:
    pytest.importorskip("torch")
    from sardonyx.providers.torch.kernels.chain_source import _CUSTOM

    by_types = {"Cast", "Where"}  # `expression` writes them from the types of their operands
    custom = {key[1] for key, op in FUSIBLE.items() if op.triton == CUSTOM}
    assert custom - by_types == _CUSTOM.keys(), (
        "add an emitter to _CUSTOM of providers/torch/kernels/chain_source.py"
    )


def test_generated_indexes_are_up_to_date() -> None:
    """conftest.py writes them."""
    for folder, scan in ((ops.FOLDER, ops.scan), (upgrade.FOLDER, upgrade.scan)):
        assert read(f"{folder}/index.txt") == scan(), f"run tools/make_index.py for {folder}"


def test_the_families_are_those_of_the_glossary() -> None:
    assert set(FAMILIES) == GLOSSARY


@pytest.mark.parametrize("family", LOWERED)
def test_lowerings_of_a_family_are_of_its_ops(family: str) -> None:
    module = importlib.import_module(f"sardonyx.providers.cpu.{family}")
    wrong = {key: family_of(*key) for key in module.LOWERINGS if family_of(*key) != family}
    assert not wrong, f"these belong to another file of providers/cpu: {wrong}"


@pytest.mark.parametrize("family", LOWERED)
def test_lowerings_of_a_family_call_its_kernels(family: str) -> None:
    module = importlib.import_module(f"sardonyx.providers.cpu.{family}")
    assert module.__file__ is not None
    wrong = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kernel = native.kernels.get(node.value)
            found = None if kernel is None else kernel.family
            if found not in (None, family) and (family, found) not in SHARED:
                wrong.add(f"{node.value} is a kernel of {found}")
    assert not wrong, f"providers/cpu/{family}.py calls kernels of other families: {sorted(wrong)}"


def test_torch_kernels_of_a_family_are_of_its_ops() -> None:
    pytest.importorskip("torch")
    from sardonyx.providers.torch.index import modules

    wrong = [
        f"{key[1]} is in {module.__name__}, and its family is {family_of(*key)}"
        for module in modules()
        for key in getattr(module, "KERNELS", ())
        if family_of(*key) != family_of_module(module, "sardonyx.providers.torch")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("provider", ["cpu", "torch"])
def test_tables_of_kernels_are_found(provider: str) -> None:
    """A table in a file that has no family's name would never be read."""
    wrong = []
    for name in module_names(str(CPU.parent / provider)):
        text = (CPU.parent / provider / f"{name.replace('.', '/')}.py").read_text()
        has_table = "\nLOWERINGS:" in text or "\nKERNELS:" in text
        if has_table and name.partition(".")[0] not in (*FAMILIES, "index"):
            wrong.append(f"rename providers/{provider}/{name}.py to the family of its ops")
    assert not wrong, "\n".join(wrong)


def test_cases_of_a_family_are_of_its_ops() -> None:
    wrong = set()
    for module in case_modules():
        if module.__name__ in CASES_OF_OTHERS:
            continue
        family = family_of_module(module, "tests.cases")
        for case in module.CASES:
            key = (case.domain, case.op)
            expected = family_of(*key) or family_of_replaced(*key)
            if family != expected:
                wrong.add(f"{case.op} is in {module.__name__}, and its family is {expected}")
    assert not wrong, "\n".join(sorted(wrong))


@pytest.mark.parametrize("family", module_names(upgrade.FOLDER))
def test_upgrades_of_a_family_are_of_its_ops(family: str) -> None:
    module = importlib.import_module(f"sardonyx.load.upgrade.{family}")
    for key, _, _ in module.UPGRADES:
        assert (family_of_replaced(*key) or family_of(*key)) == family, key
        assert find(*key, 1) is not None, key


@pytest.mark.parametrize("key", KEYS, ids=lambda k: f"{k[0]}.{k[1]}".strip("."))
def test_gradients_of_a_family_are_of_its_ops(key: Key) -> None:
    op = lookup(*key)
    assert op is not None
    rule = rule_of(op)
    if rule is None:
        return
    made = rule.build if isinstance(rule, Decomposition) else rule
    assert family_of_module(made.__module__, "sardonyx.ops") in (family_of(*key), "gradients")
