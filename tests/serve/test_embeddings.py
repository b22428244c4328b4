"""Embeddings in OpenAI's interface."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sardonyx.serve import ServerConfig, start
from tests.serve import models
from tests.serve.conftest import need_extra
from tests.serve.http_client import Client

WORDS = ("[UNK]", "red", "green", "blue", "is", "warm")
TABLE = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [2, 0, 1]], np.float32)


def expected(text: str) -> list[float]:
    ids = [WORDS.index(word) if word in WORDS else 0 for word in text.split()]
    mean = TABLE[ids].mean(axis=0)
    return [float(v) for v in mean / np.linalg.norm(mean)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    root = tmp_path_factory.mktemp("encoders")
    models.save(models.ENCODER, root / "words" / "model.onnx")
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(root / "words" / "tokenizer.json"))
    (root / "words" / "sentence_bert_config.json").write_text('{"max_seq_length": 4}')
    models.save(models.DOUBLE, root / "plain" / "model.onnx")
    return root


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    need_extra()
    config = ServerConfig(port=0, folders=(str(folder),))
    with start(config) as server, Client(server.http_port) as made:
        yield made


def test_embeddings_are_normalized_means(client: Client) -> None:
    texts = ["red", "green is warm", "blue blue red", "what"]
    answer = client.post("/v1/embeddings", {"model": "words", "input": texts}).json
    assert (answer["object"], answer["model"]) == ("list", "words")
    assert answer["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    for index, (row, text) in enumerate(zip(answer["data"], texts, strict=True)):
        assert (row["object"], row["index"]) == ("embedding", index)
        assert np.allclose(row["embedding"], expected(text), atol=1e-6)


def test_forms_of_inputs_and_outputs(client: Client) -> None:
    def vectors(**message: object) -> list[list[float]]:
        answer = client.post("/v1/embeddings", {"model": "words", **message})
        assert answer.status == 200, answer.body
        return [row["embedding"] for row in answer.json["data"]]

    red = vectors(input="red")
    assert vectors(input=[1]) == vectors(input=[[1]]) == red
    (encoded,) = vectors(input="red", encoding_format="base64")
    assert np.frombuffer(base64.b64decode(str(encoded)), "<f4").tolist() == red[0]
    (short,) = vectors(input="green is", dimensions=2)
    assert (len(short), np.linalg.norm(short)) == (2, pytest.approx(1))
    assert vectors(input="red red red red blue") == vectors(input="red")  # cut to 4 tokens
    assert len(vectors(input=["red"] * 100)) == 100


@pytest.mark.parametrize(
    ("message", "status", "match"),
    [
        ({"input": "red"}, 400, "model must be the name"),
        ({"model": "none", "input": "red"}, 404, "no model"),
        ({"model": "plain", "input": "red"}, 404, "makes no embeddings"),
        ({"model": "words"}, 400, "input must be a text"),
        ({"model": "words", "input": ""}, 400, "non-empty"),
        ({"model": "words", "input": [1.5]}, 400, "non-empty"),
        ({"model": "words", "input": [-1]}, 400, "non-empty"),
        ({"model": "words", "input": ["a"] * 3000}, 413, "at most 2048"),
        ({"model": "words", "input": "a", "dimensions": 9}, 400, "up to 3"),
        ({"model": "words", "input": "a", "encoding_format": "hex"}, 400, "float or base64"),
    ],
)
def test_refusals_have_openais_form(
    client: Client, message: object, status: int, match: str
) -> None:
    answer = client.send("POST", "/v1/embeddings", json.dumps(message).encode())
    assert answer.status == status
    assert match in answer.json["error"]["message"]


def test_models_that_embed_are_listed(client: Client) -> None:
    assert [model["id"] for model in client.get("/v1/models").json["data"]] == ["words"]
