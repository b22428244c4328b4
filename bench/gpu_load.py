"""Measures how fast a large float16 model is loaded to a GPU, and the host memory it takes.

    python bench/gpu_load.py [--gb 20] [--folder DIR] [--json]

Makes a model of plain MatMul layers with external data in DIR (removed afterwards), and measures in
one run, with the file in the page cache: reading it with the same threads, copying pinned memory,
a session's start, and the naive way (read all, then upload). Host memory is what the process has
over what it had after CUDA's context and a first product, at its peak. All bytes are checked by a
run against torch. Without a GPU, torch's CPU device stands in, and the ratio means nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper

import sardonyx
from sardonyx.providers.torch.loader import BUFFER_BYTES, N_SPARE, N_THREADS

GB = 10**9
COUNTED = ("RssAnon", "RssShmem", "RssFile")


@dataclass(frozen=True, slots=True)
class Model:
    """y = x W0 W1 ...: layer i is one block of numbers, rotated by i rows."""

    path: Path
    block: Any  # float16, square
    n_layers: int

    @property
    def data(self) -> Path:
        return self.path.with_suffix(".data")

    @property
    def size_bytes(self) -> int:
        return int(self.n_layers * self.block.nbytes)


def make_model(folder: Path, size_bytes: int, width: int) -> Model:
    """Writes the model and its data."""
    rng = np.random.default_rng(0)
    block = rng.standard_normal((width, width), np.float32)
    block = (block / np.sqrt(width)).astype(np.float16)
    model = Model(folder / "model.onnx", block, max(1, size_bytes // block.nbytes))
    nodes, weights = [], []
    with model.data.open("wb") as file:
        for i in range(model.n_layers):
            shift = i % width
            for part in (block[shift:], block[:shift]):
                file.write(part.reshape(-1).view(np.uint8).data)
            weight = TensorProto(
                name=f"w{i}", data_type=TensorProto.FLOAT16, dims=block.shape, data_location=1
            )
            place = {"location": model.data.name, "offset": i * block.nbytes}
            for key, value in {**place, "length": block.nbytes}.items():
                weight.external_data.add(key=key, value=str(value))
            weights.append(weight)
            nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]))
        file.flush()
        os.fsync(file.fileno())  # so that nothing is written while others are timed
    infos = [
        helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT16, ["n", width])
        for i in (0, model.n_layers)
    ]
    graph = helper.make_graph(nodes, "layers", infos[:1], infos[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model.path.write_bytes(made.SerializeToString())
    return model


def read_rate(path: Path, n_threads: int) -> float:
    """Bytes per second of reads into as many buffers as the loader has."""
    size = path.stat().st_size
    offsets = iter(range(0, size, BUFFER_BYTES))
    lock = threading.Lock()
    descriptor = os.open(path, os.O_RDONLY)

    free: SimpleQueue[Any] = SimpleQueue()
    for _ in range(n_threads + N_SPARE):
        free.put(np.zeros(BUFFER_BYTES, np.uint8))

    def work() -> None:
        while True:
            with lock:
                offset = next(offsets, None)
            if offset is None:
                return
            buffer = free.get()
            os.preadv(descriptor, [buffer], offset)
            free.put(buffer)

    seconds = timed(lambda: in_threads(work, n_threads))
    os.close(descriptor)
    return size / seconds


def in_threads(work: Callable[[], None], n_threads: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def copy_rate(device: torch.device, size_bytes: int = 8 * GB) -> float:
    """Bytes per second from pinned memory to the device."""
    is_gpu = device.type == "cuda"
    host = torch.ones(64 << 20, dtype=torch.uint8, pin_memory=is_gpu)
    there = torch.empty_like(host, device=device)
    n_copies = max(1, (size_bytes if is_gpu else GB) // host.nbytes)

    def work() -> None:
        for _ in range(n_copies):
            there.copy_(host, non_blocking=True)
        wait(device)

    work()
    return n_copies * host.nbytes / timed(work)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def host_bytes() -> dict[str, int]:
    """The memory of this process, by kind."""
    with open("/proc/self/status", encoding="ascii") as status:
        rows = dict(line.split(":", 1) for line in status)
    return {key: int(rows[key].split()[0]) * 1024 for key in COUNTED}


@contextmanager
def watched() -> Iterator[dict[str, int]]:
    """The most that memory grows by meanwhile, in all ("all") and of each kind."""
    gc.collect()
    before, grown, over = host_bytes(), dict.fromkeys(("all", *COUNTED), 0), threading.Event()

    def look() -> None:
        while True:
            now = host_bytes()
            by = {key: now[key] - before[key] for key in COUNTED}
            by["all"] = sum(by.values())
            for key, size in by.items():
                grown[key] = max(grown[key], size)
            if over.wait(0.01):
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield grown
    finally:
        over.set()
        thread.join()


def load(model: Model, device: torch.device) -> tuple[dict[str, Any], sardonyx.InferenceSession]:
    """A session of the model."""
    name = "CUDAExecutionProvider" if device.type == "cuda" else "TorchExecutionProvider"
    options = {} if device.type == "cuda" else {"device": "cpu"}
    with watched() as grown:
        started = time.perf_counter()
        session = sardonyx.InferenceSession(str(model.path), providers=[(name, options)])
        wait(device)
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "host_bytes": grown}, session


def naive(model: Model, device: torch.device) -> dict[str, Any]:
    """Reads the whole file, then uploads its weights."""
    with watched() as grown:
        started = time.perf_counter()
        data = np.fromfile(model.data, np.uint8).reshape(model.n_layers, -1)
        there = [torch.from_numpy(row).to(device) for row in data]
        wait(device)
        seconds = time.perf_counter() - started
    del there
    return {"seconds": seconds, "host_bytes": grown}


def worst(model: Model, session: sardonyx.InferenceSession, device: torch.device) -> float:
    """The largest difference from torch's own products of the same numbers, of the largest one."""
    x = np.random.default_rng(1).standard_normal((1, len(model.block))).astype(np.float16)
    (found,) = session.run(None, {"x0": x})
    block = torch.from_numpy(model.block).to(device)
    y = torch.from_numpy(x).to(device)
    for i in range(model.n_layers):
        y = y @ block.roll(-(i % len(block)), 0)
    wanted = y.float().cpu().numpy()
    return float(np.abs(found.astype(np.float32) - wanted).max() / np.abs(wanted).max())


