"""Module, Optimizer, LinearLRScheduler and CheckpointState."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.errors import Fail, InvalidArgument, NoSuchFile, NotImplemented
from sardonyx.training import onnxblock, ort_scheduler
from sardonyx.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from sardonyx.training.artifacts import LossType, OptimType
from tests.training.models import WEIGHTS, batch, classifier, generate, load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("artifacts"), frozen_params=["b1"])


def torch_step(n_steps: int = 1, **options):
    """Losses and weights of the same network in torch."""
    torch = pytest.importorskip("torch")
    tensors = {
        t.name: torch.tensor(onnx.numpy_helper.to_array(t).copy(), requires_grad=t.name != "b1")
        for t in classifier().graph.initializer
    }
    x, labels = map(torch.tensor, batch())
    optimizer = torch.optim.SGD([t for t in tensors.values() if t.requires_grad], **options)
    losses = []
    for _ in range(n_steps):
        hidden = torch.tanh(x @ tensors["w1"] + tensors["b1"])
        scores = hidden @ tensors["w2"] + tensors["b2"]
        loss = torch.nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: t.detach().numpy() for name, t in tensors.items()}


def test_sgd_is_that_of_torch(tmp_path):
    generate(tmp_path, frozen_params=["b1"], optimizer=OptimType.SGD)
    state, module, optimizer = load(tmp_path)
    optimizer.set_learning_rate(0.3)
    losses = []
    for _ in range(5):
        losses.append(float(module(*batch())))
        optimizer.step()
        module.lazy_reset_grad()
    expected, weights = torch_step(5, lr=0.3)
    np.testing.assert_allclose(losses, expected, atol=1e-6)
    for name, parameter in state.parameters:
        np.testing.assert_allclose(parameter.data, weights[name], atol=1e-6)


def test_gradients_accumulate_until_they_are_reset(folder):
    state, module, _ = load(folder)
    assert not state.parameters["w1"].grad.any()
    module(*batch())
    once = state.parameters["w1"].grad
    module(*batch())
    np.testing.assert_allclose(state.parameters["w1"].grad, 2 * once, rtol=1e-6)
    module.lazy_reset_grad()
    module(*batch())
    assert state.parameters["w1"].grad.tobytes() == once.tobytes()
    assert state.parameters["b1"].grad is None
    assert not state.parameters["b1"].requires_grad


def test_a_failed_step_leaves_gradients_of_zero(folder):
    state, module, optimizer = load(folder)
    x, labels = batch()
    module(x, labels)
    module.lazy_reset_grad()
    with pytest.raises(InvalidArgument, match="x"):
        module(x[:, :2], labels)
    assert not state.parameters["w1"].grad.any()
    before = state.parameters["w1"].data
    optimizer.step()
    assert (state.parameters["w1"].data == before).all()
    assert float(module(x, labels)) > 0
    assert state.parameters["w1"].grad.any()


def test_eval_changes_nothing(folder):
    state, module, _ = load(folder)
    trained = module(*batch())
    before = state.parameters["w1"].grad
    module.eval()
    assert module.training is False
    np.testing.assert_allclose(module(*batch()), trained, rtol=1e-6)
    assert (state.parameters["w1"].grad == before).all()
    assert module.train() is module
    assert module.training


def test_outputs_are_of_the_kind_of_the_inputs(tmp_path):
    generate(tmp_path, additional_output_names=["scores"])
    _, module, _ = load(tmp_path)
    x, labels = batch()
    loss, scores = module(x, labels)
    assert isinstance(loss, np.ndarray)
    assert (loss.shape, scores.shape) == ((), (4, 2))
    values = module(*map(sardonyx.OrtValue.ortvalue_from_numpy, (x, labels)))
    assert all(isinstance(value, sardonyx.OrtValue) for value in values)
    np.testing.assert_array_equal(values[1].numpy(), scores)
    assert module.input_names() == ["x", "labels"]
    assert module.output_names()[1] == "scores"


def test_parameters_as_one_vector(folder):
    state, module, optimizer = load(folder)
    assert module.get_parameters_size() == 3 * 5 + 5 * 2 + 2
    assert module.get_parameters_size(trainable_only=False) == 3 * 5 + 5 + 5 * 2 + 2
    before = module.get_contiguous_parameters()
    parts = [state.parameters[name].data.reshape(-1) for name in WEIGHTS]
    np.testing.assert_array_equal(before.numpy(), np.concatenate(parts))
    module(*batch())
    optimizer.step()
    assert (module.get_contiguous_parameters().numpy() != before.numpy()).any()
    module.copy_buffer_to_parameters(before, trainable_only=False)
    np.testing.assert_array_equal(module.get_contiguous_parameters().numpy(), before.numpy())
    with pytest.raises(InvalidArgument, match=r"float32\[32\], and the parameters are 27 elements"):
        module.copy_buffer_to_parameters(before)


def test_values_are_set_by_name(folder):
    state, module, _ = load(folder)
    first = module(*batch())
    state.parameters["b2"].data = np.float32([3, -3])
    assert state.parameters["b2"].data.tolist() == [3, -3]
    assert module(*batch()) != first
    state.parameters["b2"] = np.float32([1, 2])
    assert state.parameters["b2"].data.tolist() == [1, 2]
    state.parameters["b2"].data[:] = 9  # a copy
    assert state.parameters["b2"].data.tolist() == [1, 2]
    with pytest.raises(
        InvalidArgument, match=r"b2 is float32\[2\], and the new value float64\[3\]"
    ):
        state.parameters["b2"].data = np.ones(3)
    with pytest.raises(KeyError, match="there is no parameter b3; there are w1"):
        state.parameters["b3"]
    with pytest.raises(KeyError, match="there is no parameter b3"):
        state.parameters["b3"] = np.ones(3)
    assert "b2" in state.parameters
    assert len(state.parameters) == 4
    assert "requires_grad=True" in repr(state.parameters["b2"])


@pytest.mark.parametrize("value", [-1, 2**63 - 1, 0.1, "text", np.int32(4), np.float64(0.5), True])
def test_properties(value, folder, tmp_path):
    state, _, _ = load(folder)
    state.properties["p"] = value
    CheckpointState.save_checkpoint(state, tmp_path / "c")
    found = CheckpointState.load_checkpoint(tmp_path / "c").properties
    expected = float(np.float32(value)) if isinstance(value, float | np.floating) else value
    assert found["p"] == expected
    assert dict(found) == {"p": expected}
    assert len(found) == 1


def test_wrong_properties(folder):
    state, _, _ = load(folder)
    with pytest.raises(TypeError, match="the property p must be an int, float or str, got list"):
        state.properties["p"] = [1]
    with pytest.raises(InvalidArgument, match="does not fit into 64 bits"):
        state.properties["p"] = 2**63
    with pytest.raises(KeyError, match="there is no property p; there are none"):
        state.properties["p"]


def test_formats_of_checkpoints(folder, tmp_path):
    state, module, optimizer = load(folder)
    module(*batch())
    optimizer.step()
    for name in ("safetensors", "onnxruntime"):
        CheckpointState.save_checkpoint(state, tmp_path / name, True, format=name)
        loaded = CheckpointState.load_checkpoint(tmp_path / name)
        assert loaded.parameters["w1"].data.tobytes() == state.parameters["w1"].data.tobytes()
    with pytest.raises(InvalidArgument, match="safetensors or onnxruntime, got 'pickle'"):
        CheckpointState.save_checkpoint(state, tmp_path / "c", format="pickle")


def test_export_for_inference(folder, tmp_path):
    _, module, optimizer = load(folder)
    module(*batch())
    optimizer.step()
    path = tmp_path / "inference.onnx"
    module.export_model_for_inferencing(path, ["scores"])
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = sardonyx.InferenceSession(path)
    assert [i.name for i in session.get_inputs()] == ["x"]
    x, labels = batch()
    (scores,) = session.run(None, {"x": x})
    shifted = scores - scores.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(4), labels]
    np.testing.assert_allclose(losses.mean(), module.eval()(x, labels), rtol=1e-5)
    with pytest.raises(InvalidArgument, match="has no value 'score'"):
        module.export_model_for_inferencing(path, ["score"])
    with pytest.raises(InvalidArgument, match="a list of at least one name"):
        module.export_model_for_inferencing(path, [])


def test_the_rate_of_a_linear_schedule(folder):
    _, module, optimizer = load(folder)
    assert optimizer.get_learning_rate() == pytest.approx(1e-3)
    scheduler = LinearLRScheduler(optimizer, 2, 6, 0.4)
    rates = [optimizer.get_learning_rate()]
    module(*batch())
    for _ in range(7):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    np.testing.assert_allclose(rates, [0, 0.2, 0.4, 0.3, 0.2, 0.1, 0, 0], atol=1e-7)


def test_the_schedule_of_onnxruntime(folder):
    """Its Python class exchanges the two numbers of steps."""
    _, module, optimizer = load(folder)
    scheduler = ort_scheduler.LinearLRScheduler(optimizer, 1, 4, 0.4)
    rates = [optimizer.get_learning_rate()]
    module(*batch())
    for _ in range(5):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    np.testing.assert_allclose(rates, [0, 0.1, 0.2, 0.3, 0, 0], atol=1e-7)


def test_a_nominal_state(tmp_path):
    generate(tmp_path, nominal_checkpoint=True)
    _, complete, _ = load(tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "nominal_checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    assert module.get_parameters_size() == 32
    assert "w1" in state.parameters
    for use in (
        lambda: state.parameters["w1"],
        lambda: state.parameters.__setitem__("w1", np.ones((3, 5), np.float32)),
        lambda: module(*batch()),
        lambda: module.get_contiguous_parameters(),
        lambda: module.export_model_for_inferencing(tmp_path / "m.onnx", ["scores"]),
        optimizer.step,
    ):
        with pytest.raises(Fail, match=r"the checkpoint is nominal.* first\."):
            use()
    values = complete.get_contiguous_parameters()
    with pytest.raises(Fail, match="needs the values of all parameters"):
        module.copy_buffer_to_parameters(values)
    module.copy_buffer_to_parameters(values, trainable_only=False)
    assert module(*batch()) == complete(*batch())
    optimizer.step()
    assert (state.parameters["w1"].data != complete.get_contiguous_parameters().numpy()[0]).any()


def test_wrong_arguments(folder, tmp_path):
    state, module, _ = load(folder)
    with pytest.raises(InvalidArgument, match=r"has 2 inputs \(x, labels\), and 1 were passed"):
        module(batch()[0])
    with pytest.raises(InvalidArgument, match="cpu, cuda or cuda:<number>, got 'tpu'"):
        Module(folder / "training_model.onnx", state, device="tpu")
    with pytest.raises(NoSuchFile, match="there is no file"):
        Module(tmp_path / "missing.onnx", state)
    with pytest.raises(TypeError, match="state must be a CheckpointState, got str"):
        Module(folder / "training_model.onnx", "checkpoint")
    with pytest.raises(TypeError, match="optimizer must be an Optimizer, got NoneType"):
        LinearLRScheduler(None, 1, 4, 0.4)
    with pytest.raises(TypeError, match="module must be a Module, got CheckpointState"):
        Optimizer(folder / "optimizer_model.onnx", state)
    without_eval = Module(folder / "training_model.onnx", state).eval()
    with pytest.raises(Fail, match="the module has no evaluation model"):
        without_eval(*batch())
    with pytest.raises(TypeError, match="takes what load_checkpoint reads, not dict"):
        CheckpointState({})


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_another_device(device, folder):
    """Without a GPU the models run on the CPU, as sessions do; results are the same."""
    _, module, optimizer = load(folder)
    _, other, same = load(folder, device=device)
    for _ in range(2):
        np.testing.assert_allclose(other(*batch()), module(*batch()), rtol=1e-4)
        optimizer.step()
        same.step()
    values = (m.get_contiguous_parameters().numpy() for m in (module, other))
    np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-5)


def test_two_accumulators_of_one_gradient(folder, tmp_path):
    model = onnx.load(folder / "training_model.onnx")
    node = next(n for n in model.graph.node if n.op_type == "InPlaceAccumulatorV2")
    model.graph.node.append(node)
    model.graph.node[-1].output[0] = "again"
    onnx.save(model, tmp_path / "twice.onnx")
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    with pytest.raises(InvalidArgument, match=r"two nodes add to w1_grad.accumulation.buffer"):
        Module(tmp_path / "twice.onnx", state)


def test_models_that_are_damaged(folder, tmp_path):
    """Truncated or other files are refused as any model is."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    data = (folder / "training_model.onnx").read_bytes()
    for size in (0, 10, len(data) // 2, len(data) - 3):
        (tmp_path / "cut.onnx").write_bytes(data[:size])
        with pytest.raises(sardonyx.errors.SardonyxError):
            Module(tmp_path / "cut.onnx", state)


def test_a_checkpoint_of_another_model(folder, tmp_path):
    generate(tmp_path, classifier(width=6), frozen_params=["b1"])
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    message = r"w1 is float32\[3, 5\] in training_model.onnx, and float32\[3, 6\] in the checkpoint"
    with pytest.raises(InvalidArgument, match=message):
        Module(folder / "training_model.onnx", state)


def test_a_checkpoint_that_trains_other_parameters(folder, tmp_path):
    generate(tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(InvalidArgument, match=r"trains b1, and training_model.onnx has no grad"):
        Module(folder / "training_model.onnx", state)


def test_optimizer_states_that_do_not_fit(folder):
    state, module, _ = load(folder)
    moments = state._state.groups["group0"].moments
    moments["w2"]["momentum1"] = np.zeros(3, np.float32)
    path = folder / "optimizer_model.onnx"
    with pytest.raises(
        InvalidArgument, match=r"w2 is float32\[5, 2\], and its moment float32\[3\]"
    ):
        Optimizer(path, module)
    del moments["w2"]["momentum1"]
    with pytest.raises(InvalidArgument, match="not momentum1 of w2"):
        Optimizer(path, module)


def _optimizer_model(tmp_path, change):
    """The module of the classifier, and an optimizer model that was changed."""
    generate(tmp_path)
    _, module, _ = load(tmp_path)
    model = onnx.load(tmp_path / "optimizer_model.onnx")
    change(model.graph)
    onnx.save(model, tmp_path / "changed.onnx")
    return tmp_path / "changed.onnx", module


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda g: g.node.pop(), InvalidArgument, "it has 0 nodes of AdamWOptimizer or SGD"),
        (lambda g: g.node.extend(g.node[:]), InvalidArgument, "it has 2 nodes"),
        (lambda g: g.input.pop(), InvalidArgument, "its inputs are learning_rate, step, params"),
        (
            lambda g: g.node[0].output.append("weights"),
            NotImplemented,
            "has outputs with the updated tensors",
        ),
        (
            lambda g: [setattr(a, "i", 7) for a in g.node[0].attribute if a.name == "adam_mode"],
            InvalidArgument,
            "adam_mode of changed.onnx is 7",
        ),
    ],
)
def test_models_that_are_no_optimizer(change, error, message, tmp_path):
    path, module = _optimizer_model(tmp_path, change)
    with pytest.raises(error, match=message):
        Optimizer(path, module)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("correct_bias", [0, 1])
