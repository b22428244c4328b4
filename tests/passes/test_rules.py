"""Each rule: a positive case per variant, a negative one per condition; results are compared."""

from __future__ import annotations

import pytest

from sardonyx.passes import activation, algebra, conv_gemm, normalize
from tests.graphs import rewrites, unchanged

NOTHING_LEFT = {
    "identity": ("in x: f32[B,8]\na = Identity(x)\ny = Relu(a)\nout y", algebra.identity),
    "dropout": ("in x: f32[B,8]\na = Dropout(x, 0.5)\ny = Relu(a)\nout y", algebra.dropout),
    "plain dropout": ("in x: f32[B,8]\na = Dropout(x)\ny = Relu(a)\nout y", algebra.dropout),
    "add zero": ("in x: i64[B,8]\na = Add(x, 0)\ny = Neg(a)\nout y", algebra.add_zero),
    "subtract zero": ("in x: i64[B,8]\na = Sub(x, 0)\ny = Neg(a)\nout y", algebra.add_zero),
    "times one": ("in x: f32[B,8]\na = Mul(1.0, x)\ny = Relu(a)\nout y", algebra.times_one),
    "over one": ("in x: f32[B,8]\na = Div(x, 1.0)\ny = Relu(a)\nout y", algebra.times_one),
    "power one": ("in x: f32[B,8]\na = Pow(x, 1.0)\ny = Relu(a)\nout y", algebra.times_one),
    "reshape to itself": (
        "in x: f32[B,8]\ns = Shape(x)\na = Reshape(x, s)\ny = Relu(a)\nout y",
        algebra.same_shape,
    ),
    "expand to itself": (
        "in x: f32[B,8]\ns = Shape(x)\na = Expand(x, s)\ny = Relu(a)\nout y",
        algebra.same_shape,
    ),
    "tile by ones": ("in x: f32[B,8]\na = Tile(x, [1, 1])\ny = Relu(a)\nout y", algebra.same_shape),
    "cast to itself": (
        "in x: f32[B,8]\na = Cast(x, to=1)\ny = Relu(a)\nout y",
        algebra.single_operand,
    ),
    "concat of one": (
        "in x: f32[B,8]\na = Concat(x, axis=0)\ny = Relu(a)\nout y",
        algebra.single_operand,
    ),
    "flatten of two dims": (
        "in x: f32[B,8]\na = Flatten(x)\ny = Relu(a)\nout y",
        algebra.single_operand,
    ),
    "slice of everything": (
        "in x: f32[4,8]\na = Slice(x, [0], [100], [1])\ny = Relu(a)\nout y",
        algebra.whole_slice,
    ),
    "squeeze back": (
        "in x: f32[B,8]\na = Unsqueeze(x, [1])\nc = Squeeze(a, [1])\ny = Relu(c)\nout y",
        algebra.inverse_squeeze,
    ),
    "where of one side": (
        "in x: f32[B,8]\nconst c: bool[1] = [true]\na = Where(c, x, 0.0)\ny = Relu(a)\nout y",
        algebra.constant_where,
    ),
    "where of the other side": (
        "in x: f32[B,8]\nconst c: bool[1] = [false]\na = Where(c, 0.0, x)\ny = Relu(a)\nout y",
        algebra.constant_where,
    ),
    "transpose of nothing": (
        "in x: f32[B,8]\na = Transpose(x, perm=[0, 1])\ny = Relu(a)\nout y",
        algebra.transpose_nothing,
    ),
    "transpose and back": (
        (
            "in x: f32[B,8,3]\na = Transpose(x, perm=[2, 0, 1])\nc = Transpose(a, perm=[1, 2, 0])\n"
            "y = Relu(c)\nout y"
        ),
        algebra.transpose_twice,
    ),
}


@pytest.mark.parametrize("name", NOTHING_LEFT)
def test_noops_are_removed(name: str) -> None:
    text, rules = NOTHING_LEFT[name]
    lines = text.splitlines()
    last = next(line for line in lines if line.startswith("y ="))
    rewrites(text, rules, f"{lines[0]}\n{last.split('(')[0]}(x)\nout y")


