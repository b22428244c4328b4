"""Contents of saved files, and errors when they cannot be written."""

from __future__ import annotations

import os
import resource
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx.save
from sardonyx.errors import Fail, InternalError, InvalidArgument
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.load.model import Model
from sardonyx.passes import PassOptions, lower, optimize
from sardonyx.save import SaveOptions, save
from tests.save.models import f32, functions, opset_11, strings, text, with_tensor
from tests.save.test_round import run


def loaded(model: Any) -> Model:
    """A model as it is when it is saved without optimizing."""
    made = load(model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model))
    infer(made.graph)
    return made


def joins(*arrays: Any) -> onnx.ModelProto:
    """A model that applies all these weights to its input."""
    names = [f"w{i}" for i in range(len(arrays))]
    node = helper.make_node("Concat", ["x", *names], ["y"], axis=0)
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [n]) for n in ("x", "y")]
    weights = [numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)]
    graph = helper.make_graph([node], "join_kinds", info[:1], info[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def ranges(path: Path) -> dict[str, dict[str, str]]:
    """The external data entries of every initializer that has some."""
    model = onnx.load(path, load_external_data=False)
    found = {t.name: {e.key: e.value for e in t.external_data} for t in model.graph.initializer}
    return {name: entries for name, entries in found.items() if entries}


def test_weights_are_aligned_and_small_ones_stay(tmp_path: Path) -> None:
    model = joins(f32(300), f32(101), f32(1 << 18), f32(300) + 1)
    save(loaded(model), SaveOptions(str(tmp_path / "m.onnx"), "m.data", 1000))
    found = ranges(tmp_path / "m.onnx")
    assert list(found) == ["w0", "w2", "w3"]
    assert found["w0"] == {"location": "m.data", "offset": "0", "length": "1200"}
    assert found["w2"] == {"location": "m.data", "offset": "4096", "length": str(1 << 20)}
    assert int(found["w3"]["offset"]) == 4096 + (1 << 20)
    assert (tmp_path / "m.data").stat().st_size == 4096 + (1 << 20) + 1200
    assert int(found["w3"]["offset"]) % 64 == 0


def test_offsets_are_rounded_up_to_64(tmp_path: Path) -> None:
    save(loaded(joins(f32(65), f32(300))), SaveOptions(str(tmp_path / "m.onnx"), "m.data", 1))
    assert ranges(tmp_path / "m.onnx")["w1"]["offset"] == "320"
    assert (tmp_path / "m.data").read_bytes()[260:320] == bytes(60)


def test_a_weight_with_two_names_is_written_once(tmp_path: Path) -> None:
    model = loaded(joins(f32(300), f32(300)))
    _, first, second = next(iter(model.graph.nodes)).inputs
    assert first is not None
    assert second is not None
    second.fact = first.fact
    save(model, SaveOptions(str(tmp_path / "m.onnx"), "m.data"))
    assert (tmp_path / "m.data").stat().st_size == 1200
    x = f32(300)
    got = run(onnxruntime, tmp_path / "m.onnx", {"x": x})
    np.testing.assert_array_equal(got[0], np.concatenate([x, x, x]))


def test_a_default_shares_the_bytes_of_a_constant(tmp_path: Path) -> None:
    model = text("""<ir_version: 8, opset_import: ["": 13]>
        m (float[100] x, float[100] d) => (float[100] y) { a = Add (x, d) y = Add (a, w) }""")
    with_tensor(with_tensor(model, "d", f32(100)), "w", f32(100))
    made = loaded(model)
    value, const = next(iter(made.graph.defaults.items()))
    other = next(n.inputs[1] for n in made.graph.nodes if n.inputs[1] is not value)
    assert other is not None
    assert other.const is not None
    made.graph.defaults[value] = other.const
    save(made, SaveOptions(str(tmp_path / "m.onnx"), "m.data", 1))
    found = ranges(tmp_path / "m.onnx")
    assert found["d"] == found["w"]
    assert const is not other.const


def test_strings_stay_in_the_model(tmp_path: Path) -> None:
    model, _ = strings()
    model.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.full(500, "word", object), "words")
    )
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "k"
    save(loaded(model), SaveOptions(str(tmp_path / "m.onnx"), "m.data", 1))
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_weights_of_a_body_are_external(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "big"], ["y"])],
        "body",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(f32(40, 10), "big")],
    )
    model = joins(f32(10))
    node = helper.make_node("If", ["c"], ["r"], then_branch=body, else_branch=body)
    model.graph.node.append(node)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, ["a", "b"]))
    save(loaded(model), SaveOptions(str(tmp_path / "m.onnx"), "m.data"))
    assert {e["length"] for e in ranges(tmp_path / "m.onnx").values()} == {"1600"}
    feeds = {"x": f32(10), "c": np.array(False)}
    got = run(onnxruntime, tmp_path / "m.onnx", feeds)
    np.testing.assert_array_equal(got[1], f32(10) + f32(40, 10))


