"""Kernels of calls by torch's profiler: where one spends time that another does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.devices import synchronize

CALLS = 10
TOP = 25
WIDTH = 70


def kernels(call: Callable[[], Any], device: torch.device) -> list[tuple[float, float, str]]:
    """Microseconds and launches per call of each kernel, the longest first."""
    on_host = device.type == "cpu"
    activity = ProfilerActivity.CPU if on_host else ProfilerActivity.CUDA
    with profile(activities=[activity]) as found:
        for _ in range(CALLS):
            call()
        synchronize(device)
    rows = []
    for event in found.key_averages():
        total = event.self_cpu_time_total if on_host else event.self_device_time_total
        if total > 0:
            rows.append((total / CALLS, event.count / CALLS, event.key))
    return sorted(rows, reverse=True)


def show(title: str, calls: Mapping[str, Callable[[], Any]], device: torch.device) -> None:
    """Prints the kernels of each call, and all of them in sum."""
    for name, call in calls.items():
        found = kernels(call, device)
        total, launches = sum(r[0] for r in found), sum(r[1] for r in found)
        print(f"\n{title}, {name}: {total:.0f} us in {launches:.0f} launches")
        for spent, count, key in found[:TOP]:
            print(f"{spent:>10.1f} us {count:>6.1f} x  {key[:WIDTH]}", flush=True)
