"""Programs that import onnxruntime run on Sardonyx, and otherwise as python runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx import backend
from sardonyx.as_onnxruntime import SHADOW, install
from sardonyx.errors import InvalidArgument

ROOT = Path(sardonyx.__file__).parents[1]
AS_ONNXRUNTIME = ("-m", "sardonyx.as_onnxruntime")

# What a program can see of how it was started.
SCENE = """
import sys
print(sys.argv, __name__, sys.path[0], globals().get("__file__"), __spec__ and __spec__.name)
"""
SHADOWED = "import onnxruntime; print(onnxruntime.__file__)"


def run(
    *arguments: str, cwd: Path, stdin: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A python process that can import this Sardonyx."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd, env=environ, input=stdin, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder of modules for `python -S`: what Sardonyx needs, and no onnxruntime."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for module in (np, ml_dtypes):
        place = Path(str(module.__file__)).parent
        for part in place.parent.glob(f"{place.name}*"):
            (folder / part.name).symlink_to(part)
    return folder


STARTS: dict[str, tuple[list[str], str | None]] = {
    "script": (["program.py", "-x", "a b"], None),
    "module": (["-m", "package.inner", "--flag"], None),
    "package": (["-m", "package"], None),
    "code": (["-c", SCENE, "one", "-c"], None),
    "stdin": (["-", "one"], SCENE),
    "folder": (["folder", "one"], None),
    "zip": (["program.zip"], None),
    "exit": (["-c", "raise SystemExit(7)"], None),
    "exit words": (["-c", "raise SystemExit('words')"], None),
    "fault": (["fault.py"], None),
    "fault in a module": (["-m", "package.fault"], None),
    "killed": (["-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"], None),
    "missing": (["nowhere.py"], None),
    "missing module": (["-m", "nowhere"], None),
}


@pytest.mark.parametrize("start", STARTS)
def test_programs_start_as_with_python(start: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCENE)
    (tmp_path / "fault.py").write_text("def f():\n    return 1 / 0\n\n\nf()\n")
    for folder in ("package", "folder"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__main__.py").write_text(SCENE)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "inner.py").write_text(SCENE)
    (tmp_path / "package" / "fault.py").write_text("{}['key']\n")
    with zipfile.ZipFile(tmp_path / "program.zip", "w") as file:
        file.writestr("__main__.py", SCENE)
    arguments, stdin = STARTS[start]
    plain = run(*arguments, cwd=tmp_path, stdin=stdin)
    ours = run(*AS_ONNXRUNTIME, *arguments, cwd=tmp_path, stdin=stdin)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    assert ours.stderr == plain.stderr


FLAGS = {
    "apart": ("-O", "-X", "dev", "-W", "error::UserWarning", *AS_ONNXRUNTIME),
    "in the word of -m": ("-Xdev", "-W", "error::UserWarning", "-Om", AS_ONNXRUNTIME[1]),
    "in one word": ("-X", "dev", "-Werror::UserWarning", "-O" + "".join(AS_ONNXRUNTIME)[1:]),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_of_the_interpreter_stay(name: str, tmp_path: Path) -> None:
    code = "import sys; print(sys.flags.optimize, sys.flags.dev_mode, sys.warnoptions, sys.argv)"
    done = run(*FLAGS[name], "-c", code, "-m", AS_ONNXRUNTIME[1], cwd=tmp_path)
    seen = ["-c", *AS_ONNXRUNTIME]
    assert done.stdout == f"1 True ['default', 'error::UserWarning'] {seen}\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "usage: python -m sardonyx.as_onnxruntime"),
        (["--wrong"], 1, "unknown option --wrong"),
        (["-m"], 1, "-m needs an argument"),
        (["-c"], 1, "-c needs an argument"),
    ],
)
def test_wrong_usage(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    done = run(*AS_ONNXRUNTIME, *arguments, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr


def test_help_and_isolation(tmp_path: Path) -> None:
    done = run(*AS_ONNXRUNTIME, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "SCRIPT" in done.stdout
    done = run("-E", *AS_ONNXRUNTIME, "-c", "", cwd=ROOT)
    assert done.returncode == 1
    assert "ignore PYTHONPATH" in done.stderr


# Each is evaluated in a program: what real packages ask of onnxruntime.
QUESTIONS = {
    "onnxruntime.__version__": sardonyx.ORT_VERSION,
    "onnxruntime.get_version_string()": sardonyx.ORT_VERSION,
    "importlib.metadata.version('onnxruntime')": sardonyx.ORT_VERSION,
    "importlib.metadata.distribution('onnxruntime').metadata['Name']": "onnxruntime",
    "onnxruntime.InferenceSession is sardonyx.InferenceSession": True,
    "importlib.util.find_spec('onnxruntime') is not None": True,
    "importlib.util.find_spec('onnxruntime.training') is None": False,
    "hasattr(onnxruntime, 'training')": False,
    "onnxruntime.capi.onnxruntime_pybind11_state.Fail is sardonyx.errors.Fail": True,
    "onnxruntime.capi._pybind_state.get_available_providers()": ["CPUExecutionProvider"],
    "onnxruntime.capi.onnxruntime_inference_collection.InferenceSession.__name__": (
        "InferenceSession"
    ),
    "onnxruntime.capi.onnxruntime_validation.check_training_module()": [
        False, "onnxruntime", sardonyx.ORT_VERSION, "",
    ],
    "onnxruntime.capi.build_and_package_info.package_name": "onnxruntime",
    "onnxruntime.capi.onnxruntime_collect_build_info.find_cudart_versions()": [],
    "onnxruntime.capi.version_info.use_cuda": False,
    "pickle.loads(b'connxruntime.capi.onnxruntime_pybind11_state\\nFail\\n.').code": 1,
    "'InferenceSession' in dir(onnxruntime) and 'capi' in dir(onnxruntime)": True,
    "sorted(n for n in star if n in ('InferenceSession', 'SessionOptions'))": [
        "InferenceSession", "SessionOptions",
    ],
}  # fmt: skip
IMPORTS = """
import importlib.metadata, importlib.util, json, pickle, sys
import onnxruntime.backend, onnxruntime.capi._ld_preload, onnxruntime.capi._pybind_state
import onnxruntime.capi.build_and_package_info, onnxruntime.capi.onnxruntime_collect_build_info
import onnxruntime.capi.onnxruntime_inference_collection, onnxruntime.capi.onnxruntime_validation
import onnxruntime.capi.onnxruntime_pybind11_state, onnxruntime.capi.version_info
import onnxruntime.datasets, sardonyx.errors
star = {}
exec("from onnxruntime import *", star)
print(json.dumps([eval(question) for question in json.load(sys.stdin)]))
"""


@pytest.mark.parametrize("is_there", [True, False], ids=["installed", "not installed"])
def test_queries_of_package_metadata(is_there: bool, bare: Path, tmp_path: Path) -> None:
    (bare / "sardonyx").symlink_to(ROOT / "sardonyx")
    asked = json.dumps([*QUESTIONS])
    start = ([] if is_there else ["-S"]) + [*AS_ONNXRUNTIME, "-c", IMPORTS]
    done = run(*start, cwd=tmp_path, stdin=asked, PYTHONPATH=str(ROOT if is_there else bare))
    assert done.returncode == 0, done.stderr
    answers = dict(zip(QUESTIONS, json.loads(done.stdout), strict=True))
    assert answers == QUESTIONS


CHILDREN = """
import multiprocessing, os, subprocess, sys