KEPT = {
    "training dropout": (
        "in x: f32[B,8]\na, m = Dropout(x, 0.5)\ny = Relu(a)\nout y, m",
        algebra.dropout,
    ),
    "add zero to floats": ("in x: f32[B,8]\ny = Add(x, 0.0)\nout y", algebra.add_zero),
    "times one that broadcasts": (
        "in x: f32[]\nin z: f32[1]\ny = Mul(x, z)\nout y",
        algebra.times_one,
    ),
    "reshape to another": ("in x: f32[B,8]\ny = Reshape(x, [-1, 4])\nout y", algebra.same_shape),
    "where that broadcasts": (
        "in x: f32[8]\nin z: f32[3,8]\nconst c: bool[1] = [true]\ny = Where(c, x, z)\nout y",
        algebra.constant_where,
    ),
    "where of both sides": (
        "in x: f32[2]\nconst c: bool[2] = [true, false]\ny = Where(c, x, 0.0)\nout y",
        algebra.constant_where,
    ),
    "tile": ("in x: f32[0,8]\ny = Tile(x, [2, 1])\nout y", algebra.same_shape),
    "slice backwards": (
        "in x: f32[4]\ny = Slice(x, [3], [-9], [0], [-1])\nout y",
        algebra.whole_slice,
    ),
    "transpose": (
        "in x: f32[B,8]\ny = Transpose(x, perm=[1, 0])\nout y",
        algebra.transpose_nothing,
    ),
    "an order that may not fit": (
        "in x: f32[?]\ny = Transpose(x, perm=[0, 1])\nout y",
        algebra.transpose_nothing,
    ),
    "orders that may not fit": (
        (
            "in x: f32[?]\na = Transpose(x, perm=[1, 0])\nc = Transpose(a, perm=[1, 0])\n"
            "y = Relu(c)\nout y"
        ),
        algebra.transpose_twice,
    ),
    "gelu with a shared part": (
        (
            "in x: f32[B,8]\na = Div(x, 1.4142135)\ne = Erf(a)\ns = Add(e, 1.0)\nh = Mul(x, 0.5)\n"
            "y = Mul(h, s)\nout y, s"
        ),
        activation.gelu,
    ),
    "gelu of something else": (
        (
            "in x: f32[B,8]\nin z: f32[B,8]\na = Div(x, 1.4142135)\ne = Erf(a)\ns = Add(e, 1.0)\n"
            "h = Mul(z, 0.5)\ny = Mul(h, s)\nout y"
        ),
        activation.gelu,
    ),
    "erf with another factor": (
        (
            "in x: f32[B,8]\na = Div(x, 1.5)\ne = Erf(a)\ns = Add(e, 1.0)\nh = Mul(x, 0.5)\n"
            "y = Mul(h, s)\nout y"
        ),
        activation.gelu,
    ),
    "bias per row": (
        "in x: f32[4,8]\nin w: f32[8,4]\nin c: f32[4,1]\nm = MatMul(x, w)\ny = Add(m, c)\nout y",
        conv_gemm.matmul_bias,
    ),
    "product of stacks": (
        "in x: f32[2,4,8]\nin w: f32[8,4]\nin c: f32[4]\nm = MatMul(x, w)\ny = Add(m, c)\nout y",
        conv_gemm.matmul_bias,
    ),
    "convolution with a bias per pixel": (
        (
            "in x: f32[1,3,5,5]\nconst w: f32[2,3,1,1]\nconst c: f32[1,1,5,5]\na = Conv(x, w)\n"
            "y = Add(a, c)\nout y"
        ),
        conv_gemm.conv_shift,
    ),
    "pads of another number": (
        (
            "in x: f32[1,3,5,5]\nconst w: f32[2,3,3,3]\na = Pad(x, [0, 0, 1, 1, 0, 0, 1, 1], 2.0)\n"
            "y = Conv(a, w)\nout y"
        ),
        conv_gemm.conv_pad,
    ),
    "pads of channels": (
        (
            "in x: f32[1,3,5,5]\nconst w: f32[2,4,3,3]\na = Pad(x, [0, 1, 1, 1, 0, 0, 1, 1])\n"
            "y = Conv(a, w)\nout y"
        ),
        conv_gemm.conv_pad,
    ),
    "pads that cut": (
        (
            "in x: f32[1,3,5,5]\nconst w: f32[2,3,3,3]\na = Pad(x, [0, 0, 1, 1, 0, 0, -1, 1])\n"
            "y = Conv(a, w)\nout y"
        ),
        conv_gemm.conv_pad,
    ),
    "pads by reflection": (
        (
            "in x: f32[1,3,5,5]\nconst w: f32[2,3,3,3]\n"
            'a = Pad(x, [0, 0, 1, 1, 0, 0, 1, 1], mode="reflect")\ny = Conv(a, w)\nout y'
        ),
        conv_gemm.conv_pad,
    ),
    "pads that are not constant": (
        (
            "in x: f32[1,3,5,5]\nin p: i64[8]\nconst w: f32[2,3,1,1]\na = Pad(x, p)\n"
            "y = Conv(a, w)\nout y"
        ),
        conv_gemm.conv_pad,
    ),
    "pads before pads that follow from sizes": (
        (
            "in x: f32[1,3,5,5]\nconst w: f32[2,3,3,3]\na = Pad(x, [0, 0, 1, 1, 0, 0, 1, 1])\n"
            'y = Conv(a, w, auto_pad="SAME_UPPER", strides=[2, 2])\nout y'
        ),
        conv_gemm.conv_pad,
    ),
    "fused convolution in double": (
        "in x: f64[1,3,5,5]\nconst w: f64[2,3,1,1]\na = Conv(x, w)\ny = Relu(a)\nout y",
        conv_gemm.conv_activation,
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_failing_conditions_leave_the_graph_unchanged(name: str) -> None:
    unchanged(*KEPT[name])


@pytest.mark.parametrize(
    "pad", ["Pad(x, [0, 0, 0, 1, 0, 0, 2, 3])", "Pad(x, [1, 0, 3, 2], 0.0, [-1, 2])"]
)
def test_pad_before_conv(pad: str) -> None:
    head = "in x: f32[B,3,5,5]\nconst w: f32[2,3,3,3]\nconst c: f32[2]\n"
    rewrites(
        f"{head}a = {pad}\ny = Conv(a, w, c, pads=[1, 0, 0, 1], strides=[2, 2])\nout y",
        conv_gemm.conv_pad,
        f"{head}y = Conv(x, w, c, pads=[1, 1, 2, 4], strides=[2, 2])\nout y",
    )


def test_a_cast_to_a_known_type() -> None:
    rewrites(
        "in x: f32[B,8]\nin z: f16[3]\ny = CastLike(x, z)\nout y",
        algebra.cast_like,
        "in x: f32[B,8]\nin z: f16[3]\ny = Cast(x, to=f16)\nout y",
    )


@pytest.mark.parametrize("first", ["Reshape(x, [0, 8, 1])", "Unsqueeze(x, [1])"])
def test_reshape_of_a_reshape(first: str) -> None:
    rewrites(
        f"in x: f32[3,8]\na = {first}\ny = Reshape(a, [4, 6])\nout y",
        algebra.reshape_twice,
        "in x: f32[3,8]\ny = Reshape(x, [4, 6])\nout y",
    )


def test_two_transposes_become_one() -> None:
    rewrites(
        "in x: f32[B,8,3]\na = Transpose(x, perm=[2, 0, 1])\ny = Transpose(a, perm=[0, 2, 1])\n"
        "out y",
        by=algebra.RULES,
        into="in x: f32[B,8,3]\ny = Transpose(x, perm=[2, 1, 0])\nout y",
    )


@pytest.mark.parametrize("axis", [2, 1])
def test_softmax_of_flattened_rows(axis: int) -> None:
    text = f"""
        in x: f32[B,S,8]
        a = Flatten(x, axis={axis})
        p = Softmax(a, axis=1)
        s = Shape(x)
        y = Reshape(p, s)
        out y
    """
    if axis == 1:  # rows of two dims
        unchanged(text, by=[*algebra.softmax_of_rows])
    else:
        rewrites(
            text,
            by=[*algebra.softmax_of_rows],
            into="in x: f32[B,S,8]\ny = Softmax(x, axis=-1)\nout y",
        )


def test_two_reshapes_become_one() -> None:
    rewrites(
        "in x: f32[B,8]\na = Reshape(x, [-1, 4])\ny = Reshape(a, [-1, 2])\nout y",
        by=algebra.reshape_twice,
        into="in x: f32[B,8]\ny = Reshape(x, [-1, 2])\nout y",
    )


@pytest.mark.parametrize(
    "body",
    [
        "h = Mul(x, 0.5)\na = Div(x, 1.4142135)\ne = Erf(a)\ns = Add(e, 1.0)\ny = Mul(h, s)",
        "a = Mul(x, 0.70710678)\ne = Erf(a)\ns = Add(1.0, e)\nm = Mul(x, s)\ny = Mul(m, 0.5)",
        "a = Div(x, 1.4142135)\ne = Erf(a)\ns = Add(e, 1.0)\nt = Mul(s, 0.5)\ny = Mul(t, x)",
    ],
)
def test_gelu(body: str) -> None:
    rewrites(
        f"in x: f32[B,8]\n{body}\nout y",
        by=activation.gelu,
        into="in x: f32[B,8]\ny = Gelu(x)\nout y",
    )


@pytest.mark.parametrize("cube", ["c = Pow(x, 3.0)", "q = Mul(x, x)\nc = Mul(q, x)"])
def test_gelu_by_tanh(cube: str) -> None:
    rewrites(
        f"in x: f32[B,8]\n{cube}\nk = Mul(c, 0.044715)\ns = Add(x, k)\nm = Mul(s, 0.7978846)\n"
        "t = Tanh(m)\np = Add(t, 1.0)\nh = Mul(x, 0.5)\ny = Mul(h, p)\nout y",
        by=activation.gelu_tanh,
        into='in x: f32[B,8]\ny = Gelu(x, approximate="tanh")\nout y',
    )


@pytest.mark.parametrize("square", ["q = Pow(d, 2.0)", "q = Mul(d, d)"])
def test_layer_norm(square: str) -> None:
    rewrites(
        "in x: f32[B,8]\nin g: f32[8]\nin c: f32[8]\nm = ReduceMean(x, [-1])\nd = Sub(x, m)\n"
        f"{square}\nv = ReduceMean(q, [-1])\ne = Add(v, 0.00001)\nr = Sqrt(e)\nn = Div(d, r)\n"
        "s = Mul(n, g)\ny = Add(s, c)\nout y",
        by=normalize.RULES,
        into="in x: f32[B,8]\nin g: f32[8]\nin c: f32[8]\n"
        "y = LayerNormalization(x, g, c, axis=-1, epsilon=9.999999747378752e-06)\nout y",
    )


def test_layer_norm_is_over_the_last_dims() -> None:
    unchanged(
        "in x: f32[B,8]\nin g: f32[8]\nin c: f32[8]\nm = ReduceMean(x, [0])\nd = Sub(x, m)\n"
        "q = Mul(d, d)\nv = ReduceMean(q, [0])\ne = Add(v, 0.00001)\nr = Sqrt(e)\nn = Div(d, r)\n"
        "s = Mul(n, g)\ny = Add(s, c)\nout y",
        by=normalize.RULES,
    )


def test_matmul_bias_is_a_gemm() -> None:
    rewrites(
        "in x: f32[B,8]\nin w: f32[8,4]\nin c: f32[4]\nm = MatMul(x, w)\ny = Add(c, m)\nout y",
        by=conv_gemm.matmul_bias,
        into="in x: f32[B,8]\nin w: f32[8,4]\nin c: f32[4]\ny = Gemm(x, w, c)\nout y",
    )
