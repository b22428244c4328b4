# /// script
# dependencies = ["ultrastar-pitch==1.0.1"]
# ///
"""ultrastar-pitch: the note of each syllable of a song."""

import numpy as np
from sounds import tones
from ultrastar_pitch.audio_preprocessor import AudioPreprocessor
from ultrastar_pitch.pitch_classifier import PitchClassifier


def make():
    return AudioPreprocessor(), PitchClassifier()


def use(parts):
    preprocessor, classifier = parts
    song = np.float64(tones(4, 16000, (220.0, 246.9, 261.6, 329.6, 440.0)))
    syllables = np.split(song, 5)
    odds = [classifier.predict(preprocessor.transform(part)).sum(axis=0) for part in syllables]
    return [{"note": int(odd.argmax()), "odds": odd} for odd in odds]
