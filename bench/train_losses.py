"""Losses of training by `sardonyx.train.wrap` against those of eager torch, with the same seeds.

    pip install transformers
    python bench/train_losses.py                     # eight small models, 50 steps of AdamW each
    python bench/train_losses.py --models gpt2 t5 --steps 200

Prints, per model, the largest relative difference of a step's loss; that of eager torch from itself
with every parameter changed by 1e-7 of its size, which says how well the model's training is
conditioned; the ATen calls that torch runs; and TorchDynamo's graph breaks, here and by torch's own
backend "aot_eager". Fails for a difference over 1e-5 that is also over three times the second one,
for a call in torch, and for a graph break of our own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from train_steps import Batch, Classifier, Tagger, residual_network

LIMIT = 1e-5
N_TOKENS = 200
Model = tuple[nn.Module, Callable[[], Batch]]


def _ids(*shape: int, end: int = N_TOKENS) -> torch.Tensor:
    return torch.randint(3, end, shape)  # 0 to 2 pad, begin and end in some models


def bert() -> Model:
    """BERT with a classifier; sequences are padded."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=N_TOKENS, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, num_labels=3,
    )  # fmt: skip

    def batch() -> Batch:
        mask = (torch.arange(16) < torch.randint(8, 17, (4, 1))).long()
        return {"input_ids": _ids(4, 16), "attention_mask": mask, "labels": _ids(4, end=6) - 3}

    return BertForSequenceClassification(config), batch


def gpt2() -> Model:
    """GPT-2 with the loss of the next token."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=N_TOKENS, n_positions=32, n_embd=64, n_layer=2, n_head=2,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip

    def batch() -> Batch:
        ids = _ids(4, 24)
        return {"input_ids": ids, "labels": ids}

    return GPT2LMHeadModel(config), batch


def vit() -> Model:
    """A vision transformer with dropout."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        image_size=32, patch_size=8, num_labels=10, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )  # fmt: skip

    def batch() -> Batch:
        return {"pixel_values": torch.randn(4, 3, 32, 32), "labels": _ids(4, end=10)}

    return ViTForImageClassification(config), batch


def resnet18() -> Model:
    """ResNet-18 of an eighth of its widths.

    Batch norm over few elements, and large steps, amplify roundings: its maps are not smaller than
    4 x 4 in 16 images, and its learning rate is small.
    """
    network = residual_network((8, 16, 32, 64), 10)
    network.insert(len(network) - 1, nn.Dropout(0.1))
    return Classifier(network), lambda: {
        "x": torch.randn(16, 3, 128, 128), "labels": _ids(16, end=10)
    }  # fmt: skip


def _convolutions(n_in: int, n_out: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1), nn.GroupNorm(4, n_out), nn.SiLU(), nn.Dropout(0.1),
        nn.Conv2d(n_out, n_out, 3, padding=1), nn.GroupNorm(4, n_out), nn.SiLU(),
    )  # fmt: skip


class Unet(nn.Module):
    """Two levels with skip connections; the loss is that of denoising."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _convolutions(3, 16), _convolutions(16, 32)
        self.middle = _convolutions(32, 32)
        self.up_second, self.up_first = _convolutions(64, 16), _convolutions(32, 16)
        self.expand = nn.ConvTranspose2d(16, 16, 2, 2)
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor]:
        resize, pool = nn.functional.interpolate, nn.functional.max_pool2d
        first = self.first(x + noise)
        second = self.second(pool(first, 2))
        middle = resize(self.middle(pool(second, 2)), scale_factor=2, mode="bilinear")
        up = self.up_second(torch.cat([middle, second], 1))
        up = self.up_first(torch.cat([self.expand(up), first], 1))
        return (nn.functional.mse_loss(self.head(up), noise),)


def unet() -> Model:
    """A UNet that denoises."""
    return Unet(), lambda: {"x": torch.randn(2, 3, 32, 32), "noise": torch.randn(2, 3, 32, 32)}


def t5() -> Model:
    """T5, an encoder and a decoder with relative positions."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=N_TOKENS, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config), lambda: {
        "input_ids": _ids(4, 16), "labels": _ids(4, 12)
    }  # fmt: skip


def whisper() -> Model:
    """Whisper: convolutions and an encoder over spectrograms, and a decoder."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=N_TOKENS, num_mel_bins=16, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=128,
        decoder_ffn_dim=128, max_source_positions=20, max_target_positions=20, dropout=0.1,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config), lambda: {
        "input_features": torch.randn(4, 16, 40), "labels": _ids(4, 12)
    }  # fmt: skip


def lstm() -> Model:
    """Two LSTM layers."""
    return Classifier(Tagger(N_TOKENS, 64)), lambda: {
        "x": _ids(8, 20), "labels": _ids(8, end=10)
    }  # fmt: skip


MODELS: dict[str, Callable[[], Model]] = {
    "bert": bert, "gpt2": gpt2, "vit": vit, "resnet18": resnet18, "unet": unet, "t5": t5,
    "whisper": whisper, "lstm": lstm,
}  # fmt: skip


def trained(name: str, engine: str, n_steps: int) -> tuple[list[float], int, int]:
    """The losses of an engine's steps, how many calls torch ran, and how often graphs broke."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    module, make_batch = MODELS[name]()
    call, found = _engaged(module.train(), engine)
    rate = 1e-5 if name == "resnet18" else 1e-3
    optimizer = torch.optim.AdamW(module.parameters(), rate)
    losses = []
    for step in range(n_steps):
        torch.manual_seed(step + 1)
        optimizer.zero_grad()
        result = call(**make_batch())
        loss = result[0] if isinstance(result, tuple) else result.loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    n_breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    return losses, 0 if found is None else len(found.fallbacks), n_breaks


def _engaged(module: nn.Module, engine: str) -> tuple[Callable[..., Any], Any]:
    """The module as an engine calls it, and a report if it is ours."""
    if engine == "perturbed":
        with torch.no_grad():
            for p in module.parameters():
                p.mul_(1 + 1e-7)
    if engine == "aot_eager":
        return torch.compile(module, backend="aot_eager"), None
    if engine != "sardonyx":
        return module, None
    from sardonyx.train import report, wrap

    return wrap(module), report(module)


def _difference(losses: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))


def main() -> None:
    """Print a row per model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    print(f"{'model':9} {'first':>7} {'last':>7} {'difference':>11} {'perturbed':>10}", end="")
    print(f" {'in torch':>9} {'breaks':>7} {'aot_eager':>10}")
    failed = False
    for name in args.models:
        expected, _, _ = trained(name, "eager", args.steps)
        perturbed, _, _ = trained(name, "perturbed", args.steps)
        _, _, torch_breaks = trained(name, "aot_eager", 2)
        losses, n_fallbacks, n_breaks = trained(name, "sardonyx", args.steps)
        worst, drift = _difference(losses, expected), _difference(perturbed, expected)
        failed |= worst > max(LIMIT, 3 * drift) or n_fallbacks > 0 or n_breaks > torch_breaks
        print(f"{name:9} {losses[0]:7.3f} {losses[-1]:7.3f} {worst:11.1e} {drift:10.1e}", end="")
        print(f" {n_fallbacks:9} {n_breaks:7} {torch_breaks:10}", flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