def measure(model: Model, device: torch.device) -> dict[str, Any]:
    square = torch.ones(1024, 1024, dtype=torch.float16, device=device)
    (square @ square).sum().item()
    with tempfile.TemporaryDirectory() as folder:  # the first session imports the code for it
        load(make_model(Path(folder), 0, 64), device)
    read_rate(model.data, N_THREADS)  # what is not cached comes into the cache
    figures: dict[str, Any] = {
        "bytes": model.size_bytes,
        "threads": N_THREADS,
        "read_rate": read_rate(model.data, N_THREADS),
        "copy_rate": copy_rate(device),
    }
    figures["sardonyx"], session = load(model, device)
    figures["error"] = worst(model, session, device)
    del session
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    figures["naive"] = naive(model, device)
    rate = model.size_bytes / figures["sardonyx"]["seconds"]
    figures["ratio"] = rate / min(figures["read_rate"], figures["copy_rate"])
    return figures


def show(figures: dict[str, Any]) -> None:
    size = figures["bytes"]
    print(f"{size / GB:.1f} GB of float16 weights, {figures['threads']} threads")
    print(f"  reading the cached file   {figures['read_rate'] / GB:6.1f} GB/s")
    print(f"  copying pinned memory     {figures['copy_rate'] / GB:6.1f} GB/s")
    for key, what in (("sardonyx", "a session's start"), ("naive", "read all, then upload")):
        row = figures[key]
        grown = {kind: f"{n / 1e6:.0f}" for kind, n in row["host_bytes"].items()}
        kinds = ", ".join(f"{kind} {grown[kind]}" for kind in COUNTED)
        print(
            f"  {what:<25} {size / row['seconds'] / GB:6.1f} GB/s  {row['seconds']:.2f} s, "
            f"{grown['all']} MB more of host memory ({kinds})"
        )
    print(f"  {figures['ratio']:.2f} of the smaller bandwidth; worst error {figures['error']:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=20.0)
    parser.add_argument("--width", type=int, default=8192, help="rows and columns of a layer")
    parser.add_argument("--folder", type=Path, help="where the model is made")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    device = torch.device(arguments.device)
    try:
        model = make_model(folder, int(arguments.gb * GB), arguments.width)
        figures = measure(model, device)
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        json.dump(figures, sys.stdout, indent=2)
    else:
        show(figures)


if __name__ == "__main__":
    main()
