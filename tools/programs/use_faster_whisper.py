# /// script
# dependencies = ["faster-whisper==1.2.1"]
# ///
"""faster-whisper: where somebody speaks (what it does before it transcribes)."""

import numpy as np
from faster_whisper.vad import VadOptions, get_speech_timestamps, get_vad_model
from sounds import speech


def make():
    return get_vad_model()


def use(model):
    sound = speech(20, 16000)
    odds = model(np.pad(sound, (0, -len(sound) % 512)))
    return {"odds": odds, "spans": get_speech_timestamps(sound, VadOptions(threshold=0.2))}
