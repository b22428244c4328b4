"""How sessions, options, values and graphs look in a notebook and at a prompt."""

from __future__ import annotations

import html.parser
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sardonyx as ort
from sardonyx.base.notebook import MAX_ROWS, panel
from sardonyx.models import DIGITS


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.add_session_config_entry("sardonyx.weights", "copied")
    return options


def _run_options() -> ort.RunOptions:
    options = ort.RunOptions()
    options.logid = "a run"
    return options


def _binding() -> Any:
    binding = ort.InferenceSession(DIGITS).io_binding()
    binding.bind_cpu_input("image", np.zeros((1, 1, 8, 8), np.float32))
    binding.bind_output("probabilities", "cpu")
    return binding


OBJECTS = {
    "session": lambda: ort.InferenceSession(DIGITS),
    "options": _options,
    "run options": _run_options,
    "value": lambda: ort.OrtValue.ortvalue_from_numpy(np.arange(20, dtype=np.float32)),
    "metadata": lambda: ort.InferenceSession(DIGITS).get_modelmeta(),
    "graph": lambda: ort.InferenceSession(DIGITS)._compiled.model.graph,
}


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            OBJECTS["session"],
            (
                "<InferenceSession of digits.onnx: image tensor(float)['batch', 1, 8, 8] -> "
                "probabilities tensor(float)['batch', 10]>"
            ),
        ),
        (ort.SessionOptions, "SessionOptions()"),
        (
            _options,
            (
                "SessionOptions(intra_op_num_threads=2, execution_mode=ORT_PARALLEL, "
                "sardonyx.weights='copied')"
            ),
        ),
        (_run_options, "RunOptions(logid='a run')"),
        (_binding, "<IOBinding: image -> probabilities>"),
    ],
)
def test_repr(made: Any, text: str) -> None:
    assert repr(made()) == text


def test_metadata_and_graphs_have_a_repr() -> None:
    assert "producer_name='pytorch'" in repr(OBJECTS["metadata"]())
    assert repr(OBJECTS["graph"]()).startswith("<Graph digits of ")


class _Balance(html.parser.HTMLParser):
    """Counts elements that are open."""

    n_open = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.n_open += 1

    def handle_endtag(self, tag: str) -> None:
        self.n_open -= 1


@pytest.mark.parametrize("name", OBJECTS)
def test_html(name: str) -> None:
    text = OBJECTS[name]()._repr_html_()
    balance = _Balance()
    balance.feed(text)
    assert balance.n_open == 0
    assert "<script" not in text
    assert "object at 0x" not in text


def test_html_of_a_value_of_a_type_that_numpy_lacks() -> None:
    bits = np.array([0x3FC0, 0xC000], np.uint16)
    half = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)
    assert half.numpy().dtype == ml_dtypes.bfloat16
    assert "1.5, -2.0" in half._repr_html_()


def test_html_is_escaped_and_long_tables_are_cut() -> None:
    text = panel("<b>", "&", [(f"<{i}>", i) for i in range(MAX_ROWS + 5)])
    assert "<0>" not in text
    assert "and 5 more" in text


def test_names_are_completed_before_they_are_imported() -> None:
    code = (
        "import sardonyx; print({'OrtValue', 'custom_op', 'InferenceSession'} <= {*dir(sardonyx)})"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "True"


def test_options_are_completed() -> None:
    assert {"intra_op_num_threads", "add_session_config_entry"} <= {*dir(ort.SessionOptions())}
