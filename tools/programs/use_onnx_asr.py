# /// script
# dependencies = ["onnx-asr[cpu]==0.12.0", "onnx==1.23.2"]
# ///
"""onnx-asr: speech to text, with a made-up network behind its own resampler and preprocessors."""

import tempfile
from pathlib import Path

import numpy as np
import onnx_asr
from onnx import TensorProto, helper, numpy_helper, save
from sounds import speech

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def network(path, bands):
    """A CTC network of one random layer."""
    rng = np.random.default_rng(bands)
    weights = rng.standard_normal((bands, len(LETTERS) + 2)).astype(np.float32)
    nodes = [
        helper.make_node("Transpose", ["audio_signal"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
        helper.make_node("LogSoftmax", ["y"], ["logprobs"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "ctc",
        [
            helper.make_tensor_value_info("audio_signal", TensorProto.FLOAT, ["b", bands, "t"]),
            helper.make_tensor_value_info("length", TensorProto.INT64, ["b"]),
        ],
        [helper.make_tensor_value_info("logprobs", TensorProto.FLOAT, ["b", "t", "v"])],
        [numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path / "model.onnx")
    signs = ["\u2581", *LETTERS, "<blk>"]
    (path / "vocab.txt").write_text("".join(f"{s} {n}\n" for n, s in enumerate(signs)))
    (path / "config.json").write_text(
        f'{{"model_type": "nemo-conformer-ctc", "features_size": {bands}, "subsampling_factor": 1}}'
    )


def make():
    models = []
    for bands in (80, 128):
        for conv in (False, True):
            folder = Path(tempfile.mkdtemp())
            network(folder, bands)
            config = {"use_numpy_preprocessors": False, "use_conv_preprocessors": conv}
            models.append(
                onnx_asr.load_model("nemo-conformer-ctc", folder, preprocessor_config=config)
            )
    return models


def use(models):
    return [
        [model.recognize(speech(3, rate), sample_rate=rate) for rate in (8000, 16000, 44100)]
        for model in models
    ]
