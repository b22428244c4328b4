"""Tables are scored as sessions score the arrays of their columns, whatever their chunks."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import by_name
from tests.arrow import models

pa = pytest.importorskip("pyarrow")
import pyarrow.compute as pc  # noqa: E402

from sardonyx.arrow import Predictor, predict  # noqa: E402
from sardonyx.arrow.batch_rows import BatchRows  # noqa: E402
from sardonyx.arrow.predictor import Scoring  # noqa: E402

TENSOR = pa.fixed_shape_tensor(pa.uint8(), (2, 3))
IMAGES = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
AB = {"a": pa.array([1.5, -2.0, 3.0], pa.float32()), "b": pa.array([1, 2, 3])}

# A model, a table, how it is scored, and the columns of the outputs.
ROWS: list[tuple[str, bytes, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("by_name", models.DOUBLE, AB, {}, {"c": [3.0, -4.0, 6.0], "d": [[1, 1], [2, 2], [3, 3]]}),
    ("all_columns", models.SUM, {"p": [1.0], "q": [2.0], "r": [3]}, {}, {"y": [6.0]}),
    ("joined", models.SUM, {"p": [1.0], "q": [2.0]}, {"columns": {"x": ["q", "p", "q"]}},
     {"y": [5.0]}),
    ("lists", models.SUM, {"x": [[1.0, 2, 3], [4, 5, 6]]}, {}, {"y": [6.0, 15.0]}),
    ("fixed_lists", models.SUM, {"x": pa.array([[1, 2, 3]], pa.list_(pa.float32(), 3))}, {},
     {"y": [6.0]}),
    ("booleans", models.SUM, {"p": [True], "q": [False], "r": [True]}, {}, {"y": [2.0]}),
    ("dictionary", models.TEXT, {"s": pa.array(["u", "v", "u"]).dictionary_encode()}, {},
     {"t": ["u", "v", "u"]}),
    ("strings", models.TEXT, {"s": pa.array(["ä", ""], pa.large_string())}, {}, {"t": ["ä", ""]}),
    ("padded", models.TOKENS, {"ids": [[1, 2], [3], []]}, {"padding": {"ids": 0}, "batch_rows": 3},
     {"same": [[1, 2], [3, 0], [0, 0]], "length": [3, 3, 0]}),
    ("maps", models.LABELS, {"x": [[1, 2], [3, 4]]}, {},
     {"y": [[(5, 1.0), (7, 2.0)], [(5, 3.0), (7, 4.0)]]}),
    ("constants", models.CONSTANT, {"x": [1.0, 2.0]}, {"constants": {"scale": np.float32(3)}},
     {"y": [3.0, 6.0]}),
    ("renamed", models.DOUBLE, AB, {"outputs": {"c": "twice"}}, {"twice": [3.0, -4.0, 6.0]}),
    ("chosen", models.WHOLE, {"x": [1.0]}, {"outputs": ["z"]}, {"z": [-1.0]}),
    ("fixed_rows", models.FOUR, {"x": [[1.0, 2], [3, 4], [5, 6], [7, 8], [9, 10]]}, {},
     {"y": [[-1, -2], [-3, -4], [-5, -6], [-7, -8], [-9, -10]]}),
    ("no_rows", models.SUM, {"x": pa.array([], pa.list_(pa.float32(), 3))}, {}, {"y": []}),
    ("nan", models.SUM, {"p": [1.0], "q": [2.0], "r": pa.array([None], pa.float64())},
     {"nulls": "nan"}, {"y": ["nan"]}),
    ("null_rows", models.DOUBLE, {"a": [1.0, None, 3.0], "b": [1, 2, None]}, {"nulls": "null"},
     {"c": [2.0, None, None], "d": [[1, 1], None, None]}),
    ("null_in_list", models.SUM, {"x": [[1.0, 2, None], [4, 5, 6]]}, {"nulls": "null"},
     {"y": [None, 15.0]}),
    ("views", models.TEXT, {"s": pa.array(["ä", None], pa.string_view())}, {"nulls": "null"},
     {"t": ["ä", None]}),
    ("runs", models.DOUBLE,
     {"a": pc.run_end_encode(pa.array([1.0, 1.0, None])), "b": [1, 1, 2]}, {"nulls": "null"},
     {"c": [2.0, 2.0, None], "d": [[1, 1], [1, 1], None]}),
    ("null_entry", models.DOUBLE,
     {"a": pa.DictionaryArray.from_arrays([0, 1, 0], pa.array([1.0, None])), "b": [1, 2, 3]},
     {"nulls": "null"}, {"c": [2.0, None, 2.0], "d": [[1, 1], None, [3, 3]]}),
    ("nan_rows", models.SUM, {"x": pa.array([[1, 2, 3], None], pa.list_(pa.float32(), 3))},
     {"nulls": "nan"}, {"y": [6.0, "nan"]}),
    ("nan_bytes", models.SUM, {"x": pa.array([b"abc", None], pa.binary(3))},
     {"nulls": "nan"}, {"y": [294.0, "nan"]}),
    ("nan_booleans", models.SUM, {"p": [True], "q": [1], "r": pa.array([None], pa.bool_())},
     {"nulls": "nan"}, {"y": ["nan"]}),
    ("all_null", models.SUM, {"x": pa.array([None], pa.list_(pa.float32(), 3))},
     {"nulls": "null"}, {"y": [None]}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "table", "scoring", "expected"), [r[1:] for r in ROWS],
                         ids=[r[0] for r in ROWS])  # fmt: skip
def test_rows(model: bytes, table: dict, scoring: dict, expected: dict) -> None:
    """The columns of the table stay, the outputs follow."""
    scored = predict(pa.table(table), model, **scoring)
    assert scored.column_names == [*table, *expected]
    for name, values in expected.items():
        found = scored.column(name).to_pylist()
        assert ["nan" if isinstance(v, float) and v != v else v for v in found] == values


def test_images() -> None:
    """Tensors of fixed shape are read and made without copies."""
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES)
    scored = predict(pa.table({"x": column}).slice(1, 2), models.IMAGE, keep=False, batch_rows=4)
    result = scored.column("y").chunk(0).to_numpy_ndarray()
    np.testing.assert_array_equal(result, IMAGES[1:3].transpose(0, 2, 1))


def test_permuted_tensors() -> None:
    """A tensor type may store its axes in another order than it has them."""
    stored = np.ascontiguousarray(IMAGES.transpose(0, 2, 1))
    kind = pa.fixed_shape_tensor(pa.uint8(), (3, 2), permutation=[1, 0])
    storage = pa.FixedSizeListArray.from_arrays(pa.array(stored.ravel()), 6)
    column = pa.ExtensionArray.from_storage(kind, storage)
    scored = predict(pa.table({"x": column}), models.IMAGE, lists=True)
    assert scored.column("y").to_pylist() == stored.tolist()


FAULTS: list[tuple[str, bytes, dict[str, Any], dict[str, Any], str]] = [
    ("no_column", models.DOUBLE, {"a": [1.0]}, {}, "no column for the input b"),
    ("misspelt", models.DOUBLE, {"aa": [1.0], "b": [1]}, {"columns": {"a": "aaa"}}, "mean aa"),
    ("no_input", models.SUM, {"x": [[1.0]]}, {"columns": {"y": "x"}}, "not an input of the model"),
    ("features", models.SUM, {"p": [1.0]}, {"columns": {"x": ["p"]}}, "3 features, and 1 columns"),
    ("text", models.SUM, {"x": ["1"]}, {}, "column x is a string"),
    ("number_for_text", models.TEXT, {"s": [1]}, {}, "takes string"),
    ("fraction", models.DOUBLE, {"a": [1.0], "b": [1.5]}, {}, "column b has 1.5"),
    ("too_large", models.IMAGE, {"x": [[[1, 2, 3], [4, 5, 256]]]}, {}, "column x has 256"),
    ("ragged", models.TOKENS, {"ids": [[1], [1, 2]]}, {}, "lists of 1 to 2 elements"),
    ("nulls", models.DOUBLE, {"a": [1.0, 2.0], "b": [1, None]}, {}, "1 nulls, the first in row 1"),
    ("nan_in_integers", models.DOUBLE, {"a": [1.0], "b": pa.array([None], pa.int64())},
     {"nulls": "nan"}, "column b has 1 nulls"),
    ("null_list", models.SUM, {"x": pa.array([None], pa.list_(pa.float32()))},
     {"nulls": "nan"}, "not for whole lists"),
    ("records", models.SUM, {"x": [{"a": 1}]}, {}, "column x is a struct"),
    ("2^63", models.DOUBLE, {"a": [1.0], "b": [2.0**63]}, {}, "column b has 9.2"),
    ("dates", models.SUM, {"x": pa.array([0], pa.timestamp("s"))}, {}, "timestamp"),
    ("whole", models.WHOLE, {"x": [1.0, 2.0]}, {}, r"output y has shape \[\] for 1 rows"),
    ("no_output", models.SUM, {"x": [[1.0, 2, 3]]}, {"outputs": ["z"]}, "not an output"),
    ("clash", models.SUM, {"x": [[1.0, 2, 3]], "y": [1]}, {}, "are named y"),
    ("keep", models.SUM, {"x": [[1.0, 2, 3]]}, {"keep": ["z"]}, "not a column of the table"),
    ("rank", models.DOUBLE, {"a": [[1.0, 2.0]], "b": [1]}, {}, "row of column a has shape"),
    ("joined_lists", models.SUM, {"p": [[1.0]], "q": [1.0]}, {"columns": {"x": ["p", "q", "q"]}},
     "only columns of single values"),
    ("constants", models.SUM, {"x": [[1.0, 2, 3]]}, {"constants": {"z": 1}}, "constants has z"),
    ("policy", models.SUM, {"x": [[1.0, 2, 3]]}, {"nulls": "drop"}, "nulls is 'drop'"),
    ("batch_rows", models.SUM, {"x": [[1.0, 2, 3]]}, {"batch_rows": 0}, "must be positive"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "table", "scoring", "match"), [r[1:] for r in FAULTS],
                         ids=[r[0] for r in FAULTS])  # fmt: skip
def test_faults(model: bytes, table: dict, scoring: dict, match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        predict(pa.table(table), model, **scoring)


@given(
    chunks=st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=9), max_size=5),
    rows=st.sampled_from([None, 1, 3, 100]),
    begin=st.integers(0, 10),
)
@settings(deadline=None, max_examples=60)
def test_chunks_and_batches_do_not_matter(
    chunks: list[list[float]], rows: int | None, begin: int
) -> None:
    a = pa.chunked_array([pa.array(chunk, pa.float32()) for chunk in chunks], pa.float32())
    table = pa.table({"a": a, "b": pa.array(range(len(a)), pa.int64())}).slice(begin)
    scored = predict(table, models.DOUBLE, batch_rows=rows)
    assert scored.column("c").to_pylist() == [2 * x for x in table.column("a").to_pylist()]
    assert scored.column("d").to_pylist() == [[i, i] for i in table.column("b").to_pylist()]


def test_columns_are_views() -> None:
    """A column of the input's type is fed without a copy, and an output is not copied either."""
    from sardonyx.arrow import columns, read

    values = np.arange(1000, dtype=np.float32)
    table = pa.table({"a": pa.array(values)}).slice(10, 100)
    feed = columns.Feed(columns.TableInput("a", by_name("f32"), (None,)), ("a",), False)
    assert np.shares_memory(read.read_feed(feed, table, {}), values)