def test_adamw_by_its_formula(mode, correct_bias, tmp_path):
    """Modes and bias correction against the update in float64."""

    def change(graph):
        values = {"adam_mode": mode, "correct_bias": correct_bias}
        for attribute in graph.node[0].attribute:
            if attribute.name in values:
                attribute.i = values[attribute.name]
            if attribute.name == "weight_decay":
                attribute.f = 0.5

    path, module = _optimizer_model(tmp_path, change)
    optimizer, rate, decay, epsilon = Optimizer(path, module), 0.1, 0.5, 1e-6
    optimizer.set_learning_rate(rate)
    state = module._checkpoint
    p = state.parameters["w1"].data.astype(np.float64)
    m, v = np.zeros_like(p), np.zeros_like(p)
    b1, b2 = np.float32([0.9, 0.999]).tolist()  # attributes of nodes are float32
    for t in range(1, 4):
        module.lazy_reset_grad()
        module(*batch(t))
        g = state.parameters["w1"].grad.astype(np.float64)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        c1, c2 = (1 - b1**t, 1 - b2**t) if correct_bias else (1.0, 1.0)
        if mode == 0:
            p = p - rate * decay * p
            p = p - rate * m / c1 / (np.sqrt(v / c2) + epsilon)
        else:
            p = p - rate * np.sqrt(c2) / c1 * m / (np.sqrt(v) + epsilon)
            p = p - rate * decay * p
        optimizer.step()
        np.testing.assert_allclose(state.parameters["w1"].data, p, rtol=2e-5, atol=2e-6)


