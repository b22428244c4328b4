"""Writes tests/training/golden: artifacts, checkpoints and results of onnxruntime-training.

    VENV/bin/python tools/training/make_golden.py

VENV has onnxruntime-training 1.19.2, torch, which that imports, onnx 1.16 and numpy 1.26.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.training import program  # noqa: E402 - after the path

GOLDEN = ROOT / "tests" / "training" / "golden"


def main() -> None:
    """Run the program for each network, and make a nominal checkpoint."""
    for name in program.NETS:
        folder = GOLDEN / name
        program.train(name, str(folder))
        (folder / "inference.onnx").unlink()
    model, names, _ = program.NETS["mlp"]()
    folder = GOLDEN / "nominal"
    folder.mkdir(exist_ok=True)
    program.artifacts.generate_artifacts(
        model, artifact_directory=folder, nominal_checkpoint=True, **names
    )
    for path in folder.iterdir():
        if path.name != "nominal_checkpoint":
            path.unlink()


if __name__ == "__main__":
    main()
