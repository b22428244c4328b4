"""The models of models.py in torch, on the same weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as f

Weights = dict[str, Any]  # tensors by name


def transformer(w: Weights, feeds: dict[str, Any], layers: int, heads: int) -> Any:
    x = w["table"][feeds["tokens"]]
    for i in range(layers):
        p = f"layer{i}."
        x = x + _attention(w, p, x, heads)
        y = f.gelu(_linear(w, f"{p}up.", _norm(w, f"{p}norm2.", x)))
        x = x + _linear(w, f"{p}down.", y)
    scores = _norm(w, "last.", x) @ w["table"].T
    return f.cross_entropy(scores.reshape(-1, scores.shape[-1]), feeds["labels"].reshape(-1))


def _norm(w: Weights, p: str, x: Any) -> Any:
    return f.layer_norm(x, x.shape[-1:], w[f"{p}scale"], w[f"{p}bias"])


def _linear(w: Weights, p: str, x: Any) -> Any:
    return x @ w[f"{p}w"] + w[f"{p}b"]


def _attention(w: Weights, p: str, x: Any, heads: int) -> Any:
    x = _norm(w, f"{p}norm1.", x)
    batch, length, width = x.shape
    q, k, v = (
        _linear(w, f"{p}{n}.", x).reshape(batch, length, heads, -1).transpose(1, 2) for n in "qkv"
    )
    out = f.scaled_dot_product_attention(q, k, v, is_causal=True)
    return _linear(w, f"{p}o.", out.transpose(1, 2).reshape(batch, length, width))


def image_net(w: Weights, feeds: dict[str, Any]) -> Any:
    x = feeds["image"]
    for i, stride in enumerate((2, 1)):
        y = f.conv2d(x, w[f"conv{i}.w"], stride=stride, padding=1)
        y = f.batch_norm(y, None, None, w[f"bn{i}.scale"], w[f"bn{i}.bias"], training=True)
        x = x + f.relu(y) if i else f.max_pool2d(f.relu(y), 3, 2)
    x = f.relu(f.conv2d(x, w["depth.w"], w["depth.b"], padding=1, groups=6))
    x = f.avg_pool2d(x, 2, 1).mean(dim=(2, 3))
    return f.cross_entropy(f.linear(x, w["head.w"], w["head.b"]), feeds["labels"])


# How torch orders the gates that ONNX has as input, output, forget, cell or update, reset, hidden.
_ORDER = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}


def recurrent_net(w: Weights, feeds: dict[str, Any], kind: str) -> Any:
    hidden = w["r"].shape[2]
    layer = getattr(torch.nn, kind)(4, hidden, bidirectional=True)
    layer.requires_grad_(False)
    flat: dict[str, Any] = {}
    for i, suffix in enumerate(("", "_reverse")):
        parts = {"weight_ih": w["w"][i], "weight_hh": w["r"][i]}
        parts["bias_ih"], parts["bias_hh"] = w["b"][i].chunk(2)
        for name, part in parts.items():
            gates = part.chunk(len(_ORDER[kind]))
            flat[f"{name}_l0{suffix}"] = torch.cat([gates[j] for j in _ORDER[kind]])
    x = w["table"][feeds["tokens"]]
    _, last = torch.func.functional_call(layer, flat, (x,))
    last = last[0] if kind == "LSTM" else last
    joined = last.transpose(0, 1).reshape(last.shape[1], -1)
    return f.cross_entropy(joined @ w["head.w"] + w["head.b"], feeds["labels"])
