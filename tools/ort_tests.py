#!/usr/bin/env python3
"""Runs onnxruntime's own Python tests on onnxruntime and on Sardonyx.

    ort_tests.py CHECKOUT --cache FOLDER                        all of onnxruntime/test/python
    ort_tests.py CHECKOUT --cache FOLDER --only quantization    files with this in their path
    ort_tests.py CHECKOUT --cache FOLDER --runtimes sardonyx    compared with the stored reports

The tests are copied without the Python sources beside them, so that they import the tools of the
installed package. Each file runs in a process of its own, in the folder that it is in. Tests that
pass with onnxruntime and not with Sardonyx are listed, and are an error unless `REASONS` explains
them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packages import AS_ONNXRUNTIME, NEEDED, RUNTIMES, Trouble, install, link_sardonyx
from suites import passing

TESTS = Path("onnxruntime", "test", "python")
DATA = Path("onnxruntime", "test", "testdata")
TOOLS = Path("tools", "python", "util")  # the source of onnxruntime.tools
PATTERNS = ("onnxruntime_test_*.py", "onnx_*test.py", "onnx_test_*.py", "test_*.py")
# ONNX's backend tests, which onnxruntime runs as a script: the same cases for pytest.
BACKEND = """
import onnx_backend_test_series as series

series.create_backend_test()
globals().update({k: v for k, v in vars(series).items() if k.endswith("Test")})
"""
# What the tests import, in the versions that onnxruntime pins for them where it does.
REQUIRES = (
    *NEEDED, "onnx==1.22.0", "torch", "transformers==4.52.1", "onnxscript", "scipy",
    "parameterized", "sentencepiece", "psutil", "einops", "google-re2", "scikit-learn", "sympy",
    "pytest", "pillow", "py-cpuinfo", "tabulate",
)  # fmt: skip
SECONDS = 1800  # for one file

# Tests that pass with onnxruntime only, by the end of their name, and why.
_CAST = "asks for a Cast to the type that its input has, which is optimized away"
_WEIGHTS = "asks for the weights of onnxruntime's example logreg_iris.onnx"
_ILL_TYPED = "has a model that contradicts ONNX: here an error that names the node"
REASONS = {
    "TestAzureEP.test_availability": "asks for the provider of Azure",
    "test_scatterels_cpu": _CAST,
    "test_scatternd_cpu": _CAST,
    "original_external_initializers_to_current_directory": "asks that a vector of 4 becomes "
    "external data, which onnxruntime cannot read where it is a shape",
    "test_run_session_owned_output_is_zero_copy": "asks that a result has a base: small ones own "
    "their memory, large ones are views of the session's",
    "TestBackend.test_run_model_proto": _WEIGHTS,
    "TestBackend.test_run_model_proto_api": _WEIGHTS,
    "test_div_precision": f"{_ILL_TYPED} (int64 divided by float32)",
    "test_mul_precision": f"{_ILL_TYPED} (int64 times float32)",
    "test_einsum_matmul": f"{_ILL_TYPED} (sizes 8 and 2 of one letter)",
    "test_embed_layer_norm": f"{_ILL_TYPED} (ids in float32)",
    "test_matching_bias_scale_allows_fusion": "asks for QLinearConv in a saved model: "
    "DequantizeLinear and QuantizeLinear stay in it, and sessions compute in integers",
    "TestIfGraph.test_enable_subgraph": "asks that quantizing fails, and it does not",
    "TestWhere.test_quant_format": "asks that quantizing fails, and it does not",
    "test_folding_initializer_data": "asks that a Transpose with perm [0, 1] transposes",
    "test_gpt2_attention_no_past_fusion": "fuses a model that no runtime can run: a Reshape does "
    "not fit",
    "test_3d_attention_fusion_tf2onnx_model": "asks to fuse attention that consists of Einsums",
}
_WHISPER = {
    "hf": "asks that a mask of the model is left out, or becomes causal, which it is not",
    "oai": "asks for other fused ops than are found, which have the same results",
}
REASONS |= {
    f"test_{kind}_whisper_decoder_{past}_past_{case}_fp32": why
    for kind, why in _WHISPER.items()
    for past in ("no", "with")
    for case in (2, 3)
}


@dataclass(frozen=True, slots=True)
class Result:
    """The tests of one file that pass on each runtime."""

    file: str  # in the folder of tests
    passed: dict[str, set[str]]  # names by runtime

    @property
    def lost(self) -> list[str]:
        """Tests that pass with onnxruntime only."""
        theirs, ours = (self.passed[runtime] for runtime in RUNTIMES)
        return sorted(theirs - ours)


def main() -> int:
    """Run the tests, and print what became of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="folder of a checkout of onnxruntime")
    parser.add_argument("--cache", type=Path, required=True, help="folder for what is kept")
    parser.add_argument("--only", default="", metavar="TEXT", help="files with this in their path")
    parser.add_argument("--runtimes", default=",".join(RUNTIMES), help="those that run")
    parser.add_argument("--workers", type=int, default=2, help="files at once")
    given = parser.parse_args()
    cache = given.cache.resolve()
    python = environment(cache)
    for runtime in given.runtimes.split(","):
        copied(given.checkout, tests_of(cache, runtime))
        chosen = [f for f in test_files(tests_of(cache, runtime)) if given.only in str(f)]
        with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:
            list(pool.map(lambda file, to=runtime: run(file, python, cache, to), chosen))
    results = [
        Result(str(f), {each: passing(report(cache, each, f)) for each in RUNTIMES}) for f in chosen
    ]
    return summary(results)


