"""Serving over loopback: requests per second, latency and CPU time, against other servers.

    python bench/serve.py MODEL.onnx [--servers batching,single,onnxruntime] [--connections 64]
        [--lengths 8-48] [--seconds 8] [--rounds 3] [--memory]

wrk (Debian's package of that name) sends binary requests with random inputs of one row, each of a
length of its own for models with an open second dim. Servers take turns; the best round counts.

batching      sardonyx serve
single        sardonyx serve --max-batch 1
sardonyx      a loop over session.run in the same process, without a server
onnxruntime   starlette on uvicorn, which calls onnxruntime in a thread, with the same codecs
fastapi       FastAPI on uvicorn with onnxruntime; LITSERVE: litserve with onnxruntime: both in JSON
mlserver      MLServer with onnxruntime, in the protocol's JSON

--python NAME=PATH names the Python of a rival's environment: their pins clash.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx
from sardonyx.serve.models.signature import Signature, signature_of
from sardonyx.serve.protocol.tensors import to_bytes

FEEDS = 200
COLUMNS = ("min ms", "p50 ms", "p95 ms", "p99 ms", "CPU ms")
RIVALS = Path(__file__).with_name("serve_rivals.py")
PYTHONS: dict[str, str] = {}  # by rival
LUA = """
local requests, count, position = {}, 0, 0
function init(arguments)
  wrk.headers["Host"] = "localhost"
  for line in io.lines(os.getenv("BENCH_REQUESTS")) do
    local size, file = line:match("(%d+) (.*)")
    local handle = io.open(file, "rb")
    local body = handle:read("*a")
    handle:close()  -- wrk has few numbers of files for its connections
    local headers = {["Content-Type"] = os.getenv("BENCH_TYPE")}
    if size ~= "0" then headers["Inference-Header-Content-Length"] = size end
    count = count + 1
    requests[count] = wrk.format("POST", os.getenv("BENCH_PATH"), headers, body)
  end
end
request = function() position = position % count + 1; return requests[position] end
done = function(summary, latency)
  io.write(string.format("RESULT %d %d %f %f %f %f %d\\n", summary.requests, summary.duration,
    latency.min, latency:percentile(50), latency:percentile(95), latency:percentile(99),
    summary.errors.connect + summary.errors.status + summary.errors.read
    + summary.errors.timeout))
end
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--servers", default="batching,single,onnxruntime")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--lengths", default="8-48", help="of the open second dim")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--options", default="", help="more options of sardonyx serve")
    parser.add_argument("--memory", action="store_true", help="of 1, 2 and 4 workers instead")
    given = parser.parse_args()
    PYTHONS.update(each.split("=", 1) for each in given.python)
    if given.memory:
        show_memory(given.model)
        return
    feeds = list(random_feeds(given.model, *map(int, given.lengths.split("-"))))
    print(f"{given.model.name}: {given.connections} connections, {os.cpu_count()} CPUs")
    print(f"{'server':<12} {'requests/s':>10}" + "".join(f"{name:>9}" for name in COLUMNS))
    best: dict[str, tuple[float, ...]] = {}
    with tempfile.TemporaryDirectory() as folder:
        binary = write_requests(Path(folder), feeds)
        plain = write_requests(Path(folder), feeds, "json")
        protocol = write_requests(Path(folder), feeds, "v2json")
        bodies = {"fastapi": plain, "litserve": plain, "mlserver": protocol}
        for _ in range(given.rounds):
            for name in given.servers.split(","):
                if name == "sardonyx":
                    result = loop(given.model, feeds, given.seconds)
                else:
                    requests = bodies.get(name, binary)
                    result = measure(name, given, requests)
                best[name] = max(best.get(name, (0.0,)), result)
    for name, (rate, *times, cpu) in best.items():
        percentiles = " ".join(f"{each:8.2f}" for each in times)
        print(f"{name:<12} {rate:10.0f} {percentiles} {cpu:8.2f}")


def random_feeds(model: Path, low: int, high: int) -> Iterator[dict[str, Any]]:
    """Yield inputs of one row."""
    signature: Signature = signature_of(sardonyx.InferenceSession(str(model)))
    chance = np.random.default_rng(1)
    for _ in range(FEEDS):
        length = int(chance.integers(low, high + 1))
        feed = {}
        for spec in signature.inputs:
            shape = [
                dim if isinstance(dim, int) else 1 if axis == 0 else length
                for axis, dim in enumerate(spec.shape)
            ]
            if spec.datatype.dtype.kind == "f":
                feed[spec.name] = chance.standard_normal(shape).astype(spec.datatype.dtype)
            else:
                top = 2 if "type" in spec.name or "mask" in spec.name else 20_000
                low_id = 1 if "mask" in spec.name else 0
                feed[spec.name] = chance.integers(low_id, top, shape).astype(spec.datatype.dtype)
        yield feed


