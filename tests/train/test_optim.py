"""sardonyx.train.optim against torch.optim: numbers, checkpoints both ways, what torch updates."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sardonyx.errors import InvalidArgument  # noqa: E402
from sardonyx.train import optim  # noqa: E402

SHAPES = ((), (5,), (33,), (16385,), (3, 7), (70, 300), (4, 6, 3, 3), (100, 1), (2, 30, 50))
N_STEPS = 20
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}  # float32, after N_STEPS

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("AdamW", options)
        for options in (
            {},
            {"lr": 1e-2, "weight_decay": 0.1},
            {"lr": 1e-2, "weight_decay": 0.0, "betas": (0.8, 0.9), "eps": 1e-4},
            {"lr": 1e-2, "amsgrad": True},
            {"lr": 1e-2, "maximize": True},
            {"lr": 1e-2, "amsgrad": True, "maximize": True, "betas": (0.0, 0.99)},
            {"lr": torch.tensor(1e-2), "betas": (torch.tensor(0.9), torch.tensor(0.99))},
            {"foreach": True},
            {"fused": True},
            {"fused": False, "foreach": False},
        )
    ),
    *(
        ("Adam", options)
        for options in (
            {},
            {"lr": 1e-2, "weight_decay": 0.1},
            {"lr": 1e-2, "weight_decay": 0.1, "amsgrad": True, "maximize": True},
            {"lr": 1e-2, "weight_decay": 0.1, "decoupled_weight_decay": True},
        )
    ),
    *(
        ("SGD", options)
        for options in (
            {},
            {"lr": 0.1, "weight_decay": 0.1},
            {"lr": 0.1, "momentum": 0.9},
            {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "dampening": 0.5},
            {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
            {"lr": 0.1, "momentum": 0.9, "maximize": True},
            {"lr": torch.tensor([0.1]), "momentum": 0.9, "foreach": True},
            {"momentum": 0.9, "fused": True},
        )
    ),
    *(
        ("Adafactor", options)
        for options in (
            {},
            {"lr": 0.1, "weight_decay": 0.1, "maximize": True},
            {"lr": 0.5, "beta2_decay": -0.5, "eps": (1e-5, 1e-2), "d": 2.0},
            {"lr": torch.tensor(0.1), "foreach": True},
        )
    ),
    ("Lion", {}),
    ("Lion", {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.5, 0.9)}),
    ("Lion", {"lr": 1e-2, "maximize": True}),
]
# Of each class one set of options, for tests of what does not depend on them.
ONE_EACH: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {"lr": 1e-2, "amsgrad": True}),
    ("Adam", {"weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("Adafactor", {"lr": 0.1}),
    ("Lion", {"lr": 1e-2}),
]
TORCH = [(name, options) for name, options in ONE_EACH if name != "Lion"]


class LionInTorch(torch.optim.Optimizer):
    """lion-pytorch's update."""

    def __init__(self, params: Any, **options: Any) -> None:
        defaults = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0, "maximize": False}
        super().__init__(params, defaults | options)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                state, g = self.state[p], -p.grad if group["maximize"] else p.grad
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                mean = state["exp_avg"]
                p.mul_(1 - lr * group["weight_decay"])
                p.add_(mean.clone().mul_(beta1).add(g, alpha=1 - beta1).sign_(), alpha=-lr)
                mean.mul_(beta2).add_(g, alpha=1 - beta2)


def of_torch(name: str) -> Any:
    return LionInTorch if name == "Lion" else getattr(torch.optim, name)


def make_params(shapes: Any = SHAPES, dtype: Any = torch.float32) -> list[Any]:
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


def set_grads(params: list[Any], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def run(optimizer: Any, params: list[Any], steps: range = range(N_STEPS)) -> None:
    for step in steps:
        set_grads(params, step)
        optimizer.step()


def assert_equal(a: list[Any], b: list[Any], **tolerance: float) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x.detach(), y.detach(), **(tolerance or TOLERANCE))


def assert_same_state(a: Any, b: Any, **tolerance: float) -> None:
    """The layouts of two state_dicts are equal, and their numbers close."""
    assert a.keys() == b.keys()
    assert a["param_groups"] == b["param_groups"]
    assert a["state"].keys() == b["state"].keys()
    for index, state in a["state"].items():
        assert state.keys() == b["state"][index].keys()
        for name, value in state.items():
            torch.testing.assert_close(value, b["state"][index][name], **(tolerance or TOLERANCE))


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_steps_equal_those_of_torch(name: str, options: dict[str, Any]) -> None:
    mine, theirs = make_params(), make_params()
    a, b = getattr(optim, name)(mine, **options), of_torch(name)(theirs, **options)
    run(a, mine)
    run(b, theirs)
    assert not a.fallbacks
    assert_equal(mine, theirs)
    assert_same_state(a.state_dict(), b.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "options"), ONE_EACH)
