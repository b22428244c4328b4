# /// script
# dependencies = ["torch==2.13.0", "packaging"]
# [tool.packages]
# without-dependencies = ["silero-vad==6.2.3"]  # torchaudio only reads files
# ///
"""silero-vad: where somebody speaks, at two rates and in one call for a whole recording."""

import torch
from silero_vad import get_speech_timestamps, load_silero_vad
from sounds import speech


def make():
    return load_silero_vad(onnx=True), load_silero_vad(onnx=True, opset_version=15)


def use(models):
    results = []
    for model, rate in ((models[0], 16000), (models[0], 8000), (models[1], 16000)):
        sound = torch.from_numpy(speech(6, rate))
        model.reset_states()
        odds = model.audio_forward(sound, rate)[0].tolist()
        model.reset_states()
        spans = get_speech_timestamps(sound, model, sampling_rate=rate, threshold=0.2)
        results.append({"odds": odds, "spans": spans})
    return results
