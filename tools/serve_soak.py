"""Mixed load on a server whose workers are killed and whose models are swapped.

tools/serve_soak.py --minutes 20

Checks every answer. Clients send JSON and binary tensors of changing lengths, leave in the middle,
and send mutated requests; the youngest worker is killed and a model is replaced again and again.
Exit code 1 if an answer is wrong, or a request is lost that no killed worker had. The memory of the
oldest worker, which is never killed, is sampled, and its slope is printed.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
import numpy as np

from sardonyx.serve.grpc.messages import SERVICE
from tests.serve import models
from tests.serve.http_client import Client, tensor
from tests.serve.mutants import grpc_request, http_requests, mutant
from tests.serve.process import Process

CLIENTS: Final = 6
KILL_S: Final = 5.0
SWAP_S: Final = 3.0
SAMPLE_S: Final = 1.0
BLAMED_S: Final = 3.0  # after a kill, in which a lost request is the killed worker's
FAULTS: Final = ("WRONG", "LOST", "REFUSED", "grpc hung")
LOST: Final = (OSError, http.client.HTTPException)


class Soak:
    """The state of a soak: what was counted, and when workers were killed."""

    def __init__(self, folder: Path, server: Process, seconds: float) -> None:
        self.folder, self.server = folder, server
        self.end = time.monotonic() + seconds
        self.counts: collections.Counter[str] = collections.Counter()
        self.kills: list[float] = []
        self.samples: list[tuple[float, int]] = []

    @property
    def is_over(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() > self.end

    def note_lost(self) -> None:
        """Count a request without an answer, by whether a worker was killed just before."""
        time.sleep(0.2)  # a kill that is under way is noted after the signal
        now = time.monotonic()
        is_blamed = any(now - each < BLAMED_S for each in self.kills)
        self.counts["lost with a killed worker" if is_blamed else "LOST"] += 1

    def client(self, number: int) -> None:
        """Send requests and check their answers."""
        chance = np.random.default_rng(number)
        client = Client(self.server.http_port)
        while not self.is_over:
            try:
                is_right = ASKS[int(chance.integers(len(ASKS)))](client, chance)
                self.counts["answers" if is_right else "WRONG"] += 1
            except (AssertionError, KeyError) as error:
                self.counts["REFUSED"] += 1
                print(f"refused: {error}", flush=True)
            except LOST:
                self.note_lost()
                client = Client(self.server.http_port)

    def leaver(self) -> None:
        """Send requests, whole or cut off or mutated, and leave."""
        chance, wholes = random.Random(3), http_requests("swapped")
        while not self.is_over:
            whole = chance.choice(wholes)
            data = mutant(whole, chance) if chance.random() < 0.7 else whole
            try:
                with socket.create_connection(("127.0.0.1", self.server.http_port), 10) as sock:
                    sock.sendall(data)
                    self.counts["hostile"] += 1
            except OSError:
                pass

    def grpc_leaver(self) -> None:
        """Send mutated messages of gRPC."""
        chance, whole = random.Random(4), grpc_request("swapped")
        with grpc.insecure_channel(f"127.0.0.1:{self.server.grpc_port}") as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer", bytes, bytes)
            while not self.is_over:
                try:
                    call(mutant(whole, chance), timeout=20)
                except grpc.RpcError as error:
                    self.counts["grpc hung"] += error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                self.counts["hostile over gRPC"] += 1

    def killer(self) -> None:
        """Kill the youngest worker, if there are two."""
        while not self.is_over:
            time.sleep(KILL_S)
            children = self.server.children()
            if len(children) == 2:
                self.kills.append(time.monotonic())
                os.kill(max(children, key=start_of), signal.SIGKILL)

    def swapper(self) -> None:
        """Replace a model by another."""
        while not self.is_over:
            time.sleep(SWAP_S)
            text = (models.DOUBLE, models.TRIPLE)[self.counts["swaps"] % 2]
            models.save(text, self.folder / "swapped.onnx")
            self.counts["swaps"] += 1

    def sampler(self) -> None:
        """Sample the memory of the oldest worker."""
        oldest = min(self.server.children(), key=start_of)
        while not self.is_over:
            time.sleep(SAMPLE_S)
            for line in Path(f"/proc/{oldest}/smaps_rollup").read_text().splitlines():
                if line.startswith("Anonymous:"):
                    self.samples.append((time.monotonic(), int(line.split()[1]) << 10))

    def slope(self) -> tuple[float, float]:
        """Return the memory in MB at the end, and its slope in MB per minute of the second half."""
        half = np.array(self.samples[len(self.samples) // 2 :])
        slope = np.polyfit(half[:, 0], half[:, 1], 1)[0] * 60
        return half[-1, 1] / 1e6, slope / 1e6


def start_of(pid: int) -> int:
    """Return when a process was started: pids begin anew now and then."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def ask_swapped(client: Client, chance: np.random.Generator) -> bool:
    """Ask the model that is swapped: its answers are doubled or tripled, never mixed."""
    x = chance.standard_normal((int(chance.integers(1, 4)), 3)).astype(np.float32)
    y = client.infer("swapped", {"x": x})["y"]
    return any(np.array_equal(y, x * np.float32(factor)) for factor in (2, 3))


def ask_masked(client: Client, chance: np.random.Generator) -> bool:
    """Ask the model whose requests are padded."""
    length = int(chance.integers(1, 40))
    ids = chance.integers(1, 99, (1, length))
    outputs = client.infer("masked", {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    return bool(outputs["total"].item() == ids.sum() and np.array_equal(outputs["tokens"], ids * 2))


def ask_json(client: Client, chance: np.random.Generator) -> bool:
    """Ask in JSON, in part wrongly."""
    index = chance.integers(0, 6, 3)
    answer = client.post("/v2/models/pick/infer", {"inputs": [tensor("index", index)]})
    if index.max() > 3:
        return answer.status in (400, 500)
    return bool(answer.json["outputs"][0]["data"] == [float(i + 1) for i in index])


ASKS: Final[tuple[Callable[[Client, np.random.Generator], bool], ...]] = (
    ask_swapped,
    ask_masked,
    ask_json,
)


def main() -> int:
    """Soak a server; exit code 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models.save(models.DOUBLE, folder / "swapped.onnx")
        models.save(models.MASKED, folder / "masked.onnx")
        models.save(models.PICK, folder / "pick.onnx")
        with Process(
            "--folders", name, "--workers", "2", "--watch-s", "0.3", "--grpc-port", "0"
        ) as server:
            soak = Soak(folder, server, given.minutes * 60)
            bodies = [soak.leaver, soak.grpc_leaver, soak.killer, soak.swapper, soak.sampler]
            threads = [threading.Thread(target=each) for each in bodies]
            clients = range(CLIENTS)
            threads += [threading.Thread(target=soak.client, args=(n,)) for n in clients]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            server.terminate()
            status = server.wait()
    size_mb, slope = soak.slope()
    facts = ", ".join(f"{count} {what}" for what, count in sorted(soak.counts.items()))
    print(f"{given.minutes:g} minutes: {facts}, {len(soak.kills)} workers killed")
    print(f"memory of the oldest worker: {size_mb:.1f} MB, slope {slope:+.2f} MB per minute")
    return 1 if status or any(soak.counts[each] for each in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