def test_16_bit_steps_compute_in_float32(name: str, options: dict[str, Any], dtype: Any) -> None:
    """Each step is torch's in float32, with parameters and state rounded once."""
    if name == "Adafactor":  # its default eps1 depends on the type
        options = options | {"eps": (1e-3, 1e-3)}
    mine, theirs = make_params(dtype=dtype), make_params()
    a, b = getattr(optim, name)(mine, **options), of_torch(name)(theirs, **options)
    for p in theirs:
        p.data = p.data.to(dtype).float()
    for step in range(5):
        set_grads(mine, step)
        for p, q in zip(theirs, mine, strict=True):
            p.grad = q.grad.float()
        a.step()
        b.step()
        for p in theirs:
            p.data = p.data.to(dtype).float()
            for key, value in b.state[p].items():
                b.state[p][key] = value if key == "step" else value.to(dtype).float()
    assert not a.fallbacks
    bound = 2e-2 if dtype is torch.bfloat16 else 3e-3
    assert_equal([p.float() for p in mine], theirs, rtol=bound, atol=bound)


@pytest.mark.parametrize(("name", "options"), ONE_EACH)
def test_groups_have_their_own_options(name: str, options: dict[str, Any]) -> None:
    made = []
    for cls in (getattr(optim, name), of_torch(name)):
        params = make_params()
        groups = [
            {"params": params[:3], "weight_decay": 0.0},
            {"params": params[3:], "lr": 0.02, "weight_decay": 0.3, "maximize": True},
        ]
        optimizer = cls(groups, **options)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, N_STEPS)
        for step in range(N_STEPS):
            set_grads(params, step)
            params[0].grad = None if step == 4 else params[0].grad
            if name == "Lion" and params[0].grad is None:
                params[0].grad = torch.zeros_like(params[0])
            optimizer.step()
            scheduler.step()
        made.append(params)
    assert_equal(*made)


@pytest.mark.parametrize(("name", "options"), TORCH)
@pytest.mark.parametrize("to_torch", [False, True])
def test_checkpoints_are_exchanged_with_torch(
    name: str, options: dict[str, Any], to_torch: bool
) -> None:
    classes = [of_torch(name), getattr(optim, name)]
    first, second = reversed(classes) if to_torch else classes
    params, expected = make_params(), make_params()
    whole = of_torch(name)(expected, **options)
    run(whole, expected)
    begun = first(params, **options)
    run(begun, params, range(10))
    state = copy.deepcopy(begun.state_dict())
    rest = second(params, **options)
    rest.load_state_dict(state)
    run(rest, params, range(10, N_STEPS))
    assert_equal(params, expected)
    assert_same_state(rest.state_dict(), whole.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "options"), ONE_EACH)
