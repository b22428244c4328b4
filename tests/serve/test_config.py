"""The configuration file, and the options of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from sardonyx.cli.arguments import UsageError
from sardonyx.cli.commands import parser
from sardonyx.cli.serve import config_of
from sardonyx.errors import SardonyxError
from sardonyx.serve import ServerConfig, parse_config, read_config
from sardonyx.serve.models.sources import models_in, named, versions_at
from tests.serve import models


def test_a_file_sets_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("""
        port = 9000
        folders = ["more"]
        token_file = "tokens"
        [defaults]
        max_batch = 8
        [models.bert]
        path = "bert/model.onnx"
        pad_values = { input_ids = 1 }
        session = { "sardonyx.weights" = "mapped" }
        providers = ["CPUExecutionProvider", { name = "CUDAExecutionProvider", device_id = 1 }]
    """)
    config = read_config(str(path))
    bert = config.models["bert"]
    assert (config.port, config.host) == (9000, "127.0.0.1")
    assert config.folders == (str(tmp_path / "more"),)
    assert config.token_file == str(tmp_path / "tokens")
    assert (bert.path, bert.max_batch) == (str(tmp_path / "bert/model.onnx"), 8)
    assert bert.providers[1] == ("CUDAExecutionProvider", {"device_id": "1"})
    assert bert.session == {"sardonyx.weights": "mapped"}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"prot": 1}, "unknown key prot; did you mean port"),
        ({"port": "80"}, "port of .* must be of type int, got '80'"),
        ({"port": True}, "port of .* must be of type int"),
        ({"port": 70000}, "up to 65535"),
        ({"workers": 0}, "workers is 0, which is too small"),
        ({"load": "never"}, "load must be one of start, request"),
        ({"certificate": "a"}, "needs both certificate and key"),
        ({"models": {"a": {"max_bach": 1}}}, "unknown key max_bach; did you mean max_batch"),
        ({"models": {"a": {"pad": "yes"}}}, "pad must be one of auto"),
        ({"models": {"a": {"providers": "cpu"}}}, "a list of names"),
        ({"models": []}, "a table for each model"),
    ],
)
def test_wrong_values_are_named(content: dict[str, object], match: str) -> None:
    with pytest.raises(SardonyxError, match=match):
        parse_config(content, "serve.toml")


def config(*arguments: str) -> ServerConfig:
    return config_of(parser().parse_args(["serve", *arguments]))


def test_options_change_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("port = 9000\nhost = '0.0.0.0'\n[models.a]\npath = 'a.onnx'\n")
    model = models.save(models.DOUBLE, tmp_path / "b.onnx")
    found = config(f"x={model}", str(model), "--config", str(path), "--port", "0", "--max-batch=4")
    assert (found.port, found.host) == (0, "0.0.0.0")
    assert list(found.models) == ["a", "x", "b"]
    assert found.models["x"].max_batch == 4
    gpu = config(str(model), "--provider", "cuda", "--provider-option", "device_id=1")
    assert gpu.models["b"].providers == (("CUDAExecutionProvider", {"device_id": "1"}),)


def test_the_command_needs_models(tmp_path: Path) -> None:
    model = str(models.save(models.DOUBLE, tmp_path / "b.onnx"))
    for arguments, match in (
        ((), "name a model"),
        ((model, model), "two models are named b"),
        (("none.onnx",), "there is no model none.onnx"),
    ):
        with pytest.raises(UsageError, match=match):
            config(*arguments)


def test_folders_are_searched(tmp_path: Path) -> None:
    for name in ("a.onnx", "b/model.onnx", "c/1/model.onnx", "c/12/model.onnx", "d/x/model.onnx",
                 "e/0/model.onnx", "f f.onnx", "g.txt"):  # fmt: skip
        models.save(models.DOUBLE, tmp_path / "root" / name)
    models.save(models.DOUBLE, tmp_path / "outside.onnx")
    root = tmp_path / "root"
    (root / "h.onnx").symlink_to(tmp_path / "outside.onnx")
    (root / "i.onnx").symlink_to(root / "a.onnx")
    found = models_in(str(root))
    assert {name: list(versions) for name, versions in found.items()} == {
        "a": ["1"],
        "b": ["1"],
        "c": ["1", "12"],
        "i": ["1"],
    }
    assert versions_at(str(root / "c"))["12"].endswith("c/12/model.onnx")
    for path in (root / "d", tmp_path / "none"):
        with pytest.raises(SardonyxError, match="there is no model"):
            versions_at(str(path))


def test_names_of_arguments() -> None:
    assert named("models/bert.onnx") == ("bert", "models/bert.onnx")
    assert named("b=models/bert.onnx") == ("b", "models/bert.onnx")
    assert named("models/bert/") == ("bert", "models/bert/")
    with pytest.raises(SardonyxError, match="not a name for a model"):
        named("a b.onnx")
