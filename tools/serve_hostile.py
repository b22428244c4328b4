"""Mutated requests over HTTP and gRPC, beside a client that wants its answers.

tools/serve_hostile.py --count 100000

Exit code 1 if the server ends, if the client between them gets a wrong or no answer, or if the
server's memory grows by more than a few MB after the first tenth of the requests.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import select
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

import grpc
import numpy as np

from sardonyx.serve.grpc.messages import SERVICE
from tests.serve import models
from tests.serve.http_client import Client
from tests.serve.mutants import grpc_request, http_requests, mutant
from tests.serve.process import Process

AT_ONCE: Final = 32  # connections, and calls
ALLOWED_MB: Final = 8.0
X: Final = np.ones((1, 3), np.float32)


class Polite:
    """A client that asks again and again, and measures."""

    def __init__(self, port: int) -> None:
        self.seconds: list[float] = []
        self.faults = 0
        self.is_over = False
        self._port = port
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        with Client(self._port) as client:
            while not self.is_over:
                began = time.perf_counter()
                try:
                    is_right = np.array_equal(client.infer("double", {"x": X})["y"], 2 * X)
                except (OSError, AssertionError):
                    is_right = False
                self.seconds.append(time.perf_counter() - began)
                self.faults += not is_right
                time.sleep(0.002)

    def stop(self) -> str:
        """End, and return what was measured."""
        self.is_over = True
        self._thread.join()
        p50, p99 = np.percentile(self.seconds, (50, 99)) * 1e3
        return f"{len(self.seconds)} answers between them, p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def send_http(port: int, count: int, seed: int) -> None:
    """Send mutants over connections of their own, of which some are kept open for a while."""
    chance, wholes, held = random.Random(seed), http_requests("double"), []
    for _ in range(count):
        with contextlib.suppress(OSError):
            sock = socket.create_connection(("127.0.0.1", port), 10)
            sock.sendall(mutant(chance.choice(wholes), chance))
            held.append(sock)
        if len(held) == AT_ONCE:
            for sock in select.select(held, [], [], 0.02)[0]:
                with contextlib.suppress(OSError):
                    sock.recv(1 << 12)
            for sock in held:
                sock.close()
            held = []


def send_grpc(port: int, count: int, seed: int) -> Counter[str]:
    """Send mutants as calls, several at a time; return how many ended how."""
    chance, whole, codes = random.Random(seed), grpc_request("double"), Counter[str]()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer", bytes, bytes)
        for begin in range(0, count, AT_ONCE):
            calls = [
                call.future(mutant(whole, chance), timeout=20)
                for _ in range(min(AT_ONCE, count - begin))
            ]
            codes.update(each.code().name for each in calls)
    return codes


def memory_mb(pid: int) -> float:
    """Return the memory of a process that is not shared."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) / 1e3
    return 0.0


def main() -> int:
    """Send them all; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="of each protocol")
    count = parser.parse_args().count
    faults = 0
    with tempfile.TemporaryDirectory() as name:
        models.save(models.DOUBLE, Path(name) / "double.onnx")
        with Process("--folders", name, "--grpc-port", "0") as server:
            for protocol in ("HTTP", "gRPC"):
                polite = Polite(server.http_port)
                sizes, codes = [], Counter[str]()
                for seed, part in enumerate((count // 10, count - count // 10)):
                    if protocol == "HTTP":
                        send_http(server.http_port, part, seed)
                    else:
                        codes += send_grpc(server.grpc_port, part, seed)
                    sizes.append(memory_mb(server.pid))
                print(f"{count} mutants over {protocol}: {polite.stop()}")
                print(f"  memory {sizes[0]:.1f} MB after a tenth, {sizes[1]:.1f} MB at the end")
                if codes:
                    print("  " + ", ".join(f"{n} {code}" for code, n in codes.most_common()))
                faults += polite.faults + (sizes[1] - sizes[0] > ALLOWED_MB)
                faults += codes["DEADLINE_EXCEEDED"] + codes["UNAVAILABLE"] + codes["INTERNAL"]
            server.terminate()
            status = server.wait()
            if "Traceback" in (log := server.log()):
                print(log[-3000:])
                faults += 1
    return 1 if faults or status else 0


if __name__ == "__main__":
    sys.exit(main())
