"""`sardonyx plan`: figures, advice, errors, and the page, in a browser where there is one."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx.cli import main
from sardonyx.cli.arguments import ORDERS
from sardonyx.models import DIGITS
from sardonyx.reports import plan_page
from tests.cli import models
from tests.cli.browser import BINARY, Browser

EVIL = '</script><script>document.title="evil"</script><!-- {{data}} \u2028 & "quoted" \x1b[31m'


def plan(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    """The JSON that plan prints."""
    assert main(["plan", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def branches(path: pathlib.Path, n_branches: int = 4, name: str = "") -> str:
    """Branches of products that grow wide and narrow again before they are put together."""
    nodes, weights = [], []
    for i in range(n_branches):
        nodes += [
            helper.make_node("MatMul", ["x", f"u{i}"], [f"wide{i}{name}"], f"grow{i}{name}"),
            helper.make_node("Softmax", [f"wide{i}{name}"], [f"soft{i}"], f"soft{i}"),
            helper.make_node("MatMul", [f"soft{i}", f"v{i}"], [f"thin{i}"], f"shrink{i}"),
        ]
        weights += [(f"u{i}", np.full((16, 64), i, np.float32))]
        weights += [(f"v{i}", np.full((64, 4), i, np.float32))]
    thin = [f"thin{i}" for i in range(n_branches)]
    nodes.append(helper.make_node("Concat", thin, ["joined"], "join", axis=1))
    nodes.append(helper.make_node("Softmax", ["joined"], ["y"], "last"))
    outputs = [models.tensor("y", None), models.tensor(f"wide0{name}", None)]
    return models.save(path, nodes, [models.tensor("x", ["batch", 16])], outputs, weights)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    said = plan(capsys, str(DIGITS), "--dims", "batch=8")
    assert said["shapes"] == {"image": [8, 1, 8, 8]}
    assert [o["order"] for o in said["orders"]] == list(ORDERS)
    assert said["default_order"] == said["peak"]["order"] == "least_peak"
    for order in said["orders"]:
        assert 0 < order["lower_bound_bytes"] <= order["peak_bytes"] == order["arena_bytes"]
        assert order["output_bytes"] == 8 * 10 * 4
        assert 0 <= order["peak_step"] < order["steps"]
    first = said["orders"][0]
    assert len(said["timeline"]["steps"]) == first["steps"] == len(said["timeline"]["needs"])
    assert max(said["timeline"]["needs"]) == first["lower_bound_bytes"]
    assert sum(t["bytes"] for t in said["peak"]["tensors"]) >= first["lower_bound_bytes"]
    assert said["timeline"]["steps"][first["peak_step"]]["name"] == first["peak_node"]


def test_the_default_is_never_above_the_others(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = plan(capsys, branches(tmp_path / "m.onnx"), "--dims", "batch=32")
    peaks = {o["order"]: o["peak_bytes"] for o in said["orders"]}
    assert peaks["least_peak"] == min(peaks.values())


def test_sizes_by_name_or_shape(capsys: pytest.CaptureFixture[str]) -> None:
    by_name = plan(capsys, str(DIGITS), "--dims", "batch=64")
    assert plan(capsys, str(DIGITS), "--shapes", "image=64x1x8x8") == by_name
    one = plan(capsys, str(DIGITS))
    assert one["orders"][0]["peak_bytes"] * 4 < by_name["orders"][0]["peak_bytes"]


def test_one_order(capsys: pytest.CaptureFixture[str]) -> None:
    said = plan(capsys, str(DIGITS), "--order", "reverse_depth_first", "--effort", "1")
    assert [o["order"] for o in said["orders"]] == ["reverse_depth_first"]
    assert said["peak"]["order"] == "reverse_depth_first"


def test_text(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = branches(tmp_path / "m.onnx", 6)
    assert main(["plan", path, "--dims", "batch=32", "--top", "2"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for word in (*ORDERS, "x [32, 16]", "default", "live at the peak", "what would lower the peak",
                 "batch 32 to 16", "float16", "the output wide0 adds 8.19 KB"):  # fmt: skip
        assert word in said.out
    (row,) = re.findall(r"made by +steps +idle\n(.*)\n", said.out)
    assert "f32[32,64]" in row


def test_text_fits_a_terminal(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = branches(tmp_path / "m.onnx", name="/a/long/name/as/exporters/make/them/in/many/parts")
    assert main(["plan", path, "--dims", "batch=100000"]) == 0
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if not line.startswith(str(tmp_path))]
    assert max(map(len, lines)) <= 80, said


def test_advice_is_computed(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = branches(tmp_path / "m.onnx")
    said, half = (plan(capsys, path, "--dims", f"batch={n}") for n in (64, 32))
    saved = {a["kind"]: a["saves_bytes"] for a in reversed(said["advice"])}
    peaks = [p["orders"][0]["peak_bytes"] + p["orders"][0]["output_bytes"] for p in (said, half)]
    assert saved["size"] == peaks[0] - peaks[1]
    assert 0 < saved["type"] <= peaks[0] * 0.5  # scratch stays as it is
    assert saved["output"] == 64 * 64 * 4
    amounts = [a["saves_bytes"] for a in said["advice"]]
    assert amounts == sorted(amounts, reverse=True)


def test_control_characters_in_names_are_escaped(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", branches(tmp_path / "m.onnx", name=EVIL)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_sizes_that_depend_on_data(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.save(
        tmp_path / "m.onnx",
        [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Neg", ["i"], ["y"])],
        [models.tensor("x", ["n"])],
        [models.tensor("y", None, 7)],
    )
    said = plan(capsys, path, "--dims", "n=10")
    ((name, size),) = said["assumed_sizes"].items()
    assert size == 1
    assert said["orders"][0]["output_bytes"] == 8
    many = plan(capsys, path, "--dims", f"n=10,{name}=5")
    assert many["orders"][0]["output_bytes"] == 40
    assert main(["plan", path]) == 0
    assert f"assumed: {name}=1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["n", " n ", "a=b"])
def test_sizes_that_no_hint_can_set(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The search before sizes are bound, which steps in Python need, does without them."""
    path = models.save(
        tmp_path / "m.onnx",
        [
            helper.make_node("AveragePool", ["x"], ["d"], kernel_shape=[3]),  # no kernel: float64
            helper.make_node("Neg", ["d"], ["y"]),
        ],
        [models.tensor("x", [name, 3, 3], TensorProto.DOUBLE)],
        [models.tensor("y", None, TensorProto.DOUBLE)],
    )
    for size in (0, 2):
        said = plan(capsys, path, "--shapes", f"x={size}x3x3")
        assert said["orders"][0]["output_bytes"] == size * 24