def test_a_resumed_run_is_equal_to_the_bit(
    name: str, options: dict[str, Any], dtype: Any, tmp_path: Any
) -> None:
    cls = getattr(optim, name)
    params = make_params(dtype=dtype)
    whole = cls(params, **options, max_norm=3.0)
    run(whole, params, range(5))
    torch.save({"params": params, "optimizer": whole.state_dict()}, tmp_path / "saved")
    run(whole, params, range(5, N_STEPS))
    saved = torch.load(tmp_path / "saved", weights_only=False)
    resumed = cls(saved["params"], **options, max_norm=3.0)
    resumed.load_state_dict(saved["optimizer"])
    run(resumed, saved["params"], range(5, N_STEPS))
    assert_equal(params, saved["params"], rtol=0, atol=0)
    assert_same_state(whole.state_dict(), resumed.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_keep_max_norm_and_state(copied: Callable[[Any], Any]) -> None:
    params = make_params()
    a = optim.AdamW(params, max_norm=0.5)
    run(a, params, range(2))
    b = copied(a)
    assert b.max_norm == 0.5
    set_grads(params, 2)
    for p, q in zip(params, b.param_groups[0]["params"], strict=True):
        q.grad = p.grad.clone()
    a.step()
    b.step()
    assert_equal(params, b.param_groups[0]["params"], rtol=0, atol=0)


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
@pytest.mark.parametrize(("name", "options"), ONE_EACH)
def test_max_norm_clips_as_torch_does(name: str, options: dict[str, Any], max_norm: float) -> None:
    mine, theirs = make_params(), make_params()
    a = getattr(optim, name)(mine, **options, max_norm=max_norm)
    b = of_torch(name)(theirs, **options)
    for step in range(N_STEPS):
        set_grads(mine, step)
        set_grads(theirs, step)
        a.step()
        norm = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
        b.step()
        torch.testing.assert_close(a.grad_norm, norm, rtol=1e-5, atol=0)
    assert_equal(mine, theirs, rtol=5e-5, atol=5e-6)
    assert a.grad_norm is not None


def transposed_grad(p: Any) -> None:
    p.grad = torch.randn(p.shape[::-1]).t()


def sparse_grad(p: Any) -> None:
    p.grad = torch.randn(p.shape).relu().to_sparse()


def wide_param(p: Any) -> None:
    p.data = p.data.double()
    p.grad = torch.randn(p.shape, dtype=torch.float64)


def strided_param(p: Any) -> None:
    p.data = torch.randn(p.shape[0], 2 * p.shape[1])[:, ::2]
    p.grad = torch.randn(p.shape)


FALLBACKS: list[tuple[Callable[[Any], None], str]] = [
    (transposed_grad, "a gradient with other strides"),
    (wide_param, "a parameter of type float64"),
    (strided_param, "a parameter that is not contiguous"),
]


@pytest.mark.parametrize(("name", "options"), ONE_EACH)
@pytest.mark.parametrize(("change", "reason"), FALLBACKS)
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_what_torch_updates_is_reported(
    name: str,
    options: dict[str, Any],
    change: Any,
    reason: str,
    max_norm: float | None,
    caplog: Any,
) -> None:
    """Tensors that the kernel does not take are updated by torch, beside those that it takes."""
    made = []
    for cls in (getattr(optim, name), of_torch(name)):
        params = make_params()
        is_mine = cls is not of_torch(name)
        more = {"max_norm": max_norm} if is_mine else {}
        optimizer = cls(params, **options, **more)
        for step in range(3):
            set_grads(params, step)
            torch.manual_seed(step)
            change(params[5])
            if max_norm and not is_mine:
                torch.nn.utils.clip_grad_norm_(params, max_norm)
            with caplog.at_level(logging.WARNING, "sardonyx"):
                optimizer.step()
            if is_mine:
                assert sum(optimizer.fallbacks.values()) == 1
                assert next(iter(optimizer.fallbacks)).startswith(reason)
        made.append(params)
    assert_equal(*made, rtol=5e-5, atol=5e-6)
    assert len([r for r in caplog.records if reason in r.getMessage()]) <= 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sparse_gradients_of_sgd(momentum: float) -> None:
    made = []
    for cls in (optim.SGD, torch.optim.SGD):
        params = make_params()
        optimizer = cls(params, lr=0.1, momentum=momentum)
        for step in range(3):
            set_grads(params, step)
            torch.manual_seed(step)
            sparse_grad(params[5])
            optimizer.step()
        made.append(params)
        if cls is optim.SGD:
            assert optimizer.fallbacks == {"a sparse gradient": 1}
    assert_equal(*made)


@pytest.mark.parametrize("name", ["AdamW", "Adam", "Adafactor", "Lion"])
def test_sparse_gradients_are_refused_as_by_torch(name: str) -> None:
    params = make_params([(3, 4)])
    sparse_grad(params[0])
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        getattr(optim, name)(params).step()


def test_channels_last_parameters_are_updated_natively() -> None:
    made = []
    for cls in (optim.AdamW, torch.optim.AdamW):
        params = make_params([(8, 6, 3, 3)])
        params[0].data = params[0].data.to(memory_format=torch.channels_last)
        optimizer = cls(params)
        for step in range(3):
            set_grads(params, step)
            params[0].grad = params[0].grad.to(memory_format=torch.channels_last)
            optimizer.step()
        made.append(params)
        assert not getattr(optimizer, "fallbacks", None)
    assert_equal(*made)


def test_parameters_that_share_memory_are_updated_in_sequence() -> None:
    made = []
    for cls in (optim.SGD, torch.optim.SGD):
        whole = make_params([(100,)])[0].detach()
        params = [torch.nn.Parameter(whole[:60]), torch.nn.Parameter(whole[40:])]
        optimizer = cls(params, lr=0.1, weight_decay=0.5)
        run(optimizer, params, range(3))
        made.append([whole])
        if cls is optim.SGD:
            assert optimizer.fallbacks == {"parameters that share memory": 2}
    assert_equal(*made)


def test_storages_may_move_and_disappear_between_steps() -> None:
    """As FSDP does: `.data` is replaced, storages are freed and filled again."""
    mine, theirs = make_params(), make_params()
    a, b = optim.AdamW(mine), torch.optim.AdamW(theirs)
    for step in range(6):
        for p in mine:
            kept = p.detach().clone()
            p.untyped_storage().resize_(0)
            if step % 2:
                p.data = kept
            else:
                p.untyped_storage().resize_(kept.nbytes)
                p.data.copy_(kept)
        run(a, mine, range(step, step + 1))
        run(b, theirs, range(step, step + 1))
    assert_equal(mine, theirs)
    set_grads(mine, 0)
    mine[3].untyped_storage().resize_(0)
    with pytest.raises(InvalidArgument, match=r"of shape \(16385,\), or its state, has no memory"):
        a.step()


@pytest.mark.parametrize("fused", [None, True])
def test_grad_scaler(fused: bool | None) -> None:
    made = []
    for cls in (optim.AdamW, torch.optim.AdamW):
        params = make_params([(5,), (30, 20)])
        optimizer = cls(params, lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(6):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(step)
            loss = sum((p * torch.randn(p.shape, generator=generator)).sum() for p in params)
            scaler.scale(loss * (float("inf") if step == 2 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
        made.append([*params, *(p.grad for p in params), optimizer.state[params[0]]["step"]])
    assert_equal(*made)


def test_closures_hooks_and_no_grad() -> None:
    params = make_params([(4,)])
    optimizer = optim.AdamW(params, lr=0.1)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))

    def closure() -> Any:
        calls.append("closure")
        optimizer.zero_grad()
        loss = (params[0] ** 2).sum()
        loss.backward()
        return loss

    before = params[0].detach().clone()
    with torch.no_grad():
        loss = optimizer.step(closure)
    assert calls == ["pre", "closure", "post"]
    assert loss.item() == pytest.approx(float((before**2).sum()))
    assert not torch.equal(params[0], before)
    assert params[0].grad_fn is None


def test_autograd_sees_that_parameters_changed() -> None:
    params = make_params([(4,)])
    optimizer = optim.SGD(params, lr=0.1)
    loss = (params[0] ** 2).sum()
    params[0].grad = torch.ones(4)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_differentiable_steps_are_those_of_torch() -> None:
    grads = []
    for cls in (optim.SGD, torch.optim.SGD):
        lr = torch.tensor(0.1, requires_grad=True)
        p = torch.tensor([1.0, 2.0], requires_grad=True)
        moved = p.clone()
        moved.grad = torch.ones(2)
        optimizer = cls([moved], lr=lr, differentiable=True)
        optimizer.step()
        (moved**2).sum().backward()
        grads.append(lr.grad)
        if cls is optim.SGD:
            assert optimizer.fallbacks == {"the option differentiable": 1}
    assert_equal([grads[0]], [grads[1]])


def test_options_are_refused_as_by_torch() -> None:
    params = make_params([(4,)])
    set_grads(params, 0)
    with pytest.raises(RuntimeError, match="`fused` and `foreach` cannot be `True` together"):
        optim.AdamW(params, fused=True, foreach=True)
    with pytest.raises(AssertionError, match="capturable=True"):
        optim.AdamW(params, capturable=True, foreach=False).step()
    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        optim.Lion(params, lr=-1)
    with pytest.raises(ValueError, match="Invalid beta parameter at index 1: 2"):
        optim.Lion(params, betas=(0.9, 2))
    with pytest.raises(ValueError, match="Invalid weight_decay value: -1"):
        optim.Lion(params, weight_decay=-1)
    with pytest.raises(ValueError, match="max_norm must be at least 0, got -1"):
        optim.SGD(params, max_norm=-1)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adafactor"])
def test_signatures_are_those_of_torch(name: str) -> None:
    mine = inspect.signature(getattr(optim, name)).parameters
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    assert list(mine) == [*theirs, "max_norm"]
    assert issubclass(getattr(optim, name), getattr(torch.optim, name))
