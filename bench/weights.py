"""Start, memory and speed of large models: the whole table of docs/results.md, against onnxruntime.

    python bench/weights.py MODELS [--tools ../shared/models] [--nets ZOO] [--size phi3-mini]

MODELS is a folder for language models (made there by --tools/make_llm.py if missing; 9 GB for
phi3-mini), ZOO one with bert_base.onnx and vit_base.onnx. Every figure comes from a fresh process,
with the files in the page cache; those of language models from --tools/run_llm.py.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MB = 1 << 20
LEVELS = {"4": "qop4", "0": "qop0"}
QDQ_LEVEL = "session.qdq_matmulnbits_accuracy_level"


@dataclass(frozen=True, slots=True)
class Bench:
    """Where models and tools are, and how much is run."""

    models: Path
    tools: Path
    size: str
    threads: int
    prompt: int
    tokens: int
    rounds: int

    def llm(self, form: str) -> Path:
        """A language model in one of its forms."""
        return self.models / f"{self.size}-{form}" / "model.onnx"

    def run(self, model: Path, runtime: str, **config: str) -> dict[str, Any]:
        """The best of a few fresh processes of run_llm.py, figure by figure."""
        command = [sys.executable, str(self.tools / "run_llm.py"), str(model), "--runtime", runtime]
        command += ["--threads", str(self.threads), "--prompt", str(self.prompt)]
        command += ["--tokens", str(self.tokens)]
        for key, value in config.items():
            command += ["--config", f"{key}={value}"]
        found = [_json(command) for _ in range(self.rounds)]
        best: dict[str, Any] = {k: min(f[k] for f in found) for k in found[0] if k != "runtime"}
        best["tokens_per_s"] = max(f["tokens_per_s"] for f in found)
        best["anon_mb"] = best["init_peak_anon_mb"] - best["base_anon_mb"]
        return best


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path)
    parser.add_argument("--tools", type=Path, default=Path("../shared/models"))
    parser.add_argument("--nets", type=Path, help="a folder with bert_base.onnx and vit_base.onnx")
    parser.add_argument("--size", default="phi3-mini")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    given = vars(parser.parse_args())
    nets = given.pop("nets")
    bench = Bench(**given)
    print(f"{bench.size}, {bench.threads} threads, prompt {bench.prompt}, best of {bench.rounds}")
    make_models(bench)
    language_models(bench)
    sharing(bench)
    in_memory(bench)
    if nets is not None:
        float_nets(bench, nets)


def _json(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def make_models(bench: Bench) -> None:
    """The forms of a language model that are missing, packs and all; then warms the page cache."""
    maker = [sys.executable, str(bench.tools / "make_llm.py")]
    for form, flags in (("qdq", ["qdq"]), ("qop4", ["qoperator"])):
        folder = bench.llm(form).parent
        if not bench.llm(form).exists():
            command = [*maker, str(folder), "--size", bench.size, "--format", *flags]
            subprocess.run(command, check=True)
    if not bench.llm("qop0").exists():
        _change_level(bench.llm("qop4"), bench.llm("qop0"))
    for form in ("qop4", "qdq"):
        for path in bench.llm(form).parent.iterdir():
            with path.open("rb") as file:
                while file.read(64 * MB):
                    pass


def _change_level(source: Path, target: Path) -> None:
    """The same model and data, with exact products asked for."""
    import onnx

    target.parent.mkdir(exist_ok=True)
    model = onnx.load(source, load_external_data=False)
    for attribute in (a for n in model.graph.node for a in n.attribute):
        if attribute.name == "accuracy_level":
            attribute.i = 0
    onnx.save(model, target)
    os.link(f"{source}.data", f"{target}.data")


def language_models(bench: Bench) -> None:
    """Start, memory and speed without a pack and with one."""
    print(f"\n{'model':24}{'runtime':14}{'start s':>9}{'anon MB':>9}{'prompt s':>10}{'token/s':>9}")
    for level, form in LEVELS.items():
        row(bench, f"QOperator, level {level}", bench.llm(form))
    for level in LEVELS:
        row(bench, f"QDQ, level {level}", bench.llm("qdq"), **{QDQ_LEVEL: level})
    for form in ("qop4", "qdq"):
        packed(bench, form)


def row(bench: Bench, title: str, model: Path, **config: str) -> None:
    """One model in both runtimes, and what ours is of theirs."""
    ours = bench.run(model, "sardonyx", **config)
    theirs = bench.run(model, "onnxruntime", **config)
    keys = ("init_s", "anon_mb", "first_s", "tokens_per_s")
    for name, found in (("sardonyx", ours), ("onnxruntime", theirs)):
        _print(title, name, [found[k] for k in keys])
    _print("", "ratio", [ours[k] / max(theirs[k], 1e-3) for k in keys])


def _print(title: str, name: str, numbers: list[float]) -> None:
    start, anon, *rest = numbers
    print(f"{title:24}{name:14}{start:9.3f}{anon:9.2f}" + "".join(f"{n:9.2f} " for n in rest))


def packed(bench: Bench, form: str) -> None:
    """The same with a pack beside the model, and as a standalone model."""
    model = bench.llm(form)
    alone = model.parent / "standalone" / "model.onnx"
    alone.parent.mkdir(exist_ok=True)
    for what, flags in (("pack", []), ("standalone", ["--standalone", "-o", str(alone)])):
        began = time.perf_counter()
        command = [sys.executable, "-m", "sardonyx", "pack", str(model), *flags]
        subprocess.run(command, check=True, capture_output=True)
        took = time.perf_counter() - began
        found = bench.run(model if what == "pack" else alone, "sardonyx")
        keys = ("init_s", "anon_mb", "first_s", "tokens_per_s")
        _print(f"{form}, {what}", "sardonyx", [found[k] for k in keys])
        before = _bytes(model, Path(f"{model}.data"))
        after = _bytes(*(p for p in alone.parent.iterdir())) if what == "standalone" else 0
        extra = _bytes(Path(f"{model}.pack")) if what == "pack" else 0
        size = f"{extra / MB:.1f} MB beside" if extra else f"{after / before:.3f}x the original"
        print(f"{'':24}packing {took:.1f} s, {size}")
        if what == "pack":
            one, four = processes(model, 1), processes(model, 4)
            print(f"{'':24}processes: 1 holds {one:.0f} MB, 4 hold {four:.0f} MB (Pss)")
    Path(f"{model}.pack").unlink()


def _bytes(*paths: Path) -> int:
    return sum(p.stat().st_size for p in paths)


def sharing(bench: Bench) -> None:
    """Three sessions in a process, four processes with one pack."""
    print("\nsharing")
    for runtime in ("sardonyx", "onnxruntime"):
        one, three = (
            _work(runtime=runtime, model=str(bench.llm("qop4")), sessions=n)["anon_mb"]
            for n in (1, 3)
        )
        print(f"  {runtime}: 1 session {one:.0f} MB anonymous, 3 sessions {three:.0f} MB")


def processes(model: Path, count: int) -> float:
    """Pss summed over processes that have run a model and still hold it, in MB."""
    task = {"runtime": "sardonyx", "model": str(model), "sessions": 1, "waits": True, "runs": True}
    command = [sys.executable, __file__, "--worker", json.dumps(task)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for child in started:
        assert child.stdout is not None
        child.stdout.readline()
    total = sum(_pss(child.pid) for child in started)
    for child in started:
        child.communicate("\n")
    return total


def _pss(pid: int) -> float:
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(r.split()[1]) for r in rows if r.startswith("Pss:")) / 1024


def in_memory(bench: Bench) -> None:
    """External data in a buffer of the user's."""
    print("\nexternal data in memory")
    for runtime in ("sardonyx", "onnxruntime"):
        task = {"runtime": runtime, "model": str(bench.llm("qop4")), "in_memory": True}
        try:
            found = _work(**task)
        except RuntimeError as error:  # onnxruntime copies into a protobuf, which has an end
            print(f"  {runtime}: {str(error).splitlines()[-1][-120:]}")
            continue
        print(f"  {runtime}: start {found['init_s']:.2f} s, {found['anon_mb']:.0f} MB anonymous")


