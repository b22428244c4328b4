"""Runs a model on random inputs and prints its latency."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.graph.dtype import by_ort_name
from sardonyx.ort.environment import get_available_providers
from sardonyx.ort.options import SessionOptions
from sardonyx.session.inference import InferenceSession


def generate_feeds(
    sess: InferenceSession, symbolic_dims: Mapping[str, int | str] | None = None
) -> dict[str, Any]:
    """Return random inputs of a session; symbolic dims that are not given are 1."""
    return {value.name: _random(value, symbolic_dims or {}) for value in sess.get_inputs()}


def _random(value: Any, sizes: Mapping[str, int | str]) -> Any:
    shape = [int(sizes.get(d, 1)) if isinstance(d, str) else d or 1 for d in value.shape]
    dtype = by_ort_name(value.type.removeprefix("tensor(").removesuffix(")"))
    if dtype is not None and dtype.is_float:
        return np.random.default_rng().random(shape).astype(dtype.np)
    if dtype is not None and dtype.kind in ("int", "uint", "bool"):
        most = 2 if dtype.kind == "bool" else 1000
        return np.random.default_rng().integers(0, most, shape).astype(dtype.np)
    sys.exit(f"inputs of type {value.type}, as {value.name} is, cannot be generated")


def run_model(  # noqa: PLR0913 - onnxruntime's function
    model_path: str,
    num_iters: int = 1,
    debug: bool | None = None,
    profile: bool | None = None,
    symbolic_dims: Mapping[str, int | str] | None = None,
    feeds: dict[str, Any] | None = None,
    override_initializers: bool = True,
) -> tuple[int, dict[str, Any], Any]:
    """Run a model some times; return 0, the inputs and the outputs of the last run."""
    if debug:
        print(f"process {os.getpid()} waits for a debugger; press enter to continue")
        sys.stdin.read(1)
    options = SessionOptions()
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = os.path.basename(model_path)
    session = InferenceSession(model_path, options, providers=get_available_providers())
    feeds = feeds or generate_feeds(session, symbolic_dims)
    if override_initializers:
        for value in session.get_overridable_initializers():
            feeds[value.name] = _random(value, {})
    outputs: Any = False
    began = time.perf_counter()
    for _ in range(num_iters):
        outputs = session.run(None, feeds)
    seconds = time.perf_counter() - began
    meta = session.get_modelmeta()
    print(f"model: {meta.graph_name}\nversion: {meta.version}\niterations: {num_iters}")
    print(f"avg latency: {seconds * 1000 / max(num_iters, 1)} ms")
    if profile:
        print(f"trace file written to: {session.end_profiling()}")
    return 0, feeds, outputs


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split(","))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the model of the command line."""
    parser = argparse.ArgumentParser(description="Run a model on random inputs.")
    parser.add_argument("model_path", help="a model")
    parser.add_argument("num_iters", nargs="?", type=int, default=1000, help="runs (default 1000)")
    parser.add_argument("--debug", action="store_true", help="wait for a debugger")
    parser.add_argument("--profile", action="store_true", help="write a Chrome trace")
    parser.add_argument("--symbolic_dims", type=_pairs, default={}, help="batch=1,sequence=5")
    given = parser.parse_args(argv)
    run_model(given.model_path, given.num_iters, given.debug, given.profile, given.symbolic_dims)
    sys.exit(0)