def test_a_subfolder_may_hold_the_weights(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    save(loaded(joins(f32(300))), SaveOptions(str(tmp_path / "m.onnx"), "data/w.bin"))
    assert ranges(tmp_path / "m.onnx")["w0"]["location"] == "data/w.bin"
    assert len(run(onnxruntime, tmp_path / "m.onnx", {"x": f32(300)})) == 1


@pytest.mark.parametrize(
    "name", ["", "../w.bin", "/w.bin", "a/../../w.bin", "out/w.bin", ".", "w\0"]
)
def test_weights_do_not_leave_the_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "out").symlink_to(tmp_path)
    with pytest.raises(InvalidArgument, match="external_initializers_file_name is"):
        save(loaded(joins(f32(300))), SaveOptions(str(folder / "m.onnx"), name))
    assert os.listdir(folder) == ["out"]


def test_weights_do_not_replace_the_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="the model itself"):
        save(loaded(joins(f32(300))), SaveOptions(str(tmp_path / "m.onnx"), "./m.onnx"))


def test_a_model_over_2_gib_needs_a_data_file(tmp_path: Path) -> None:
    count = 2**29
    model = text("""<ir_version: 8, opset_import: ["": 13]>
        m (float[n] x) => (float[n] y) { y = Add (x, w) }""")
    weight = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[count])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="hole.bin")
    (tmp_path / "big.onnx").write_bytes(model.SerializeToString())
    with open(tmp_path / "hole.bin", "wb") as file:
        file.truncate(count * 4)
    wanted = f"{2**31 - 1}\n.*optimized_model_external_initializers_file_name"
    with pytest.raises(InvalidArgument, match=wanted):
        save(loaded(tmp_path / "big.onnx"), SaveOptions(str(tmp_path / "m.onnx")))
    wanted = f"{2**31 - 1}\n.*min_size_in_bytes, which is {2**40}"
    with pytest.raises(InvalidArgument, match=wanted):
        save(loaded(tmp_path / "big.onnx"), SaveOptions(str(tmp_path / "m.onnx"), "w.bin", 2**40))
    assert sorted(os.listdir(tmp_path)) == ["big.onnx", "hole.bin"]


