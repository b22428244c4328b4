"""Train a reader of digits from scratch, stop it, resume it, and draw its loss.

The digits are those of scikit-learn, or drawn from a font with noise if it is not installed.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx

import sardonyx
from sardonyx.train import AdamW, fit
from sardonyx.train.schedules import cosine

EPOCHS, BATCH = 6, 64
FONT = (
    "01110 10001 10011 10101 11001 10001 01110", "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111", "01110 10001 00001 00110 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010", "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110", "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110", "01110 10001 10001 01111 00001 00010 01100",
)  # fmt: skip


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 1, 8, 8] of 0 to 1, and their labels."""
    try:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return (images / 16).reshape(-1, 1, 8, 8).astype(np.float32), labels.astype(np.int64)
    except ImportError:
        pass
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 1800)
    images = rng.normal(0, 0.15, (1800, 1, 8, 8))
    for image, label in zip(images, labels, strict=True):
        glyph = np.array([[int(bit) for bit in row] for row in FONT[label].split()])
        top, left = rng.integers(0, 2), rng.integers(0, 4)
        image[0, top : top + 7, left : left + 5] += glyph * rng.uniform(0.5, 1.0)
    return images.clip(0, 1).astype(np.float32), labels


def network() -> onnx.ModelProto:
    """Two convolutions with BatchNormalization and Dropout, for training."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        digits (float[batch, 1, 8, 8] image, int64[batch] label)
            => (float loss, float[batch, 10] scores) {
            c1 = Conv<pads=[1, 1, 1, 1]>(image, conv1)
            n1, m1, v1 = BatchNormalization<training_mode=1>(c1, scale1, shift1, mean1, var1)
            a1 = Relu(n1)
            c2 = Conv<pads=[1, 1, 1, 1]>(a1, conv2)
            n2, m2, v2 = BatchNormalization<training_mode=1>(c2, scale2, shift2, mean2, var2)
            a2 = Relu(n2)
            p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(a2)
            f = Flatten(p)
            d = Dropout(f, ratio, training)
            scores = Gemm(d, weight, bias)
            loss = SoftmaxCrossEntropyLoss(scores, label)
        }""")
    rng = np.random.default_rng(1)
    shapes = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "weight": (512, 10)}
    arrays = {n: rng.normal(0, np.prod(s[1:]) ** -0.5, s) for n, s in shapes.items()}
    arrays["weight"] = rng.normal(0, 512**-0.5, (512, 10))
    for i, channels in (1, 16), (2, 32):
        for name, value in (("scale", 1), ("shift", 0), ("mean", 0), ("var", 1)):
            arrays[f"{name}{i}"] = np.full(channels, value)
    arrays |= {"bias": np.zeros(10), "ratio": np.array(0.3)}
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(array), name))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "training"))
    return model


def accuracy(outputs, feeds) -> float:
    """The share of images whose best score is that of their label."""
    return (outputs["scores"].argmax(1) == feeds["label"]).mean()


images, labels = digits()
split = len(images) * 4 // 5
data = {"image": images[:split], "label": labels[:split]}
held_back = {"image": images[split:], "label": labels[split:]}
steps = EPOCHS * -(-split // BATCH)

with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary)
    options = {
        "loss": "loss",
        "batch_size": BATCH,
        "optimizer": AdamW(lr=cosine(5e-3, warmup=10, total=steps)),
        "evaluation": held_back,
        "metrics": {"accuracy": accuracy},
        "checkpoints": folder / "checkpoints",
    }
    fit(network(), data, epochs=EPOCHS // 2, **options)
    result = fit(network(), data, epochs=EPOCHS, resume=True, **options)
    for row in result.evaluations:
        print(f"step {row['step']}: loss {row['loss']:.3f}, {row['accuracy']:.1%} right")
    result.save_curve(folder / "loss.svg", "digits")
    result.save(folder / "digits.onnx")

    session = sardonyx.InferenceSession(folder / "digits.onnx")
    (scores,) = session.run(["scores"], held_back)
    right = (scores.argmax(1) == held_back["label"]).mean()
    print(f"the saved model reads {right:.1%} of {len(scores)} held-back digits")
    assert right > 0.9