def test_an_output_without_elements(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.save(
        tmp_path / "m.onnx",
        [helper.make_node("Det", ["x"], ["d"]), helper.make_node("Neg", ["d"], ["y"])],
        [models.tensor("x", ["n", 3, 3])],
        [models.tensor("y", None)],
    )
    said = plan(capsys, path, "--dims", "n=0")
    assert said["orders"][0]["output_bytes"] == 0


def test_sizes_that_broadcast(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.save(
        tmp_path / "m.onnx",
        [helper.make_node("Add", ["x", "z"], ["y"])],
        [models.tensor("x", ["a", 8]), models.tensor("z", ["b", 8])],
        [models.tensor("y", None)],
    )
    for dims in ("a=4,b=4", "a=4,b=1", "a=1,b=4"):
        assert plan(capsys, path, "--dims", dims)["orders"][0]["output_bytes"] == 128
    assert main(["plan", path, "--dims", "a=4,b=3"]) == 1
    assert "4 and 3" in capsys.readouterr().err


def test_models_without_steps(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.save(
        tmp_path / "m.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [models.tensor("x", ["n"])],
        [models.tensor("y", ["n"])],
    )
    page = tmp_path / "page.html"
    assert main(["plan", path, "--html", str(page)]) == 0
    assert "live at the peak" in capsys.readouterr().out
    assert page.exists()


WRONG = [
    (["--dims", "rows=3"], 2, "--dims names rows, but the symbolic dims of the inputs are batch"),
    (["--shapes", "x=3"], 2, "--shapes gives x the shape [3]"),
    (["--shapes", "z=3x16"], 2, "--shapes names z, but the inputs are x"),
    (["--dims", "batch=-1"], 2, "is not a size"),
    (["--order", "best"], 2, "invalid choice: 'best'"),
    (["--effort", "9"], 2, "is not a number from 0 to 3"),
    (["--top", "0"], 2, "is not a number from 1"),
    (["--html", "absent/page.html"], 2, "there is no folder absent"),
    (["--html", "."], 2, "is a folder"),
    (["--html", "m.onnx"], 2, "is read by this command"),
    (["--html", "weights.bin"], 2, "weights.bin is read by this command"),
]


@pytest.mark.parametrize(("argv", "status", "what"), WRONG, ids=lambda x: str(x)[:30])
def test_wrong_arguments(
    argv: list[str],
    status: int,
    what: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    branches(tmp_path / "m.onnx")
    model = onnx.load("m.onnx")
    onnx.save(model, "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = [(tmp_path / name).read_bytes() for name in ("m.onnx", "weights.bin")]
    assert main(["plan", "m.onnx", *argv]) == status
    assert what in capsys.readouterr().err
    assert [(tmp_path / name).read_bytes() for name in ("m.onnx", "weights.bin")] == before


def test_no_model(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tmp_path / "none.onnx")]) == 1
    assert "none.onnx" in capsys.readouterr().err


class Page(html.parser.HTMLParser):
    """The tags and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._inside, []).append(data)

    def with_tag(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.tags if tag == name]


@pytest.fixture
def page(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> pathlib.Path:
    """The page of a model with hostile names."""
    path = tmp_path / "plan.html"
    model = branches(tmp_path / "<b>&{{title}}.onnx", name=EVIL)
    assert main(["plan", model, "--dims", "batch=32", "--html", str(path)]) == 0
    assert "plan.html" in capsys.readouterr().out
    return path


def test_page_is_self_contained(page: pathlib.Path) -> None:
    text = page.read_text("utf-8")
    found = Page(text)
    scripts = found.with_tag("script")
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert found.texts["title"] == ["Memory of <b>&{{title}}.onnx"]
    for _, attrs in found.tags:
        assert not {"src", "href", "srcdoc", "action"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on")]
    assert "http:" not in text
    assert "https:" not in text
    assert sorted(os.listdir(page.parent)) == ["<b>&{{title}}.onnx", "plan.html"]


def test_page_allows_only_its_own_script(page: pathlib.Path) -> None:
    found = Page(page.read_text("utf-8"))
    _, script = found.texts["script"]
    (policy,) = (
        attrs["content"] or ""
        for attrs in found.with_tag("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    for text in (script, *found.texts["style"]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_page_data(page: pathlib.Path) -> None:
    found = Page(page.read_text("utf-8"))
    data = json.loads(found.texts["script"][0])
    assert [o["name"] for o in data["orders"]] == list(ORDERS)
    assert any("evil" in text for text in data["texts"])
    for order in data["orders"]:
        n = len(order["steps"])
        assert len(order["needs"]) == n
        assert max(order["needs"]) == order["bound"] == order["needs"][order["peakStep"]]
        for name, kind, _, size, made, start, end, drawn, height, *_ in order["tensors"]:
            assert 0 <= name < len(data["texts"])
            assert 0 <= start <= made <= end < n
            assert drawn in (end - 1, end)
            inside = 0 if kind == 2 else height + size  # outputs are drawn above the arena
            assert height >= 0
            assert inside <= order["arena"]
    assert "batch 32 to 16" in " ".join(data["advice"])


def test_long_names_are_cut(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.html"
    model = branches(tmp_path / "m.onnx", name="x" * 100_000)
    assert main(["plan", model, "--html", str(path)]) == 0
    assert len(capsys.readouterr().out) < 20_000
    assert path.stat().st_size < 200_000


def test_a_page_is_written_atomically(
    page: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = page.read_bytes()

    def fails(planned: object) -> str:
        raise MemoryError("no more")

    monkeypatch.setattr(plan_page, "page", fails)
    assert main(["plan", str(DIGITS), "--html", str(page)]) == 1
    assert "no more" in capsys.readouterr().err
    assert page.read_bytes() == before
    assert len(os.listdir(page.parent)) == 2


@pytest.fixture
def browser() -> Iterator[Browser]:
    if BINARY is None:
        pytest.skip("no browser is installed")
    with Browser() as started:
        yield started


def test_page_in_a_browser(page: pathlib.Path, browser: Browser) -> None:
    browser.open(page)
    assert browser.value("document.title") == "Memory of <b>&{{title}}.onnx"
    assert browser.value("document.querySelectorAll('.order').length") == len(ORDERS)
    assert browser.value("document.querySelectorAll('#alive tbody tr').length") > 0
    assert "the peak" in browser.value("document.getElementById('step-title').textContent")
    _walk_over(browser)
    _switch(browser)
    for width in (1200, 400):
        browser.resize(width, 900)
        browser.settle()
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert _colours(browser, "chart") > 4
    assert browser.errors == []
    assert browser.requests == [page.resolve().as_uri()]
    assert browser.value("document.documentElement.dataset.error") is None


def test_page_without_steps_in_a_browser(tmp_path: pathlib.Path, browser: Browser) -> None:
    path = models.save(
        tmp_path / "m.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [models.tensor("x", ["n"])],
        [models.tensor("y", ["n"])],
    )
    assert main(["plan", path, "--html", str(tmp_path / "page.html")]) == 0
    browser.open(tmp_path / "page.html")
    browser.value("document.getElementById('chart').focus()")
    for key in ("End", "+", "p", "0"):
        browser.press(key)
    browser.mouse("mouseMoved", 400, 500)
    browser.value("document.querySelector('[value=stack]').click()")
    browser.settle()
    assert "No step" in browser.value("element('step-title').textContent")
    assert browser.errors == []


def _walk_over(browser: Browser) -> None:
    """Keys move, a pointer shows names."""
    title = "document.getElementById('step-title').textContent"
    browser.value("document.getElementById('chart').focus()")
    browser.press("Home")
    assert browser.value(title).startswith("Step 1 of")
    browser.press("ArrowRight")
    assert browser.value(title).startswith("Step 2 of")
    browser.press("End")
    steps = browser.value("current().steps.length")
    assert browser.value(title).startswith(f"Step {steps} of {steps}")
    browser.press("+")
    assert browser.value("view.to - view.from") < steps
    browser.press("0")
    assert browser.value("view.to - view.from") == steps
    box = browser.value("JSON.stringify(element('chart').getBoundingClientRect())")
    box = json.loads(box)
    x, y = box["left"] + box["width"] * 0.3, box["top"] + box["height"] * 0.93
    browser.mouse("mouseMoved", x, y)
    browser.settle()
    assert browser.value("element('tip').hidden") is False
    assert "step" in browser.value("element('tip').textContent")
    _zoom(browser, x, y, -400)
    assert browser.value("view.to - view.from") < steps
    browser.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    before = browser.value("view.from")
    browser.mouse("mouseMoved", x - 200, y, button="left", buttons=1)
    browser.mouse("mouseReleased", x - 200, y, button="left", clickCount=1)
    browser.settle()
    assert browser.value("view.from") > before
    browser.press("0")
    browser.click(x, y)
    assert not browser.value(title).startswith(f"Step {steps} of")


def _zoom(browser: Browser, x: float, y: float, delta: int) -> None:
    """The wheel, with Ctrl."""
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta, modifiers=2)
    browser.settle()


def _switch(browser: Browser) -> None:
    """Other bands, another order, the dark scheme, a search: each draws something else."""
    seen = {browser.value("element('chart').toDataURL()")}
    browser.value("document.querySelector('[value=stack]').click()")
    browser.settle()
    seen.add(browser.value("element('chart').toDataURL()"))
    browser.scheme("dark")
    seen.add(browser.value("element('chart').toDataURL()"))
    browser.value("element('find').value = 'thin'; search()")
    browser.settle()
    seen.add(browser.value("element('chart').toDataURL()"))
    browser.value("document.getElementById('chart').focus()")
    browser.press("p")  # where something is alive
    browser.value("document.querySelector('#alive tbody tr').focus()")
    browser.press("Enter")
    seen.add(browser.value("element('chart').toDataURL()"))
    assert len(seen) == 5
    assert browser.value("document.querySelectorAll('tr.chosen').length") == 1
    browser.value("document.querySelectorAll('.order input')[1].click()")
    browser.settle()
    assert browser.value("current().name") == ORDERS[1]


def _colours(browser: Browser, canvas: str) -> Any:
    return browser.value(
        f"""(() => {{
          const c = element('{canvas}'), pen = c.getContext('2d');
          const d = pen.getImageData(0, 0, c.width, c.height).data;
          const seen = new Set();
          for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
          return seen.size;
        }})()"""
    )
