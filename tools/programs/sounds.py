"""Sounds that need no files. The same on every run."""

from __future__ import annotations

from typing import Any

import numpy as np


def speech(seconds: float, rate: int) -> Any:
    """Vowels and pauses: a gliding voice through moving formants, in float32 within -1 and 1."""
    time = np.arange(int(seconds * rate)) / rate
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.7 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    sound = np.zeros_like(time)
    for harmonic in range(1, min(30, int(rate / 2 / 150))):
        frequency = harmonic * pitch
        gain = np.zeros_like(time)
        for number, (low, high) in enumerate(((300, 800), (900, 2200), (2300, 3000))):
            formant = low + (high - low) * (0.5 + 0.5 * np.sin(2 * np.pi * (1.3 + number) * time))
            gain += np.exp(-(((frequency - formant) / 120) ** 2)) / (1 + number)
        sound += gain * np.sin(harmonic * phase)
    syllables = np.clip(2 * np.sin(2 * np.pi * 3 * time), 0, 1)
    sound *= syllables * (np.sin(2 * np.pi * 0.4 * time) > -0.3)
    noise = np.random.default_rng(3).standard_normal(len(time))
    return (0.5 * sound / np.abs(sound).max() + 0.002 * noise).astype(np.float32)


def tones(seconds: float, rate: int, notes: tuple[float, ...]) -> Any:
    """Notes one after another, each with three overtones that die away."""
    each = int(seconds * rate / len(notes))
    time = np.arange(each) / rate
    parts = [
        sum(np.sin(2 * np.pi * note * k * time) / k**2 for k in (1, 2, 3, 4)) * np.exp(-3 * time)
        for note in notes
    ]
    return (0.4 * np.concatenate(parts)).astype(np.float32)
