"""Pages of `info --html`, `profile --html` and `bench --html`, in a browser where there is one."""

from __future__ import annotations

import html.parser
import pathlib
import re
from collections.abc import Iterator

import pytest

from sardonyx.cli import main
from sardonyx.models import DIGITS
from sardonyx.reports import charts
from sardonyx.reports.html_page import document, figures, inline_json, section, table
from tests.cli import models
from tests.cli.browser import BINARY, Browser
from tests.cli.test_plan import EVIL, branches

COMMANDS = {
    "info": ["--dims", "batch=4"],
    "profile": ["--runs", "3", "--dims", "batch=4"],
    "bench": ["--rivals", "", "--rounds", "2", "--seconds", "0.01", "--starts", "1"],
}


@pytest.fixture
def browser() -> Iterator[Browser]:
    if BINARY is None:
        pytest.skip("no Chromium")
    with Browser() as started:
        yield started


class _Page(html.parser.HTMLParser):
    """The addresses that a page names, and whether its elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href")]
        self.tags.append(tag)


@pytest.fixture(autouse=True)
def small_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.cli.roofline.bytes_beyond_caches", lambda: 1 << 20)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_is_self_contained(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "page.html"
    assert main([name, str(DIGITS), *COMMANDS[name], "--html", str(target)]) == 0
    assert "page.html: open it in a browser" in capsys.readouterr().out
    text = target.read_text()
    page = _Page(text)
    assert page.addresses == []
    assert not re.search(r"url\(|@import", text)
    assert "default-src 'none'" in text
    assert " style=" not in text  # the policy forbids it


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_does_not_overwrite_the_model(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(DIGITS.read_bytes())
    assert main([name, str(model), "--html", str(model)]) == 2
    assert "is read by this command" in capsys.readouterr().err


def test_names_of_a_model_are_escaped(tmp_path: pathlib.Path) -> None:
    path = branches(tmp_path / "m.onnx", name=EVIL)
    for name in ("info", "profile"):
        target = tmp_path / f"{name}.html"
        assert main([name, path, "--html", str(target)]) == 0
        assert "<script>document" not in target.read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_graph_in_a_browser(tmp_path: pathlib.Path, browser: Browser, scheme: str) -> None:
    path, target = branches(tmp_path / "m.onnx", name=EVIL), tmp_path / "graph.html"
    assert main(["info", path, "--dims", "batch=8", "--html", str(target)]) == 0
    browser.scheme(scheme)
    browser.open(target)
    for mode in ("provider", "seconds", "bytes", "op"):
        browser.value(f"document.querySelector('[value={mode}]').click()")
        assert browser.value("document.querySelectorAll('#legend span').length") >= 1
    browser.value("element('find').value = 'join'; search(); next()")
    assert "join" in browser.value("element('node-title').textContent")
    assert browser.value("element('node').rows.length") >= 5
    before = browser.value("view.scale")
    browser.value("element('chart').focus()")
    browser.press("+")
    assert browser.value("view.scale") > before
    browser.press("0")
    browser.screenshot(tmp_path / "graph.png")
    assert (tmp_path / "graph.png").stat().st_size > 5000
    assert browser.value("document.title") != "evil"
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("file:")] == []


def test_pages_without_scripts_in_a_browser(tmp_path: pathlib.Path, browser: Browser) -> None:
    for name in ("profile", "bench"):
        target = tmp_path / f"{name}.html"
        assert main([name, str(DIGITS), *COMMANDS[name], "--html", str(target)]) == 0
        browser.resize(400, 800)
        browser("Page.navigate", url=target.resolve().as_uri())
        browser.settle()
        assert browser.value("document.querySelectorAll('.chart').length") >= 2
        assert browser.value("document.documentElement.scrollWidth") <= 400
    assert browser.errors == []


def test_html_is_for_runs(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(DIGITS), "--start", "--html", str(tmp_path / "p.html")]) == 2
    assert "--html is for runs" in capsys.readouterr().err


def test_a_model_whose_inputs_cannot_be_generated(tmp_path: pathlib.Path) -> None:
    path = models.save(
        tmp_path / "m.onnx",
        [models.helper.make_node("Gather", ["x", "i"], ["y"])],
        [models.tensor("x", [0, 4]), models.tensor("i", [2], 7)],
        [models.tensor("y", None)],
    )
    target = tmp_path / "graph.html"
    assert main(["info", path, "--html", str(target)]) == 0
    assert "no times: " in target.read_text()


def test_texts_are_escaped() -> None:
    page = document(
        "<t>", "&", [section("<s>", figures([("<v>", '"')]), table(["<a>"], [["<b>"]]))]
    )
    assert "<t>" not in page
    assert "<v>" not in page
    assert "<b>" not in page.replace("<b>&lt;v&gt;</b>", "")
    assert "</script>" not in inline_json(["</script>"])


def test_charts_of_extreme_figures() -> None:
    assert charts.bars([])
    assert charts.bars([charts.Bar("none", 0.0, "0", "ours")])
    assert charts.waterfall([charts.Span("at once", 1.0, 1.0, "", "h0")])
    points = [
        charts.Point(1e-3, 1e3, 1.0, "h0", "slow"),
        charts.Point(1e4, 1e13, 0.0, "h1", "fast"),
    ]
    drawn = charts.roofline(points, {"float32": 1e11, "int8": 4e11}, 1e10)
    assert drawn.count("<circle") == 2
    assert "nan" not in drawn
    assert charts.hues([str(i) for i in range(12)])["11"] == "h9"
