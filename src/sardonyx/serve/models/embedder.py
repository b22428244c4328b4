"""Texts to embeddings, for models with a tokenizer.json beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.log import logger
from sardonyx.errors import SardonyxError
from sardonyx.serve.models.signature import Signature
from sardonyx.serve.protocol.datatypes import Array
from sardonyx.serve.refusals import BadRequest

_IDS: Final = "input_ids"
_MASK: Final = "attention_mask"
_TYPES: Final = "token_type_ids"
# Outputs that are embeddings already, by the names that exporters give them.
_POOLED: Final = ("sentence_embedding", "embeddings", "pooler_output", "text_embeds")
_DEFAULT_LENGTH: Final = 512
_NO_LENGTH: Final = 1 << 20  # transformers writes 1e30 where there is none


class Embedder:
    """Tokenizes texts for one model, and pools its outputs."""

    def __init__(self, tokenizer: Any, signature: Signature, pooling: str, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._names = {spec.name: spec.datatype.dtype for spec in signature.inputs}
        self._pooling = pooling
        self._output = _output_of(signature)
        self.max_length = max_length

    def feeds(self, texts: Sequence[str | Sequence[int]]) -> list[dict[str, Array]]:
        """Return the inputs of each text, or of each list of token ids."""
        feeds = []
        strings = [text for text in texts if isinstance(text, str)]
        encoded = iter(self._tokenizer.encode_batch(strings) if strings else ())
        for text in texts:
            ids = next(encoded).ids if isinstance(text, str) else text[: self.max_length]
            if not ids:
                raise BadRequest("a text of the input has no tokens")
            row = np.asarray(ids, np.int64)[None]
            values = {_IDS: row, _MASK: np.ones_like(row), _TYPES: np.zeros_like(row)}
            feeds.append({name: values[name].astype(dtype) for name, dtype in self._names.items()})
        return feeds

    def pool(self, outputs: Sequence[Array]) -> Array:
        """Return the embedding of a request of one text, of length 1."""
        output = outputs[self._output].astype(np.float32)
        if output.ndim == 3:  # one vector per token, none of which is padding
            output = output[:, 0] if self._pooling == "cls" else output.mean(axis=1)
        vector: Array = output[0]
        norm = float(np.linalg.norm(vector))
        return vector / norm if norm > 0 else vector


def _output_of(signature: Signature) -> int:
    names = [spec.name for spec in signature.outputs]
    return next((names.index(name) for name in _POOLED if name in names), 0)


def embedder_beside(folder: str, signature: Signature) -> Embedder | None:
    """Return the embedder of a model in a folder; None if it produces no embeddings."""
    path = os.path.join(folder, "tokenizer.json")
    names = {spec.name for spec in signature.inputs}
    output = signature.outputs[_output_of(signature)]
    is_encoder = _IDS in names and names <= {_IDS, _MASK, _TYPES}
    if not is_encoder or len(output.shape) not in (2, 3) or not os.path.exists(path):
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        logger.warning("%s needs the package tokenizers: there are no embeddings", path)
        return None
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the package has no exception class of its own
        raise SardonyxError(f"{path} cannot be read: {error}") from None
    length = _max_length(folder, tokenizer)
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    return Embedder(tokenizer, signature, _pooling(folder), length)


def _max_length(folder: str, tokenizer: Any) -> int:
    sentence = _json(os.path.join(folder, "sentence_bert_config.json")).get("max_seq_length")
    whole = _json(os.path.join(folder, "tokenizer_config.json")).get("model_max_length")
    own = (tokenizer.truncation or {}).get("max_length")
    for length in (sentence, own, whole):
        if isinstance(length, int) and 0 < length < _NO_LENGTH:
            return length
    return _DEFAULT_LENGTH


def _pooling(folder: str) -> str:
    """Return cls or mean, as sentence-transformers writes it; mean is its default."""
    config = _json(os.path.join(folder, "1_Pooling", "config.json"))
    return "cls" if config.get("pooling_mode_cls_token") else "mean"


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