def where(_):
    import onnxruntime
    return onnxruntime.__file__

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(*pool.map(where, [0]))
    code = "import onnxruntime; print(onnxruntime.__file__)"
    print(subprocess.check_output([sys.executable, "-c", code], text=True), end="")
    print(subprocess.check_output(["env", "python3", "-c", code], text=True), end="")
"""


def test_child_processes(tmp_path: Path) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run(*AS_ONNXRUNTIME, "children.py", cwd=tmp_path, PATH=path)
    assert done.stdout.splitlines() == [f"{SHADOW}/onnxruntime/__init__.py"] * 5, done.stderr


def test_sardonyx_is_found_where_the_path_does_not_lead_to_it(bare: Path, tmp_path: Path) -> None:
    """As when the current folder led to it, which is not on the path of a script."""
    (tmp_path / "program.py").write_text(
        f"{SHADOWED}\nimport sys, importlib.util\nonnxruntime.InferenceSession\n"
        "print(sys.modules['sardonyx'].__file__, importlib.util.find_spec('pytest'))"
    )
    start = ("-S", *AS_ONNXRUNTIME, str(tmp_path / "program.py"))
    done = run(*start, cwd=ROOT, PYTHONPATH=str(bare))
    expected = [f"{SHADOW}/onnxruntime/__init__.py", f"{sardonyx.__file__} None"]
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.parametrize("module", ["transformers.machine_info", "quantization.fusions"])
def test_missing_submodules(bare: Path, tmp_path: Path, module: str) -> None:
    (bare / "sardonyx").symlink_to(ROOT / "sardonyx")
    code = f"import onnxruntime.{module} as module; print(module.__file__)"
    done = run("-S", *AS_ONNXRUNTIME, "-c", code, cwd=tmp_path, PYTHONPATH=str(bare))
    assert done.returncode == 1
    assert f"ImportError: Sardonyx has no onnxruntime.{module}" in done.stderr
    assert "pip install onnxruntime" in done.stderr
    fake = bare / "onnxruntime"
    part = fake / module.replace(".", "/") / "__init__.py"
    part.parent.mkdir(parents=True)
    (fake / "__init__.py").write_text("raise AssertionError('onnxruntime itself was imported')")
    part.write_text("from onnxruntime import InferenceSession")
    done = run("-S", *AS_ONNXRUNTIME, "-c", code, cwd=tmp_path, PYTHONPATH=str(bare))
    assert done.stdout.strip() == str(part), done.stderr


def test_quantization_is_ours_and_needs_no_onnx(bare: Path, tmp_path: Path) -> None:
    (bare / "sardonyx").symlink_to(ROOT / "sardonyx")
    modules = sorted(p.stem for p in Path(SHADOW, "onnxruntime", "quantization").glob("[a-z]*.py"))
    code = "\n".join(f"import onnxruntime.quantization.{m}" for m in modules)
    code += (
        "\nimport sys, sardonyx.quantization as ours, onnxruntime.quantization as q"
        "\nassert q.quantize is ours.quantize and q.QDQQuantizer is ours.QDQQuantizer"
        "\nfrom onnxruntime.quantization.quantize import quantize_static"
        "\nassert quantize_static is ours.quantize_static"
        "\nprint('onnx' in sys.modules, 'registry' in dir(q))"
    )
    done = run("-S", *AS_ONNXRUNTIME, "-c", code, cwd=tmp_path, PYTHONPATH=str(bare))
    assert done.stdout.strip() == "False True", done.stderr


def test_install(tmp_path: Path) -> None:
    code = f"import sardonyx.as_onnxruntime as a; a.install(); a.install(); {SHADOWED}; a.install()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SHADOWED!r}])"
    done = run("-u", "-c", f"{code}; {child}", cwd=tmp_path)
    assert done.stdout.splitlines() == [f"{SHADOW}/onnxruntime/__init__.py"] * 2, done.stderr
    alone = code.replace("install()", "install(children=False)")
    done = run("-u", "-c", f"{alone}; {child}", cwd=tmp_path)
    first, second = done.stdout.splitlines()
    assert first.startswith(SHADOW)
    assert not second.startswith(SHADOW)


def test_install_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", sys.modules["json"])
    with pytest.raises(ImportError, match=r"imported already, from .*json.*before anything"):
        install()


def test_the_metadata_is_of_the_version_that_we_speak() -> None:
    (folder,) = Path(SHADOW).glob("*-info")  # builders of wheels leave out what is *.dist-info
    assert folder.name == f"onnxruntime-{sardonyx.ORT_VERSION}.egg-info"
    assert f"Version: {sardonyx.ORT_VERSION}\n" in (folder / "PKG-INFO").read_text()


EXAMPLES = {"logreg_iris.onnx": (3, 2), "mul_1.onnx": (3, 2), "sigmoid.onnx": (3, 4, 5)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_have_the_interface_of_onnxruntimes(name: str) -> None:
    import onnxruntime
    from onnxruntime.datasets import get_example

    ours = sardonyx.InferenceSession(f"{SHADOW}/onnxruntime/datasets/{name}")
    theirs = onnxruntime.InferenceSession(get_example(name))
    for method in ("get_inputs", "get_outputs"):
        described = [
            [(v.name, v.type, v.shape) for v in getattr(session, method)()]
            for session in (ours, theirs)
        ]
        assert described[0] == described[1]
    x = np.linspace(1, 6, num=int(np.prod(EXAMPLES[name])), dtype=np.float32)
    feed = {ours.get_inputs()[0].name: x.reshape(EXAMPLES[name])}
    mine, other = ours.run(None, feed), theirs.run(None, feed)
    if name == "logreg_iris.onnx":  # another regression over the same flowers
        assert [*mine[1][0]] == [*other[1][0]] == [0, 1, 2]
    else:
        np.testing.assert_allclose(mine[0], other[0], rtol=1e-6)


def test_an_example_that_is_not_there(tmp_path: Path) -> None:
    code = "import onnxruntime.datasets as d; d.get_example('../__init__.py')"
    done = run(*AS_ONNXRUNTIME, "-c", code, cwd=tmp_path)
    assert "there is no example '../__init__.py'; the examples are" in done.stderr


def product() -> onnx.ModelProto:
    """Y = A * B."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "ABY"]
    node = helper.make_node("Mul", ["A", "B"], ["Y"])
    opsets = [helper.make_opsetid("", 21)]
    graph = helper.make_graph([node], "product", values[:2], values[2:])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