def test_gradients_are_clipped_in_place(tmp_path):
    """As by onnxruntime's node, whose gradients are the module's."""
    clip = onnxblock.optim.ClipGradNorm(0.01)
    generate(tmp_path, optimizer=onnxblock.optim.SGD(clip_grad=clip))
    state, module, optimizer = load(tmp_path)
    module(*batch())
    before = {name: p.data for name, p in state.parameters}
    optimizer.set_learning_rate(1.0)
    optimizer.step()
    grads = {name: p.grad for name, p in state.parameters}
    norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in grads.values()))
    assert norm == pytest.approx(0.01, rel=1e-3)
    for name, p in state.parameters:
        np.testing.assert_allclose(before[name] - grads[name], p.data, atol=1e-7)


@pytest.mark.parametrize("optimizer", [onnxblock.optim.SGD, onnxblock.optim.AdamW])
def test_a_model_with_other_nodes(optimizer, tmp_path):
    """Gradients are clipped twice; the result is that of the smaller norm."""

    class Twice(onnxblock.Block):
        def build(self, name):
            return onnxblock.optim.ClipGradNorm(0.01)(onnxblock.optim.ClipGradNorm(5.0)(name))

    results = []
    for clip in (onnxblock.optim.ClipGradNorm(0.01), Twice()):
        generate(tmp_path, optimizer=optimizer(clip_grad=clip))
        state, module, update = load(tmp_path)
        assert (update._session is None) is (not isinstance(clip, Twice))
        for seed in range(3):
            module(*batch(seed))
            update.step()
            module.lazy_reset_grad()
        assert state._state.groups["group0"].step == 3
        results.append(module.get_contiguous_parameters().numpy())
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-7)


def test_a_loss_of_two_outputs(tmp_path):
    """A block that adds the losses of two outputs, and outputs that are named."""

    class Both(onnxblock.Block):
        def __init__(self):
            self.loss = onnxblock.loss.CrossEntropyLoss()
            self.other = onnxblock.loss.MSELoss(reduction="sum")
            self.add = onnxblock.blocks.Add()

        def build(self, scores):
            return self.add(self.loss(scores), self.other(scores, "target"))

    generate(tmp_path, loss=Both())
    _, module, _ = load(tmp_path)
    assert module.input_names() == ["x", "labels", "target"]
    x, labels = batch()
    plain = generate(tmp_path, prefix="plain_", loss=LossType.CrossEntropyLoss)
    state = CheckpointState.load_checkpoint(plain / "plain_checkpoint")
    alone = Module(plain / "plain_training_model.onnx", state)(x, labels)
    assert module(x, labels, np.zeros((4, 2), np.float32)) > alone