def write_requests(folder: Path, feeds: list[dict[str, Any]], form: str = "binary") -> Path:
    """Write the bodies, and a list of them with the sizes of their JSON."""
    from sardonyx.serve.protocol.datatypes import BY_DTYPE

    lines = []
    for index, feed in enumerate(feeds):
        if form == "json":
            content, size = json.dumps({n: a.tolist() for n, a in feed.items()}).encode(), 0
        elif form == "v2json":
            inputs = [
                {
                    "name": name,
                    "datatype": BY_DTYPE[array.dtype].name,
                    "shape": list(array.shape),
                    "data": array.ravel().tolist(),
                }
                for name, array in feed.items()
            ]
            content, size = json.dumps({"inputs": inputs}).encode(), 0
        else:
            entries, parts = [], []
            for name, array in feed.items():
                parts.append(bytes(to_bytes(array)))
                entries.append(
                    {
                        "name": name,
                        "datatype": BY_DTYPE[array.dtype].name,
                        "shape": list(array.shape),
                        "parameters": {"binary_data_size": len(parts[-1])},
                    }
                )
            message = {"inputs": entries, "parameters": {"binary_data_output": True}}
            text = json.dumps(message).encode()
            content, size = b"".join([text, *parts]), len(text)
        path = folder / f"{form}{index}"
        path.write_bytes(content)
        lines.append(f"{size} {path}")
    listing = folder / f"list_{form}"
    listing.write_text("\n".join(lines))
    return listing


def loop(model: Path, feeds: list[dict[str, Any]], seconds: float) -> tuple[float, ...]:
    """Return the rate of a plain loop over session.run."""
    session = sardonyx.InferenceSession(str(model))
    for feed in feeds:
        session.run(None, feed)
    times, began, cpu = [], time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) - began < seconds:
        session.run(None, feeds[len(times) % len(feeds)])
        times.append(time.perf_counter() - now)
    least, p50, p95, p99 = np.percentile(times, (0, 50, 95, 99)) * 1e3
    used = (time.process_time() - cpu) / len(times) * 1e3
    return len(times) / (time.perf_counter() - began), least, p50, p95, p99, used


@contextlib.contextmanager
def serving(name: str, model: Path, *options: str) -> Iterator[tuple[int, int, str]]:
    """Yield the pid, port and path of a server."""
    ours = [sys.executable, "-m", "sardonyx", "serve", f"m={model}", "--port", "0", *options]
    commands = {"batching": ours, "single": [*ours, "--max-batch", "1"]}
    rival = [PYTHONS.get(name, sys.executable), str(RIVALS), name, str(model)]
    if name == "mlserver":
        rival = [rival[0], str(RIVALS.with_name("serve_mlserver.py")), str(model)]
    command = commands.get(name, rival)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.match(r"HTTP http://\S+:(\d+)(\S*)$", line.strip())
            if found:
                yield process.pid, int(found[1]), found[2] or "/v2/models/m/infer"
                break
        else:
            raise SystemExit(f"{name} does not start: {' '.join(command)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def show_memory(model: Path) -> None:
    """Print the proportional memory of servers with more and more workers."""
    for count in (1, 2, 4):
        with serving("batching", model, "--workers", str(count)) as (pid, _, _):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pids = children if count > 1 else [str(pid)]
            sizes = []
            for each in pids:
                text = Path(f"/proc/{each}/smaps_rollup").read_text()
                sizes.append(int(re.search(r"^Pss: +(\d+)", text, re.MULTILINE)[1]) / 1e3)  # type: ignore[index]
            each_mb = ", ".join(f"{size:.0f}" for size in sizes)
            print(
                f"{count} workers: {sum(sizes):.0f} MB of memory, shared pages by share: {each_mb}"
            )


def wait_for(port: int, path: str, requests: Path) -> None:
    """Wait until a server answers the first request: rivals print the port before they listen."""
    size, _, file = requests.read_text().partition("\n")[0].partition(" ")
    headers = {"Content-Type": content_type(requests)}
    if size != "0":
        headers["Inference-Header-Content-Length"] = size
    for _ in range(600):
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("POST", path, Path(file).read_bytes(), headers)
            if connection.getresponse().status == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"nothing answers on port {port}")


def content_type(requests: Path) -> str:
    """Return the content type of requests."""
    return "application/json" if "json" in requests.name else "application/octet-stream"


def cpu_seconds(group: int) -> float:
    """Return the CPU time of the processes of a group."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(name: str, given: argparse.Namespace, requests: Path) -> tuple[float, ...]:
    """Return requests per second, latencies in ms, and CPU ms per request of a server."""
    with (
        serving(name, given.model, *given.options.split()) as (pid, port, path),
        tempfile.NamedTemporaryFile("w", suffix=".lua") as script,
    ):
        wait_for(port, path, requests)
        script.write(LUA)
        script.flush()
        environment = {
            **os.environ,
            "BENCH_REQUESTS": str(requests),
            "BENCH_PATH": path,
            "BENCH_TYPE": content_type(requests),
        }

        def wrk(seconds: float) -> str:
            command = [
                "wrk", "-t1", f"-c{given.connections}", f"-d{seconds:g}s", "--timeout", "60s",
                "-s", script.name, f"http://127.0.0.1:{port}",
            ]  # fmt: skip
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            return done.stdout

        wrk(2)
        before = cpu_seconds(pid)
        output = wrk(given.seconds)
        cpu = cpu_seconds(pid) - before
    found = re.search(r"RESULT (\d+) (\d+) (\S+) (\S+) (\S+) (\S+) (\d+)", output)
    assert found is not None, output
    n_requests, duration_us, *times_us, n_errors = map(float, found.groups())
    if n_errors:
        raise SystemExit(f"{name}: {n_errors:g} of {n_requests:g} requests failed")
    rate = n_requests / duration_us * 1e6
    return rate, *(each / 1e3 for each in times_us), cpu / n_requests * 1e3


if __name__ == "__main__":
    main()