def float_nets(bench: Bench, nets: Path) -> None:
    """float32 networks: start and memory, without a pack and with one."""
    print(f"\n{'network':24}{'runtime':22}{'start s':>9}{'anon MB':>9}")
    for name in ("bert_base", "vit_base"):
        model = nets / f"{name}.onnx"
        pack = Path(f"{model}.pack")
        pack.unlink(missing_ok=True)
        theirs = _best(bench, runtime="onnxruntime", model=str(model))
        ours = _best(bench, runtime="sardonyx", model=str(model))
        _three(bench, model, "no pack")
        subprocess.run([sys.executable, "-m", "sardonyx", "pack", str(model)], check=True)
        with_pack = _best(bench, runtime="sardonyx", model=str(model))
        _three(bench, model, "pack")
        one, four = processes(model, 1), processes(model, 4)
        pack.unlink()
        for label, found in (
            ("onnxruntime", theirs),
            ("sardonyx", ours),
            ("sardonyx, pack", with_pack),
        ):
            ratio = found["init_s"] / theirs["init_s"]
            print(f"{name:24}{label:22}{found['init_s']:9.3f}{found['anon_mb']:9.1f}  {ratio:.2f}x")
        print(f"{'':24}processes with one pack: 1 holds {one:.0f} MB, 4 hold {four:.0f} MB (Pss)")