def test_schema_is_that_of_the_result() -> None:
    table = pa.table(AB)
    predictor = Predictor(models.DOUBLE)
    assert predictor.schema(table.schema) == predictor(table).schema


def test_unpickled_predictors_share_a_session() -> None:
    data = pickle.dumps(Predictor(models.SUM, Scoring(keep=False)))
    first, second = pickle.loads(data), pickle.loads(data)
    assert first is second
    assert first(pa.table({"x": [[1.0, 2, 3]]})).to_pydict() == {"y": [6.0]}


def test_packs_are_shared_through_a_folder(tmp_path: Any) -> None:
    """The first process packs, and maps what it wrote; the marker stays for others."""
    for _ in range(2):
        predictor = Predictor(models.SUM, pack_cache=str(tmp_path))
        assert predictor(pa.table({"x": [[1.0, 2, 3]]})).column("y").to_pylist() == [6.0]
    assert len(list(tmp_path.glob("*.packed"))) == 1


def test_world_writable_pack_folders_are_refused(tmp_path: Any) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidArgument, match="others than this user can write"):
        Predictor(models.SUM, pack_cache=str(tmp_path))(pa.table({"x": [[1.0, 2, 3]]}))


def feed_times(seconds_per_row: dict[int, float]) -> list[int]:
    """The sizes that are chosen if a row takes so long with so many rows."""
    chooser, sizes = BatchRows(), []
    for _ in range(300):
        sizes.append(chooser.rows)
        chooser.observe(chooser.rows, seconds_per_row[chooser.rows] * chooser.rows, 0)
    return sizes


def test_batch_size_grows_while_rows_get_cheaper() -> None:
    times = {1: 1e-4, 4: 5e-5, 16: 3e-5, 64: 2.96e-5, 256: 4e-5, 1024: 5e-5}
    assert feed_times(times)[-1] == 16
    times = {1: 1e-4, 4: 2e-4, 16: 3e-5, 64: 3e-5, 256: 3e-5}
    assert feed_times(times)[-1] == 16, "one slow size may be noise"
    assert feed_times({1: 0.3})[-1] == 1, "a run does not take seconds"


def test_batch_size_does_not_depend_on_runs_that_were_interrupted() -> None:
    chooser, n = BatchRows(), 0
    while chooser.rows < 1024:
        seconds = 1e-4 + 1e-6 * chooser.rows
        chooser.observe(chooser.rows, seconds if n % 4 == 3 else 0.02, 0)  # every fourth is not
        n += 1
        assert n < 100
