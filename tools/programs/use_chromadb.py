# /// script
# dependencies = ["chromadb==1.5.9", "onnx"]
# ///
"""chromadb: finds texts by its default vectors, of a made-up network in place of its download."""

import tempfile
from pathlib import Path

import chromadb
from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2
from vocabulary import TEXTS, write_tokenizer, write_vectors


def make():
    ONNXMiniLM_L6_V2.DOWNLOAD_PATH = Path(tempfile.mkdtemp())
    folder = ONNXMiniLM_L6_V2.DOWNLOAD_PATH / ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME
    folder.mkdir()
    write_tokenizer(folder)
    write_vectors(folder / "model.onnx")
    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    texts = client.create_collection("texts")
    texts.add(documents=TEXTS, ids=[str(number) for number in range(len(TEXTS))])
    return texts


def use(texts):
    return texts.query(query_texts=["a cat on the mat", "the dog"], n_results=3)
