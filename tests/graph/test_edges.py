"""Only the methods of Graph change edges: nothing else in the package assigns them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sardonyx

ROOT = Path(sardonyx.__file__).parent
INSTEAD = {
    "inputs": "Graph.set_input, replace_inputs; for a graph's own: add_input, set_inputs",
    "outputs": "Graph.add_outputs, drop_outputs; for a graph's own: set_outputs",
    "defaults": "Graph.add_input, set_default",
    "uses": "Graph.set_input, replace_inputs, replace",
    "n_exits": "Graph.set_outputs",
    "nodes": "Graph.add, remove, adopt",
    "node": "Graph.add, add_outputs, drop_outputs",
    "index": "Graph.add, add_outputs, drop_outputs",
    "graph": "Graph.adopt",
    "owner": "Graph.add, which owns the bodies among a node's attributes",
}
COLLECTIONS = {"inputs", "defaults", "uses", "nodes"}
CHANGES = {"append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}
# Attributes of the same names that are not edges: of these files, on these objects.
OTHERS = {
    ("graph/infer.py", "scope.node"),
    ("load/buffers.py", "memory.owner"),
    ("program/segments.py", "self._drafts[-1].nodes"),
    ("ort/raw_pointers.py", "memory.owner"),
    ("autodiff/gradient.py", "self.model.inputs"),
    ("autodiff/training_graph.py", "model.inputs"),
    ("autodiff/training_graph.py", "self.model.inputs"),
    ("pack/contracts.py", "self.scope.node"),
    ("program/native_items.py", "segment.inputs"),
    ("program/native_items.py", "segment.outputs"),
    ("reports/weights.py", "report.nodes"),
    ("train/adapters/prefix.py", "model.inputs"),
    ("train/losses.py", "changed.outputs"),
    ("train/losses.py", "model.inputs"),
    ("training/training_model.py", "model.inputs"),
    ("training/training_model.py", "model.outputs"),
    ("transformers/pruning.py", "graph.node"),  # of a GraphProto
}


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that a statement or call changes."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        yield from node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        yield node.target
    elif isinstance(node, ast.Call):
        match node.func:
            case ast.Attribute(ast.Attribute(attr=name) as collection, method):
                if method in CHANGES and name in COLLECTIONS:
                    yield collection


def attributes(target: ast.expr) -> Iterator[ast.Attribute]:
    """The attributes that are changed with a target, whole or by their elements."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from attributes(each)
    elif isinstance(target, (ast.Subscript, ast.Starred)):
        yield from attributes(target.value)
    elif isinstance(target, ast.Attribute):
        yield target


def changed_edges(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, expression and name of each edge that a module assigns; a class may have its own."""
    for node in ast.walk(ast.parse(source)):
        for target in targets(node):
            for attribute in attributes(target):
                is_own = isinstance(attribute.value, ast.Name) and attribute.value.id == "self"
                if attribute.attr in INSTEAD and not is_own:
                    yield attribute.lineno, ast.unparse(attribute), attribute.attr


def edits_documents(name: str, source: str) -> bool:
    """Return whether a module edits models as files have them, whose edges are names."""
    is_document = name.startswith("quantization/document/")
    return is_document or "from sardonyx.quantization.document import" in source


def test_only_the_graph_changes_its_edges() -> None:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        source = path.read_text()
        if name == "graph/graph.py" or edits_documents(name, source):
            continue
        for line, what, attribute in changed_edges(source):
            if (name, what) not in OTHERS:
                wrong.append(f"{name}:{line} changes {what}: use {INSTEAD[attribute]}")
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_needed() -> None:
    for name, what in OTHERS:
        found = {text for _, text, _ in changed_edges((ROOT / name).read_text())}
        assert what in found, f"{name} does not change {what}"


@pytest.mark.parametrize(
    "source",
    [
        "node.inputs = ()",
        "node.inputs, node.outputs = (), ()",
        "value.uses.append((node, 0))",
        "graph.nodes[node] = None",
        "del graph.nodes[node]",
        "value.n_exits += 1",
        "self._graph.inputs.append(value)",
    ],
)
def test_every_way_to_change_an_edge_is_detected(source: str) -> None:
    assert list(changed_edges(source))


@pytest.mark.parametrize(
    "source", ["self.inputs = []", "x = node.inputs[0]", "node.graph.remove(node)"]
)
def test_other_assignments_are_not_reported(source: str) -> None:
    assert not list(changed_edges(source))
