"""Trains a small transformer under torchrun; rank 0 prints the losses, and `report` if wrapped.

python -m torch.distributed.run --nproc-per-node 2 tests/dynamo/distributed_training.py ddp sardonyx
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sardonyx.train import report, wrap


class Net(nn.Module):
    """Two encoder layers and a next-token loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(32, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        logits = self.head(hidden[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, ids[:, 1:].flatten())


def main(kind: str, engine: str) -> None:
    """Train five steps."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net()
    if kind == "fsdp":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    if engine == "sardonyx":
        wrap(model)
    call = DistributedDataParallel(model) if kind == "ddp" else model
    optimizer = torch.optim.AdamW(call.parameters(), 1e-3)
    torch.manual_seed(10 + dist.get_rank())
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = call(torch.randint(0, 50, (4, 12)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        calls = len(report(model).graphs) if engine == "sardonyx" else 0
        print(json.dumps({"losses": losses, "graphs": calls}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:3])
