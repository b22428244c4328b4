"""Trains a small model under torchrun; rank 0 prints the losses of each kind, eager and wrapped.

torchrun --nproc-per-node 2 tests/dynamo/distributed_training.py ddp fsdp
torchrun --nproc-per-node 2 tests/dynamo/distributed_training.py ddp --kill-rank 1
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sardonyx.train import report, wrap

TIMEOUT = timedelta(seconds=60)  # a rank that waits longer for another raises an error


class Net(nn.Module):
    """An encoder layer and a next-token loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 16, dropout=0.1, batch_first=True) for _ in range(1)
        )
        self.head = nn.Linear(16, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        logits = self.head(hidden[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, ids[:, 1:].flatten())


def trained(kind: str, is_wrapped: bool, kill_rank: int | None) -> dict[str, Any]:
    """The losses of this rank in four steps, and how many graphs were compiled."""
    torch.manual_seed(0)
    model = Net()
    if kind == "fsdp":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    if is_wrapped:
        wrap(model)
    call = DistributedDataParallel(model) if kind == "ddp" else model
    optimizer = torch.optim.AdamW(call.parameters(), 1e-3)
    torch.manual_seed(10 + dist.get_rank())
    losses = []
    for step in range(4):
        if step == 2 and kill_rank == dist.get_rank():
            print(f"killed at {time.time()}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = call(torch.randint(0, 20, (2, 6)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "graphs": len(report(model).graphs) if is_wrapped else 0}


def main() -> None:
    """Train with every kind, in one group of processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+", choices=("ddp", "fsdp"))
    parser.add_argument("--kill-rank", type=int, help="the rank that is killed in the third step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    for kind in args.kinds:
        eager, wrapped = trained(kind, False, None), trained(kind, True, args.kill_rank)
        if dist.get_rank() == 0:
            print(json.dumps({"kind": kind, "eager": eager, "wrapped": wrapped}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
