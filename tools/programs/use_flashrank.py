# /// script
# dependencies = ["flashrank==0.2.10", "onnx"]
# ///
"""flashrank: sorts passages by a query, by a made-up network in place of its download."""

import tempfile
from pathlib import Path

from flashrank import Ranker, RerankRequest
from vocabulary import TEXTS, write_scores, write_tokenizer


def make():
    cache = Path(tempfile.mkdtemp())
    folder = cache / "ms-marco-TinyBERT-L-2-v2"
    folder.mkdir()
    write_tokenizer(folder)
    write_scores(folder / "flashrank-TinyBERT-L-2-v2.onnx")
    return Ranker(folder.name, cache_dir=str(cache), max_length=64)


def use(ranker):
    passages = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
    return ranker.rerank(RerankRequest(query="the cat", passages=passages))