def _three(bench: Bench, model: Path, label: str) -> None:
    one, three = (
        _work(runtime="sardonyx", model=str(model), sessions=n)["anon_mb"] for n in (1, 3)
    )
    print(f"{model.stem:24}{label}: 1 session {one:.1f} MB, 3 sessions {three:.1f} MB anonymous")


def _best(bench: Bench, **task: Any) -> dict[str, Any]:
    found = [_work(**task) for _ in range(bench.rounds + 1)]
    return min(found, key=lambda f: float(f["init_s"]))


def _work(**task: Any) -> dict[str, Any]:
    return _json([sys.executable, __file__, "--worker", json.dumps(task)])


def worker(task: dict[str, Any]) -> None:
    """One measurement, in a process of its own."""
    runtime = importlib.import_module(task["runtime"])
    make = _maker(runtime, task)
    before = _anon_mb()
    began = time.perf_counter()
    sessions = [make()]
    took = time.perf_counter() - began
    sessions += [make() for _ in range(task.get("sessions", 1) - 1)]
    grown = _anon_mb() - before
    if task.get("runs"):
        _run(sessions[0])
    print(json.dumps({"init_s": took, "anon_mb": grown}), flush=True)
    if task.get("waits"):
        sys.stdin.readline()


def _maker(runtime: Any, task: dict[str, Any]) -> Callable[[], Any]:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 2
    model: Any = task["model"]
    if task.get("in_memory"):
        import mmap

        with Path(f"{model}.data").open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        options.add_external_initializers_from_files_in_memory(
            [f"{Path(model).name}.data"], [data], [len(data)]
        )
        model = Path(model).read_bytes()
    return lambda: runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _run(session: Any) -> None:
    """One run on ones, so that every weight was read."""
    import numpy as np

    feeds = {}
    for spec in session.get_inputs():
        shape = [d if isinstance(d, int) else _length(str(d)) for d in spec.shape]
        feeds[spec.name] = np.ones(shape, np.int64 if "int64" in spec.type else np.float32)
    session.run(None, feeds)


def _length(dim: str) -> int:
    """A size for a free dim: empty caches, a short text, a batch of one."""
    return 0 if "past" in dim else 8 if "seq" in dim or "total" in dim else 1


def _anon_mb() -> float:
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(r.split()[1]) for r in rows if r.startswith("RssAnon")) / 1024


if __name__ == "__main__":
    main()
