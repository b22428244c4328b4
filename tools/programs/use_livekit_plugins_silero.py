# /// script
# dependencies = ["livekit-plugins-silero==1.8.9"]
# ///
"""livekit-plugins-silero: where somebody speaks, while a stream arrives."""

import asyncio

import numpy as np
from livekit import rtc
from livekit.plugins import silero
from sounds import speech

RATE, CHUNK = 16000, 1600


def make():
    return silero.VAD.load(activation_threshold=0.2, force_cpu=True)


def use(vad):
    return asyncio.run(listen(vad))


async def listen(vad):
    stream, sound = vad.stream(), np.int16(32767 * speech(6, RATE))
    for at in range(0, len(sound), CHUNK):
        piece = sound[at : at + CHUNK]
        stream.push_frame(rtc.AudioFrame(piece.tobytes(), RATE, 1, len(piece)))
    stream.end_input()
    events = [event async for event in stream]
    await stream.aclose()
    return [[event.type.value, event.samples_index, event.probability] for event in events]
