"""Cases of signal ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import f32, ms, no

NOT_ON_CPU: dict[str, Any] = {"why": "onnxruntime has it on other devices only"}


def pairs(z: Any, dtype: Any = np.float32) -> Any:
    """Complex numbers as pairs in a last axis."""
    return np.stack((z.real, z.imag), axis=-1).astype(dtype)


WAVE = f32(2, 3, 8)


PARTS_SIGNAL = [
    ms("Rfft", WAVE, expect=(pairs(np.fft.rfft(WAVE)),), **NOT_ON_CPU),
    ms("Rfft", WAVE, signal_ndim=2, ulps=8, expect=(pairs(np.fft.rfft2(WAVE)),), **NOT_ON_CPU),
    ms("Irfft", pairs(np.fft.rfft(WAVE)), signal_ndim=1, ulps=8, expect=(WAVE,), **NOT_ON_CPU),
    ms("Irfft", pairs(np.fft.rfft2(WAVE)), signal_ndim=2, ulps=8, expect=(WAVE,), **NOT_ON_CPU),
    no("Irfft", f32(2, 5, 2), signal_ndim=4, match="signal_ndim must be .*got 4"),
    no("Rfft", WAVE, onesided=0, match="one-sided"),
]


CASES = [
    *PARTS_SIGNAL,
]
