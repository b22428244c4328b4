"""A fine-tuning script as published for ORTModule: BERT, a linear schedule, clipping, evaluation.

python -m sardonyx.as_onnxruntime tools/training/use_ortmodule.py
"""

from __future__ import annotations

import copy
import io
import random

import numpy as np
import onnxruntime
import torch
import torch_ort
from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule
from sentences import Sentences, classifier, compare
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from transformers import get_linear_schedule_with_warmup

EPOCHS = 2


def set_seed(seed: int) -> None:
    """As such scripts do."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def train(model: nn.Module) -> tuple[list[float], float]:
    """Losses of all steps, and the accuracy after the last."""
    set_seed(42)
    data, held_out = Sentences(48, 1), Sentences(20, 2)
    loader = DataLoader(data, 8, sampler=RandomSampler(data))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-8)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, EPOCHS * len(loader))
    losses = []
    for _ in range(EPOCHS):
        model.train()
        for batch in loader:
            model.zero_grad()
            outputs = model(
                batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]
            )
            loss = outputs[0]
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    model.eval()
    n_right = 0
    for batch in DataLoader(held_out, 8, sampler=SequentialSampler(held_out)):
        with torch.no_grad():
            logits = model(batch["input_ids"], attention_mask=batch["attention_mask"])[0]
        n_right += int((logits.argmax(1) == batch["labels"]).sum())
    return losses, n_right / len(held_out)


def check_attributes(model: nn.Module) -> None:
    """An ORTModule has the attributes, names and states of its module."""
    plain = classifier()
    assert model.config.hidden_size == plain.config.hidden_size
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert [n for n, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]
    assert isinstance(model.module, type(plain))
    saved = io.BytesIO()
    torch.save({"model": model.state_dict()}, saved)
    saved.seek(0)
    plain.load_state_dict(torch.load(saved)["model"])
    model.load_state_dict(plain.state_dict())
    copied = copy.deepcopy(model)
    assert torch.equal(copied.bert.pooler.dense.weight, plain.bert.pooler.dense.weight)
    assert next(model.to("cpu").parameters()).device.type == "cpu"
    assert len(list(model.children())) == len(list(plain.children()))


def main() -> None:
    """Compare with the plain module, by both import names."""
    assert "sardonyx" in str(onnxruntime.__file__), onnxruntime.__file__
    expected, accuracy = train(classifier())
    debug = DebugOptions(
        save_onnx=False, log_level=LogLevel.WARNING, onnx_prefix="BertForSequenceClassification"
    )
    model = ORTModule(classifier(), debug)
    found, found_accuracy = train(model)
    compare("ORTModule, training", found, expected)
    assert found_accuracy == accuracy, (found_accuracy, accuracy)
    check_attributes(model)
    losses, _ = train(torch_ort.ORTModule(classifier()))
    compare("torch_ort, training", losses, expected)
    losses, _ = train(onnxruntime.training.ORTModule(classifier()))
    compare("onnxruntime.training.ORTModule, training", losses, expected)


if __name__ == "__main__":
    main()
