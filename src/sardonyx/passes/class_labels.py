"""Classifiers with string labels: the kernel returns class numbers, a Gather the strings."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import ML
from sardonyx.ops.builder import Builder
from sardonyx.ops.estimators.scores import binary_labels, string_array

# The attribute with integer labels, which the kernels implement.
CLASSIFIERS: Final = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}


def number_labels(graph: Graph) -> None:
    """Make classifiers return the positions of their string labels, and gather the strings."""
    for node in list(graph.nodes):
        if node.op.domain == ML and node.op.name in CLASSIFIERS:
            strings = node.attrs["classlabels_strings"]
            if strings is not None and len(strings):
                _number(graph, node)


def _number(graph: Graph, node: Node) -> None:
    """Replace a classifier by one with numbers as labels, and a Gather."""
    names = string_array(node.attrs["classlabels_strings"])
    # Labels 0 .. n - 1 are positions in the table of strings.
    numbers = np.arange(len(names))
    attrs = {**node.attrs, "classlabels_strings": None, CLASSIFIERS[node.op.name]: numbers}
    builder = Builder(graph, graph.scope)
    classifier = builder.node(node.op.name, *node.inputs, outputs=2, domain=ML, **attrs)
    # A binary classifier may name only its positive class.
    table = binary_labels(names) if len(names) == 1 else names
    label: Value = builder.Gather(builder.const(table), classifier.outputs[0])
    for added in builder.new_nodes:
        added.annotations = node.annotations
    for old, new in zip(node.outputs, (label, classifier.outputs[1]), strict=False):
        if not new.name:
            new.name, old.name = old.name, ""
        graph.replace(old, new)
    graph.remove(node)
