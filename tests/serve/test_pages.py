"""Metrics and the status page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.browser import BINARY, Browser
from tests.serve.http_client import Client, tensor

X = np.ones((2, 3), np.float32)


def samples(client: Client) -> dict[str, float]:
    lines = client.get("/metrics").body.decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def test_requests_are_counted(client: Client) -> None:
    name = 'sardonyx_requests_total{code="%s",model="centered",protocol="http",version="1"}'
    rows = 'sardonyx_batch_rows_sum{model="centered",version="1"}'
    before = samples(client)
    client.infer("centered", {"x": X})
    client.post("/v2/models/centered/infer", {"inputs": []})
    client.post("/v2/models/no_such_model/infer", {"inputs": [tensor("x", X)]})
    after = samples(client)
    for code in ("OK", "INVALID_ARGUMENT"):
        assert after[name % code] - before.get(name % code, 0) == 1
    assert after['sardonyx_refused_total{code="NOT_FOUND"}'] >= 1
    assert after[rows] - before.get(rows, 0) == 1  # a model without batching: one request
    assert 'sardonyx_queue_requests{model="centered",version="1"}' in after
    assert not any("no_such_model" in each for each in after)


def test_models_that_mix_rows_are_not_batched(client: Client) -> None:
    models = {m["name"]: m for m in client.get("/status.json").json["models"]}
    assert models["centered"]["batching"] == "off"
    assert models["double"]["batching"] == "on"
    assert models["masked"]["batching"] == "on, s is padded"


def test_the_page_loads_nothing_from_elsewhere(client: Client) -> None:
    for path, kind in (("/", "html"), ("/status.css", "css"), ("/status.js", "javascript")):
        answer = client.get(path)
        assert kind in answer.headers["content-type"]
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        links = re.findall(rb"https?://[^\"'\s]+", answer.body)
        assert set(links) <= {b"http://www.w3.org/2000/svg"}


@pytest.mark.skipif(BINARY is None, reason="there is no Chromium")
def test_the_page_in_a_browser(server: Any, client: Client, tmp_path: Path) -> None:
    client.infer("double", {"x": X})
    with Browser() as browser:
        for width, scheme in ((1200, "light"), (390, "dark")):
            browser.scheme(scheme)
            browser.open_url(f"{server.url}/", width, 900)
            assert browser.value("document.getElementById('state').textContent") == "ready"
            cards = browser.value("document.querySelectorAll('article').length")
            assert cards == len(client.get("/status.json").json["models"])
            assert browser.value("document.querySelectorAll('svg .bar.mid').length") >= 2
            overflow = "document.documentElement.scrollWidth - innerWidth"
            assert browser.value(overflow) <= 0
            browser.screenshot(tmp_path / f"{scheme}.png")
        assert not browser.errors
        assert all(each.startswith((server.url, "data:")) for each in browser.requests)