A, B = np.array([1, 2], np.float32), np.array([3, 4], np.float32)


@pytest.mark.parametrize("inputs", [[A, B], (A, B), {"A": A, "B": B}], ids=type)
def test_backend_runs_models(inputs: Any, tmp_path: Path) -> None:
    model = product()
    onnx.save(model, tmp_path / "model.onnx")
    session = sardonyx.InferenceSession(model.SerializeToString())
    forms = [model, model.SerializeToString(), str(tmp_path / "model.onnx"), session]
    for form in (*forms, backend.prepare(session)):
        (found,) = backend.run_model(form, inputs, "CPU", intra_op_num_threads=1)
        np.testing.assert_array_equal(found, A * B)


def test_backend_devices() -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA:1")
    assert backend.is_compatible(product())
    assert not backend.is_compatible(product(), "CUDA")
    with pytest.raises(RuntimeError, match="no device 'CUDA', only 'CPU'"):
        backend.prepare(product(), "CUDA")


NODES: dict[str, tuple[onnx.NodeProto, list[Any], dict[str, int], Any]] = {
    "plain": (helper.make_node("Add", ["x", "y"], ["z"]), [A, B], {}, A + B),
    "the same input twice": (helper.make_node("Mul", ["x", "x"], ["z"]), [A], {}, A * A),
    "left out": (helper.make_node("Clip", ["x", "", "top"], ["z"]), [A, np.float32(1)], {},
                 np.minimum(A, 1)),
    "sequence": (helper.make_node("SequenceAt", ["s", "i"], ["z"]), [[A, B[:1]], np.int64(1)], {},
                 B[:1]),
    "old": (helper.make_node("Squeeze", ["x"], ["z"], axes=[0]), [A[None]], {"opset_version": 11},
            A),
    "another domain": (helper.make_node("Scaler", ["x"], ["z"], domain="ai.onnx.ml", scale=[2.0],
                                        offset=[1.0]), [A], {}, (A - 1) * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_backend_runs_nodes(name: str) -> None:
    node, inputs, options, expected = NODES[name]
    (found,) = backend.run_node(node, inputs, **options)
    np.testing.assert_allclose(found, expected)


def test_backend_refuses() -> None:
    node = helper.make_node("Add", ["x", "y"], ["z"])
    ready = backend.prepare(product())
    with pytest.raises(InvalidArgument, match="1 values for 2 inputs of Add"):
        backend.run_node(node, [A])
    with pytest.raises(InvalidArgument, match="element type of an empty list"):
        backend.run_node(helper.make_node("SequenceLength", ["s"], ["n"]), [[]])
    with pytest.raises(InvalidArgument, match="no element type for datetime64"):
        backend.run_node(helper.make_node("Neg", ["x"], ["y"]), [np.zeros(1, "datetime64[s]")])
    with pytest.raises(InvalidArgument, match="3 inputs for a model that has 2"):
        ready.run([A, B, A])
    with pytest.raises(RuntimeError, match="2 inputs: pass a list"):
        ready.run(A)
    with pytest.raises(RuntimeError, match="optimized_model_filepath is not permitted"):
        backend.prepare(product(), optimized_model_filepath="x.onnx")
    with pytest.raises(RuntimeError, match=r"RunOptions\.terminate is not permitted"):
        ready.run([A, B], terminate=True)


@pytest.mark.parametrize(
    "name",
    [
        "capi.onnxruntime_pybind11_state.InvalidArgument",
        "capi._pybind_state.InvalidArgument",
        "quantization.quant_utils.QuantType",
        "quantization.onnx_model.ONNXModel",
        "quantization.matmul_nbits_quantizer.QuantFormat",
    ],
)
def test_modules_are_there_without_an_import(name: str, tmp_path: Path) -> None:
    module = name.split(".")[0]
    code = f"import onnxruntime.{module}; print(onnxruntime.{name}.__name__)"
    done = run(*AS_ONNXRUNTIME, "-c", code, cwd=tmp_path)
    assert done.stdout.strip() == name.split(".")[-1], done.stderr