def summary(results: list[Result]) -> int:
    """Print the tests that are lost and the counts of each folder; return the exit status."""
    unexplained = 0
    for result in results:
        for name in result.lost:
            why = [why for end, why in REASONS.items() if name.endswith(end)]
            unexplained += not why
            print(f"{result.file}: {name}: {why[0] if why else 'not explained'}")
    for folder in sorted({os.path.dirname(r.file) for r in results}):
        here = [r for r in results if os.path.dirname(r.file) == folder]
        theirs = sum(len(r.passed["onnxruntime"]) for r in here)
        lost = sum(len(r.lost) for r in here)
        more = sum(len(r.passed["sardonyx"] - r.passed["onnxruntime"]) for r in here)
        print(f"{folder or '.'}: {theirs - lost} of {theirs}, and {more} more")
    return 1 if unexplained else 0


def test_files(folder: Path) -> Iterator[Path]:
    """Yield the files with tests, relative to the folder."""
    for path in sorted(folder.rglob("*.py")):
        if "testdata" not in path.parts and any(path.match(each) for each in PATTERNS):
            yield path.relative_to(folder)


def environment(cache: Path) -> Path:
    """Return the Python of an environment with what the tests need."""
    python = install(cache / "environment", REQUIRES)
    link_sardonyx(cache)
    return python


def tests_of(cache: Path, runtime: str) -> Path:
    """Return the folder of a runtime's copy of the tests."""
    return cache / "tests" / runtime / "python"


def copied(checkout: Path, folder: Path) -> None:
    """Copy the tests, which write files beside themselves, into a folder of one runtime.

    As in onnxruntime's build, all test data is in one folder beside them.
    """
    shutil.rmtree(folder.parent, ignore_errors=True)
    shutil.copytree(checkout / TESTS, folder)
    shutil.copytree(checkout / DATA, folder / "testdata", dirs_exist_ok=True)
    (folder.parent / "testdata").symlink_to(folder / "testdata")
    (folder / "test_backend_series.py").write_text(BACKEND)
    for path in (checkout / TOOLS).rglob("test_*.py"):
        to = folder / "tools" / path.name
        to.parent.mkdir(exist_ok=True)
        text = re.sub(r"^from \.\.", "from onnxruntime.tools.", path.read_text(), flags=re.M)
        to.write_text(text)


def report(cache: Path, runtime: str, file: Path) -> Path:
    """Return the path of the report of a file, in JUnit's format."""
    return cache / "reports" / runtime / file.with_suffix(".xml")


def run(file: Path, python: Path, cache: Path, runtime: str) -> None:
    """Run the tests of one file. A file that does not end has an empty report."""
    start = [str(python), *(() if runtime == "onnxruntime" else AS_ONNXRUNTIME)]
    alone = str(cache / "sardonyx-alone") if runtime == "sardonyx" else ""
    to = report(cache, runtime, file)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text("<testsuites/>")
    at = tests_of(cache, runtime) / file
    with to.with_suffix(".txt").open("w") as output:
        try:
            subprocess.run(
                [
                    *start,
                    "-m",
                    "pytest",
                    at.name,
                    "-q",
                    "-p",
                    "no:cacheprovider",
                    f"--junitxml={to}",
                ],
                cwd=at.parent,
                env={**os.environ, "PYTHONPATH": alone},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            output.write(f"not done after {SECONDS} s\n")
    print(f"{runtime}: {file}: {len(passing(to))} pass", flush=True)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except Trouble as trouble:
        raise SystemExit(f"{trouble}") from None
