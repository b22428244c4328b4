"""Artifacts and the blocks that they are built of."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.training import artifacts, onnxblock
from sardonyx.training.api import CheckpointState, Module
from sardonyx.training.artifacts import LossType, OptimType, generate_artifacts
from sardonyx.training.checkpoint import load_state
from sardonyx.training.onnxblock import blocks
from tests.training.models import WEIGHTS, batch, classifier, generate, load


def built(block: onnxblock.Block, n_inputs: int = 1, element_type: int = TensorProto.FLOAT):
    """The model of a block on inputs of shape [2, 3]."""

    class Forward(onnxblock.ForwardBlock):
        def build(self, *names):
            return block(*names)

    forward = Forward()
    names = [f"x{i}" for i in range(n_inputs)]
    with onnxblock.empty_base(17) as accessor:
        accessor.model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
        for name in names:
            info = helper.make_tensor_value_info(name, element_type, [2, 3])
            accessor.model.graph.input.append(info)
        forward(*names)
        assert accessor.model == forward.to_model_proto()
    return forward.to_model_proto()


def run(model: onnx.ModelProto, *arrays: np.ndarray):
    session = sardonyx.InferenceSession(model)
    feeds = {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=False)}
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("mode", [0, 1])
def test_running_statistics_that_are_not_updated(mode, tmp_path, caplog):
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, 3] x) => (float[n, 3] y) {{
        [norm] {"y, m, v" if mode else "y"} =
            BatchNormalization<training_mode = {mode}>(x, s, b, mean, var) }}"""
    model = onnx.parser.parse_model(text)
    weights = {name: np.ones(3, np.float32) for name in ("s", "b", "mean", "var")}
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    generate_artifacts(
        model, ["s", "b"], ["mean", "var"], LossType.MSELoss, artifact_directory=tmp_path
    )
    said = [
        r.getMessage() for r in caplog.records if "running statistics of norm" in r.getMessage()
    ]
    assert len(said) == mode


X = np.float32([[0.5, 1, 2], [3, 4, 5]])
Y = np.float32([[2, 2, 2], [1, 1, 1]])


@pytest.mark.parametrize(
    ("block", "arrays", "expected"),
    [
        (blocks.Add(), (X, Y), X + Y),
        (blocks.Sub(), (X, Y), X - Y),
        (blocks.Mul(), (X, Y), X * Y),
        (blocks.Div(), (X, Y), X / Y),
        (blocks.Pow(3.0), (X,), X**3),
        (blocks.ReduceMean(), (X,), X.mean(keepdims=True)),
        (blocks.ReduceSum(keepdims=False), (X,), X.sum()),
        (blocks.Sigmoid(), (X,), 1 / (1 + np.exp(-X))),
        (blocks.Log(), (X,), np.log(X)),
        (blocks.Neg(), (X,), -X),
        (blocks.Abs(), (-X,), X),
        (blocks.Cast(TensorProto.INT64), (X,), X.astype(np.int64)),
        (blocks.Clip(1, 4), (X,), X.clip(1, 4)),
        (blocks.Clip(clip_max=2), (X,), X.clip(None, 2)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, blocks.Block) else "",
)
def test_blocks(block, arrays, expected):
    np.testing.assert_allclose(run(built(block, len(arrays)), *arrays), expected, rtol=1e-6)


def test_label_encoder():
    block = blocks.LabelEncoder(default_int64=9, keys_int64s=[1, 2], values_int64s=[10, 20])
    x = np.array([[1, 2, 3], [2, 1, 0]])
    assert run(built(block, 1, TensorProto.INT64), x).tolist() == [[10, 20, 9], [20, 10, 9]]
    with pytest.raises(TypeError, match="LabelEncoder has no argument 'keys_int32s'"):
        blocks.LabelEncoder(keys_int32s=[1])


def test_linear():
    model = built(blocks.Linear(3, 4))
    weight, bias = map(numpy_helper.to_array, model.graph.initializer)
    assert (weight.shape, bias.shape) == ((3, 4), (4,))
    np.testing.assert_allclose(run(model, X), X @ weight + bias, rtol=1e-5, atol=1e-6)
    assert len(built(blocks.Linear(3, 4, bias=False)).graph.initializer) == 1


class _Loss(onnxblock.Block):
    """The loss of a value that is a graph output."""

    def __init__(self, loss):
        self.loss = loss

    def build(self, name):
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])
        self.base.graph.output.append(info)
        return self.loss(name)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


