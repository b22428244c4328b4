"""Exports architectures that the zoo lacks, and compares them here with onnxruntime.

    python -m bench.architectures export FOLDER [PATTERN...]   # needs torch, timm, ...
    python -m bench.architectures check FOLDER [PATTERN...]    # right, and how many steps in Python
    sardonyx bench FOLDER/*.onnx --rivals onnxruntime          # how fast

Files are named kind-name-exporter; networks are exported by both exporters of torch. What an
exporter refuses is listed, and is no failure here.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import pathlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

_OPSET = 20
_WRONG = 1e-3  # of the largest number of an output


def export(folder: pathlib.Path, patterns: list[str]) -> None:
    """Write the models that are not in the folder yet, each with an example of its inputs."""
    from bench.architectures import networks

    for kind, name in networks.networks():
        for way in ("script", "dynamo"):
            path = folder / f"{kind}-{name}-{way}.onnx"
            if _is_wanted(path, patterns):
                _try(path, lambda p, k=kind, n=name: _export_network(p, k, n))
    from bench.architectures import pipelines

    pipelines.register_boosters()
    for name in pipelines.names():
        path = folder / f"pipeline-{name}.onnx"
        if _is_wanted(path, patterns):
            _try(path, _export_pipeline)


def _is_wanted(path: pathlib.Path, patterns: list[str]) -> bool:
    is_chosen = not patterns or any(fnmatch.fnmatch(path.stem, p) for p in patterns)
    return is_chosen and not path.with_suffix(".npz").exists()


def _try(path: pathlib.Path, write: Any) -> None:
    try:
        write(path)
        print(f"{path.stem:<56} {path.stat().st_size / 1e6:>7.1f} MB", flush=True)
    except Exception as error:  # an exporter may raise anything
        path.unlink(missing_ok=True)
        print(f"{path.stem:<56} not exported: {' '.join(str(error).split())[:120]}", flush=True)


def _export_network(path: pathlib.Path, kind: str, name: str) -> None:
    import torch

    from bench.architectures.networks import build

    model, example = build(kind, name)
    is_dynamo = path.stem.endswith("dynamo")
    more: dict[str, Any] = {"external_data": False, "verbose": False} if is_dynamo else {}
    with torch.no_grad():
        torch.onnx.export(
            model, tuple(example.values()), path, input_names=list(example), output_names=["y"],
            opset_version=_OPSET, dynamo=is_dynamo, **more,
        )  # fmt: skip
    np.savez(path.with_suffix(".npz"), **{n: v.numpy() for n, v in example.items()})


def _export_pipeline(path: pathlib.Path) -> None:
    from bench.architectures import pipelines

    model, example = pipelines.export(path.stem.partition("-")[2])
    path.write_bytes(model)
    np.savez(path.with_suffix(".npz"), **example)


def _feeds(folder: pathlib.Path, patterns: list[str]) -> Iterator[tuple[pathlib.Path, Any]]:
    for path in sorted(folder.glob("*.onnx")):
        if not patterns or any(fnmatch.fnmatch(path.stem, p) for p in patterns):
            feed = dict(np.load(path.with_suffix(".npz")))
            yield path, {k: v.astype(object) if v.dtype.kind == "U" else v for k, v in feed.items()}


def check(folder: pathlib.Path, patterns: list[str]) -> int:
    """Compare results with onnxruntime's; print what differs, is refused or runs in Python."""
    import onnxruntime

    import sardonyx

    n_models = n_listed = 0
    for path, feed in _feeds(folder, patterns):
        n_models += 1
        try:
            theirs = onnxruntime.InferenceSession(path).run(None, feed)
        except Exception as error:  # any of its exceptions
            print(f"{path.stem:<56} onnxruntime: {' '.join(str(error).split())[:90]}", flush=True)
            continue
        try:
            session = sardonyx.InferenceSession(path)
            pairs = zip(session.run(None, feed), theirs, strict=True)
            difference = max(_difference(ours, other) for ours, other in pairs)
            n_python = session._compiled.program.python_steps
            text = f"differs by {difference:.1e}" if not difference <= _WRONG else ""
            text += f" {n_python} steps in Python" if n_python else ""
        except sardonyx.SardonyxError as error:
            text = f"refused: {' '.join(str(error).split())[:160]}"
        n_listed += bool(text)
        if text:
            print(f"{path.stem:<56} {text}", flush=True)
    print(f"{n_models} models, {n_listed} of them wrong, refused or partly in Python")
    return bool(n_listed)


def _difference(a: Any, b: Any) -> float:
    """Return the largest difference relative to the largest number; 1 for other differences."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return 1.0
    if a.dtype.kind not in "fc":
        return float(np.mean(a != b)) if a.size else 0.0
    scale = np.nanmax(np.abs(b), initial=1e-6)
    return (
        1.0
        if (np.isnan(a) != np.isnan(b)).any()
        else float(np.nanmax(np.abs(a - b), initial=0)) / scale
    )


def main() -> int:
    """Export or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("export", "check"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("patterns", nargs="*", help="of names, such as 'timm-*'")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.action == "export":
        export(arguments.folder, arguments.patterns)
        return 0
    return check(arguments.folder, arguments.patterns)


if __name__ == "__main__":
    sys.exit(main())