def test_weights_are_not_held_in_memory(tmp_path: Path) -> None:
    (tmp_path / "big.onnx").write_bytes(
        joins(*(f32(1 << 20) for _ in range(12))).SerializeToString()
    )
    model = loaded(tmp_path / "big.onnx")
    tracemalloc.start()
    try:
        save(model, SaveOptions(str(tmp_path / "m.onnx")))
        save(model, SaveOptions(str(tmp_path / "n.onnx"), "n.bin"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert (tmp_path / "m.onnx").stat().st_size > 12 << 22


def test_a_model_may_replace_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(joins(f32(1 << 16), f32(300)).SerializeToString())
    want = run(onnxruntime, path, {"x": f32(1)})
    for data_file in ("m.data", "m.data", None):
        save(loaded(path), SaveOptions(str(path), data_file))
        np.testing.assert_array_equal(run(onnxruntime, path, {"x": f32(1)})[0], want[0])


@pytest.mark.parametrize("data_file", [None, "m.data"])
def test_missing_folders_are_named(data_file: str | None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("missing", "file"):
        path = str(tmp_path / folder / "m.onnx")
        with pytest.raises(Fail, match=f"could not be saved to {path}"):
            save(loaded(joins(f32(300))), SaveOptions(path, data_file))
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(InvalidArgument, match="is a folder"):
        save(loaded(joins(f32(300))), SaveOptions(str(tmp_path), data_file))


@pytest.mark.parametrize("data_file", [None, "m.data"])
def test_a_full_disk_leaves_nothing_behind(data_file: str | None, tmp_path: Path) -> None:
    model = loaded(joins(f32(1 << 18)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(Fail, match=r"could not be saved to .*/m\.onnx: File too large"):
            save(model, SaveOptions(str(tmp_path / "m.onnx"), data_file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == []


def test_metadata_is_kept(tmp_path: Path) -> None:
    model = joins(f32(2))
    model.producer_name, model.domain, model.model_version = "someone", "org.example", 7
    model.doc_string, model.graph.doc_string = "what it is", "what it does"
    model.metadata_props.add(key="b", value="2")
    model.metadata_props.add(key="a", value="schön")
    save(loaded(model), SaveOptions(str(tmp_path / "m.onnx")))
    saved = onnx.load(tmp_path / "m.onnx")
    assert (saved.producer_name, saved.producer_version) == ("sardonyx", sardonyx.__version__)
    assert (saved.domain, saved.model_version, saved.doc_string) == ("org.example", 7, "what it is")
    assert (saved.graph.name, saved.graph.doc_string) == ("join_kinds", "what it does")
    assert [(p.key, p.value) for p in saved.metadata_props] == [("b", "2"), ("a", "schön")]


@pytest.mark.parametrize(
    ("source", "opset", "ir"),
    [
        ("(float[2] x) => (float[2] y) { y = Relu (x) }", 13, 7),
        ("(float[2] x) => (float[2] y) { y = Reshape <allowzero = 1> (x, s) }", 14, 7),
        ("(float[2] x) => (int64[1] y) { y = Shape <start = 0> (x) }", 13, 7),
        ("(float[2] x) => (int64[1] y) { y = Shape <start = -1> (x) }", 15, 8),
        ("(float[2] x) => (float[2] y) { y = Gelu (x) }", 20, 9),
        ("(float[2] x) => (float8e4m3fn[2] y) { y = Cast <to = 17> (x) }", 19, 9),
        ("(int4[2] x) => (int4[2] y) { y = Identity (x) }", 21, 10),
        ("(float[2] x) => (float[2] y) { y = Swish (x) }", 24, 12),
        ("(int2[2] x) => (int2[2] y) { y = Identity (x) }", 25, 13),
    ],
)
def test_the_lowest_opset_and_ir_version(source: str, opset: int, ir: int, tmp_path: Path) -> None:
    model = text(f'<ir_version: 13, opset_import: ["": 26]> m {source}')
    save(loaded(with_tensor(model, "s", np.int64([2]))), SaveOptions(str(tmp_path / "m.onnx")))
    saved = onnx.load(tmp_path / "m.onnx")
    assert ({o.domain: o.version for o in saved.opset_import}, saved.ir_version) == (
        {"": opset},
        ir,
    )
    onnx.checker.check_model(saved, full_check=True)


@pytest.mark.parametrize(
    ("node", "opset", "shown"),
    [
        ("ReduceL2 (x, s)", 18, {"keepdims": 1, "noop_with_empty_axes": 0}),
        ("LeakyRelu (x)", 13, {"alpha": np.float32(0.01)}),
        ("LeakyRelu <alpha = 0.5> (x)", 13, {"alpha": 0.5}),
        ("Reshape (x, s)", 13, {}),  # allowzero is newer
        ("Cast <to = 1> (x)", 13, {"to": 1}),  # saturate is newer
        ("Shape (x)", 13, {}),
        ("Gather (x, s)", 13, {"axis": 0}),
    ],
)
def test_defaults_are_spelled_out(
    node: str, opset: int, shown: dict[str, Any], tmp_path: Path
) -> None:
    model = text(f'<ir_version: 8, opset_import: ["": 18]> m (float[2] x) => (y) {{ y = {node} }}')
    options = SaveOptions(str(tmp_path / "m.onnx"), spells_out=True)
    save(loaded(with_tensor(model, "s", np.int64([0]))), options)
    saved = onnx.load(tmp_path / "m.onnx")
    attributes = saved.graph.node[0].attribute
    assert {a.name: helper.get_attribute_value(a) for a in attributes} == shown
    assert saved.opset_import[0].version == opset
    onnx.checker.check_model(saved, full_check=True)


def test_old_models_keep_old_opsets(tmp_path: Path) -> None:
    model, _ = opset_11()
    save(loaded(model), SaveOptions(str(tmp_path / "m.onnx")))
    assert (
        onnx.load(tmp_path / "m.onnx").opset_import[0].version == 18
    )  # ReduceMean takes its axes so
    model, _ = functions()
    save(loaded(model), SaveOptions(str(tmp_path / "m.onnx")))
    saved = onnx.load(tmp_path / "m.onnx")
    assert [(o.domain, o.version) for o in saved.opset_import] == [("", 13)]
    assert not saved.functions


def test_an_overridden_dim_is_written(tmp_path: Path) -> None:
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.onnx")
    options.add_free_dimension_override_by_name("x", 5)
    sardonyx.InferenceSession(joins(f32(1)).SerializeToString(), options)
    saved = onnx.load(tmp_path / "m.onnx")
    assert saved.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 5


def test_intermediate_shapes_are_written(tmp_path: Path) -> None:
    model = text("""<ir_version: 8, opset_import: ["": 13]>
        m (float["batch size", 4] x) => (float[k, 4] y) {
            a = Relu (x)
            b = Concat <axis = 0> (a, a)
            y = Neg (b)
        }""")
    save(loaded(model), SaveOptions(str(tmp_path / "m.onnx")))
    saved = onnx.load(tmp_path / "m.onnx")
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in saved.graph.value_info
    }
    assert shapes == {"a": ["batch size", 4], "b": ["2*'batch size'", 4]}


def test_nothing_is_assumed_of_sizes(tmp_path: Path) -> None:
    model = text("""<ir_version: 8, opset_import: ["": 17]>
        m (float[a, 4] x, float[b, 4] y) => (float[c, 4] z) {
            s = Add (x, y)
            t = Shape (s)
            z = Expand (x, t)
        }""")
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.onnx")
    sardonyx.InferenceSession(model.SerializeToString(), options)
    for rows in (1, 3):
        feeds = {"x": f32(rows, 4), "y": f32(3, 4)}
        assert run(onnxruntime, tmp_path / "m.onnx", feeds)[0].shape == (3, 4)


def test_an_input_that_is_an_output(tmp_path: Path) -> None:
    model = joins(f32(2))
    model.graph.output.append(model.graph.input[0])
    save(loaded(model), SaveOptions(str(tmp_path / "m.onnx")))
    got = run(sardonyx, tmp_path / "m.onnx", {"x": f32(2)})
    np.testing.assert_array_equal(got[1], f32(2))


def test_our_own_ops_never_reach_a_file(tmp_path: Path) -> None:
    model = text("""<ir_version: 8, opset_import: ["": 15]>
        m (float[n, 4] x) => (float[n, 4] y, int64[2] s) { y = Relu (x) s = Shape (x) }""")
    made = loaded(model)
    optimize(made.graph, PassOptions())
    lower(made.graph, PassOptions())
    with pytest.raises(InternalError, match="is an internal op"):
        save(made, SaveOptions(str(tmp_path / "m.onnx")))
    assert os.listdir(tmp_path) == []
