# /// script
# dependencies = ["swift-f0==0.3.0"]
# ///
"""swift-f0: the pitch of a voice over time."""

from sounds import speech
from swift_f0 import SwiftF0


def make():
    return SwiftF0()


def use(detector):
    result = detector.detect(speech(6, 16000), 16000)
    return {"pitch": result.pitch_hz.tolist(), "confidence": result.confidence.tolist()}
