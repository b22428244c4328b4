# /// script
# dependencies = ["ovos-ww-plugin-wakeforge==0.3.0"]
# ///
"""ovos-ww-plugin-wakeforge: whether a wake word is said, by transformers in float and in int8."""

from pathlib import Path

import numpy as np
import ovos_ww_plugin_wakeforge
from ovos_ww_plugin_wakeforge.inference import OnnxWakeWordInferencer
from sounds import speech

RATE = 16000
WORDS = ("alexa", "hey_mycroft", "wake_up")


def make():
    folder = Path(ovos_ww_plugin_wakeforge.__file__).parent
    featurizers = sorted((folder / "featurizers").glob("*/*.onnx"))
    heads = [folder / "models" / f"{word}.onnx" for word in WORDS]
    return [OnnxWakeWordInferencer(str(f), str(h)) for f in featurizers for h in heads]


def use(models):
    sound = speech(4, RATE)
    windows = np.stack([sound[at : at + 2 * RATE] for at in (0, RATE, 2 * RATE)])
    return [[model.infer(sound), list(model.infer_batch(windows))] for model in models]
