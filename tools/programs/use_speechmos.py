# /// script
# dependencies = ["speechmos==0.0.1.1", "librosa", "requests"]
# ///
"""speechmos: how good a recording sounds, by its noise, gaps and echoes."""

import numpy as np
from sounds import speech
from speechmos import aecmos, dnsmos, plcmos

RATE = 16000


def make():
    return dnsmos, plcmos


def use(measures):
    np.random.seed(0)  # plcmos draws who listens
    clean = 0.9 * np.clip(speech(10, RATE), -1, 1)
    noise = np.random.default_rng(0).standard_normal(len(clean)).astype(np.float32)
    noisy = np.clip(clean + 0.02 * noise, -1, 1)
    echo = {"lpb": clean, "mic": noisy, "enh": 0.5 * (clean + noisy)}
    found = [measure.run(sound, sr=RATE) for measure in measures for sound in (clean, noisy)]
    return [*found, aecmos.run(echo, sr=RATE, talk_type="dt")]