WEIGHT = np.float32([0.5, 1, 2])


@pytest.mark.parametrize(
    ("loss", "elements"),
    [
        (onnxblock.loss.MSELoss, lambda x, y: (x - y) ** 2),
        (onnxblock.loss.L1Loss, lambda x, y: abs(x - y)),
        (
            onnxblock.loss.BCEWithLogitsLoss,
            lambda x, y: -(y * np.log(_sigmoid(x)) + (1 - y) * np.log(1 - _sigmoid(x))),
        ),
    ],
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(loss, elements, reduction):
    model = built(_Loss(loss(reduction=reduction)))
    assert [i.name for i in model.graph.input] == ["x0", "target"]
    y = np.float32([[0, 1, 0], [1, 1, 0]])
    expected = elements(X, y)
    expected = expected if reduction == "none" else getattr(expected, reduction)()
    np.testing.assert_allclose(run(model, X, y), expected, rtol=1e-5)


def test_weights_of_binary_cross_entropy():
    y = np.float32([[0, 1, 0], [1, 1, 0]])
    loss = onnxblock.loss.BCEWithLogitsLoss(weight=WEIGHT, pos_weight=WEIGHT * 2)
    s = _sigmoid(X)
    expected = -WEIGHT * (2 * WEIGHT * y * np.log(s) + (1 - y) * np.log(1 - s))
    np.testing.assert_allclose(run(built(_Loss(loss)), X, y), expected.mean(), rtol=1e-5)


def test_weights_of_cross_entropy():
    loss = onnxblock.loss.CrossEntropyLoss(weight=WEIGHT, ignore_index=0)
    model = built(_Loss(loss))
    labels = np.array([2, 0])
    logs = X - np.log(np.exp(X).sum(1, keepdims=True))
    np.testing.assert_allclose(run(model, X, labels), -logs[0, 2], rtol=1e-5)


@pytest.mark.parametrize("name", ["MSELoss", "L1Loss", "BCEWithLogitsLoss", "CrossEntropyLoss"])
def test_an_unknown_reduction(name):
    with pytest.raises(RuntimeError, match="'max' is not supported; use one of mean, sum, none"):
        getattr(onnxblock.loss, name)(reduction="max")


def test_a_base_is_needed_and_only_one():
    with pytest.raises(RuntimeError, match=r"inside of onnxblock.base\(model\) or empty_base"):
        blocks.Add()("a", "b")
    with onnxblock.base(classifier()), pytest.raises(RuntimeError, match="a base model already"):
        onnxblock.empty_base().__enter__()
    with pytest.raises(RuntimeError, match="the base model is None"):
        onnxblock.base(None).__enter__()
    with onnxblock.empty_base() as accessor:  # the one before was left
        assert not accessor.has_path
        with pytest.raises(RuntimeError, match="not given with its path"):
            _ = accessor.path


def test_a_block_that_makes_an_invalid_model():
    with onnxblock.base(classifier()), pytest.raises(onnx.checker.ValidationError):
        blocks.Add()("scores", "nothing")


def test_the_name_of_a_temporary_file():
    class Named(onnxblock.Block):
        def build(self):
            """Append nothing."""

    assert Named("other.onnx")
    with pytest.raises(RuntimeError, match=r"a relative path, got /tmp/a\.onnx"):
        Named("/tmp/a.onnx")


def test_unknown_names():
    with onnxblock.base(classifier()):
        with pytest.raises(LookupError, match="has no output 'score'; it has scores"):
            onnxblock.loss.CrossEntropyLoss()("score")
        with pytest.raises(LookupError, match="has no output 'y'"):
            blocks.InputLike("y")()
        assert blocks.InputLike("x")("again") == "again"


def test_models_before_they_are_built():
    block = artifacts._TrainingModel(blocks.PassThrough(), None, [])
    for method in (block.to_model_proto, block.parameters):
        with pytest.raises(RuntimeError, match="call the block first"):
            method()
    with pytest.raises(RuntimeError, match="call the block first"):
        onnxblock.optim.SGD().to_model_proto()


def test_a_training_model(tmp_path):
    generate(tmp_path, frozen_params=["b1"], additional_output_names=["active"])
    model = onnx.load(tmp_path / "training_model.onnx")
    onnx.checker.check_model(model)
    trained = ["w1", "w2", "b2"]
    buffers = [f"{name}_grad.accumulation.buffer" for name in trained]
    names = ["x", "labels", *WEIGHTS, *buffers, "lazy_reset_grad"]
    assert [i.name for i in model.graph.input] == names
    flags = [f"{name}_grad.accumulation.out" for name in trained]
    assert [o.name for o in model.graph.output][1:] == ["active", *flags]
    assert not any(t.name in WEIGHTS for t in model.graph.initializer)
    forward = onnx.load(tmp_path / "eval_model.onnx")
    assert [i.name for i in forward.graph.input] == ["x", "labels", *WEIGHTS]
    state = load_state(tmp_path / "checkpoint")
    assert {n: p.requires_grad for n, p in state.parameters.items()} == {
        name: name != "b1" for name in WEIGHTS
    }


def test_dropout_and_batch_norm_in_evaluation(tmp_path):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[2, 3] x) => (float[2, 3] y)
        <float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0}, float[3] mean = {0, 0, 0},
         float[3] var = {1, 1, 1}, float ratio = {0.5}, bool mode = {1}> {
            n, m, v = BatchNormalization <training_mode = 1> (x, scale, bias, mean, var)
            y = Dropout(n, ratio, mode)
        }""")
    generate_artifacts(
        model, requires_grad=["scale", "bias"], loss=LossType.MSELoss, artifact_directory=tmp_path
    )
    nodes = {n.op_type: n for n in onnx.load(tmp_path / "eval_model.onnx").graph.node}
    assert nodes["Dropout"].input[2] == ""
    assert [a.i for a in nodes["BatchNormalization"].attribute if a.name == "training_mode"] == [0]
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    zeros = np.zeros((2, 3), np.float32)
    np.testing.assert_allclose(module.eval()(X[:, ::-1], zeros), (X**2).mean(), rtol=1e-4)
    assert not (tmp_path / "optimizer_model.onnx").exists()


def test_a_path_with_external_data(tmp_path):
    onnx.save(classifier(), tmp_path / "net.onnx", save_as_external_data=True, size_threshold=0)
    for path in (tmp_path / "net.onnx", str(tmp_path / "net.onnx")):
        generate(tmp_path, path, prefix="p_")
        state = load_state(tmp_path / "p_checkpoint")
        expected = numpy_helper.to_array(classifier().graph.initializer[0])
        np.testing.assert_array_equal(state.parameters["w1"].data, expected)


def test_without_parameters_to_train(tmp_path):
    generate_artifacts(classifier(), loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path)
    model = onnx.load(tmp_path / "training_model.onnx")
    assert [i.name for i in model.graph.input] == ["x", "labels", *WEIGHTS, "lazy_reset_grad"]
    with pytest.raises(InvalidArgument, match="the optimizer has no parameters to train"):
        generate(tmp_path, requires_grad=[])


def test_a_gradient_of_an_input(tmp_path):
    generate(tmp_path, requires_grad=["x", "w1"])
    names = [o.name for o in onnx.load(tmp_path / "training_model.onnx").graph.output]
    assert names[1:] == ["x_grad.accumulation.out", "w1_grad.accumulation.out"]


def test_the_inputs_of_the_loss(tmp_path):
    model = classifier()
    model.graph.output.append(helper.make_tensor_value_info("active", 1, ["batch", 5]))
    generate(tmp_path, model, loss_input_names=["active"], loss=LossType.MSELoss,
             requires_grad=["w1", "b1"])  # fmt: skip
    inputs = onnx.load(tmp_path / "eval_model.onnx").graph.input
    assert [d.dim_value for d in inputs[1].type.tensor_type.shape.dim][1] == 5


def test_the_checkpoint_in_a_model(tmp_path):
    generate(tmp_path)
    other = classifier()
    for tensor in other.graph.initializer:
        zeros = np.zeros_like(numpy_helper.to_array(tensor))
        tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))
    onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", other)
    x, _ = batch()
    np.testing.assert_array_equal(run(other, x), run(classifier(), x))
    with pytest.raises(InvalidArgument, match=r"w1 is FLOAT\[3, 6\], and in the checkpoint FLOAT"):
        onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", classifier(width=6))
    generate(tmp_path, nominal_checkpoint=True)
    with pytest.raises(InvalidArgument, match="the checkpoint is nominal"):
        onnxblock.load_checkpoint_to_model(tmp_path / "nominal_checkpoint", other)
    with pytest.raises(RuntimeError, match="no parameters to save"):
        onnxblock.save_checkpoint(None, tmp_path / "c")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"requires_grad": ["w1", "w9"]}, InvalidArgument, "names w9, and the model has no such"),
        ({"requires_grad": ["w1"], "frozen_params": ["w1"]}, RuntimeError, "both name w1"),
        ({"loss": "mse"}, RuntimeError, "the loss must be a LossType or a Block, got str"),
        ({"optimizer": "adam"}, TypeError, "an OptimType or an onnxblock.Block, got str"),
        ({"additional_output_names": "scores"}, RuntimeError, "a list of names, got str"),
        ({"additional_output_names": ["nothing"]}, LookupError, "the type of 'nothing' is not"),
        ({"ort_format": True}, NotImplemented, "models in the .ort format are not written"),
        ({"custom_op_library": __file__}, NotImplemented, "a library for onnxruntime's C"),
        ({"custom_op_library": "/missing.so"}, RuntimeError, "there is no library"),
        ({"loss": None}, InvalidArgument, "a loss must have one element"),
    ],
)
def test_wrong_arguments(options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        generate(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_frozen_names_that_match_nothing(tmp_path, caplog):
    """onnxruntime ignores them: exporters leave out parameters that no node reads."""
    generate(tmp_path, frozen_params=["b9"])
    assert "frozen_params names b9, not in the model" in caplog.text


def test_arguments_that_are_not_models(tmp_path):
    with pytest.raises(RuntimeError, match="a ModelProto or a path, got bytes"):
        generate_artifacts(b"", artifact_directory=tmp_path)


def test_an_output_may_be_called_like_a_gradient(tmp_path):
    model = classifier()
    model.graph.node.append(helper.make_node("Relu", ["scores"], ["w2_grad"]))
    info = helper.make_tensor_value_info("w2_grad", TensorProto.FLOAT, ["batch", 2])
    model.graph.output.append(info)
    names = {"loss_input_names": ["scores"], "additional_output_names": ["w2_grad"]}
    folders = [tmp_path / name for name in ("named", "plain")]
    for folder, options in zip(folders, ({"model": model, **names}, {}), strict=True):
        folder.mkdir()
        generate(folder, **options)
    (state, module, optimizer), (other, plain, updates) = map(load, folders)
    for _ in range(2):
        loss, positive = module(*batch())
        assert (positive >= 0).all()
        np.testing.assert_array_equal(loss, plain(*batch()))
        np.testing.assert_array_equal(state.parameters["w2"].grad, other.parameters["w2"].grad)
        optimizer.step()
        updates.step()


@pytest.mark.parametrize("optimizer", list(OptimType))
def test_optimizer_models(optimizer, tmp_path):
    generate(tmp_path, optimizer=optimizer)
    model = onnx.load(tmp_path / "optimizer_model.onnx")
    op = {"AdamW": "AdamWOptimizer", "SGD": "SGDOptimizerV2"}[optimizer.name]
    assert [(n.domain, n.op_type) for n in model.graph.node] == [("com.microsoft", op)]
    assert model.ir_version == 8  # that of opset 17


def test_a_folder_that_does_not_exist(tmp_path):
    model, folder = classifier(), tmp_path / "none"
    said = "the artifact .*none/.*.onnx cannot be written: No such file"
    with pytest.raises(FileNotFoundError, match=said):
        generate_artifacts(model, ["w1"], loss=LossType.CrossEntropyLoss, artifact_directory=folder)
