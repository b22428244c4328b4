"""Cases of DFT, STFT, windows and MelWeightMatrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, bf16, case, f16, f32, f64, fails, of


def n(value: int, dtype: Any = np.int64) -> Any:
    """One whole number."""
    return of(value, dtype)


def mel(*settings: float, **options: Any) -> Case:
    """Mel weights: bands, transform length, rate, lower and upper edge."""
    counts = [n(int(s)) for s in settings[:3]]
    return case("MelWeightMatrix", *counts, *(of(s) for s in settings[3:]), **options)


def dft(*inputs: Any, **options: Any) -> Case:
    """A transform; oracles work in float32."""
    return case("DFT", *inputs, ulps=16, **options)


def stft(*inputs: Any, **options: Any) -> Case:
    """A transform of frames; oracles work in float32."""
    return case("STFT", *inputs, ulps=16, **options)


DFT = [
    dft(f32(2, 8, 1)),
    dft(f32(2, 7, 2)),
    dft(f32(2, 7, 2), inverse=1),
    dft(f32(2, 8, 1), onesided=1),
    dft(f32(2, 9, 1), onesided=1),
    dft(f32(2, 5, 2), onesided=1, inverse=1),
    dft(f32(2, 5, 2), n(9), onesided=1, inverse=1, oracle="onnx"),
    dft(f32(2, 8, 1), n(5)),
    dft(f32(2, 8, 1), n(11, np.int32)),
    dft(f32(3, 4, 5, 1), None, n(0)),
    dft(f32(3, 4, 5, 2), None, n(-3)),
    dft(f32(1, 1, 1)),
    dft(f64(2, 8, 2)),
    dft(f16(2, 8, 1), oracle="onnx"),
    dft(bf16(2, 8, 1), oracle="onnx"),
    *(
        dft(f32(1, size, 1), onesided=half, oracle="onnx")
        for size in (2, 3, 4, 6, 14, 17, 30, 77, 96, 97, 169, 360)
        for half in (0, 1)
    ),
    *(
        dft(f32(lines, 38, 2), inverse=back, oracle="onnx")
        for lines in (3, 16, 33)
        for back in (0, 1)
    ),
    *(
        dft(f32(19, 12, 3, 2), n(size), n(1), onesided=1, inverse=1, oracle="onnx")
        for size in (1, 2, 19, 22, 23, 40)
    ),
    *(dft(f64(9, 34, 1), n(size), onesided=1, oracle="onnx") for size in (31, 34, 53)),
    dft(f32(0, 8, 1)),
    dft(f32(2, 6, 3, 1), opset=17),
    dft(f32(2, 6, 3, 1), opset=17, axis=2, onesided=1),
    dft(f32(2, 6, 3, 2), n(4), opset=19, axis=-2, inverse=1),
    fails("DFT", f32(2, 0, 1), onesided=1, match="the signal is empty"),
    fails("DFT", f32(2, 8, 1), None, n(2), match="the last"),
    fails("DFT", f32(2, 8, 1), None, n(5), match="outside"),
    fails("DFT", f32(2, 8, 2), onesided=1, match="one-sided"),
    fails("DFT", f32(2, 8, 3), match=r"1 \(real\) or 2 \(complex\), "),
    fails("DFT", f32(2, 8, 1), n(0), match="dft_length"),
]

STFT = [
    stft(f32(2, 16, 1), n(3), f32(5)),
    stft(f32(2, 16, 1), n(4), f32(8), n(8), onesided=0),
    stft(f32(2, 16, 1), n(4), None, n(6)),
    stft(f32(2, 16, 1), n(4), oracle="onnx"),
    stft(f32(1, 16, 2), n(2), f32(4), onesided=0),
    stft(f32(1, 16, 1), n(5, np.int32), f32(16)),
    stft(f64(1, 9, 1), n(2), f64(4)),
    stft(f16(1, 9, 1), n(2), f16(4), oracle="onnx"),
    *(
        stft(f32(3, 120, parts), n(7), f32(size), onesided=half, oracle="onnx")
        for parts, half in ((1, 0), (1, 1), (2, 0))
        for size in (1, 2, 19, 40, 61)
    ),
    stft(f32(0, 16, 1), n(3), f32(5), oracle="onnx"),
    stft(f64(2, 300, 1), n(11), None, n(46), oracle="onnx"),
    fails("STFT", f32(1, 3, 1), n(1), f32(4), match="shorter than a frame|do not fit"),
    fails("STFT", f32(1, 9, 1), n(0), f32(4), match="frame_step|do not fit"),
    fails("STFT", f32(1, 9, 1), n(1), f32(4), n(5), match="as long as a frame|do not fit"),
    stft(f32(2, 16), n(3), f32(5)),
    fails("STFT", f32(9), n(1), f32(4), match="signal must be"),
]

WINDOWS = [
    row
    for op in ("HannWindow", "HammingWindow", "BlackmanWindow")
    for row in (
        case(op, n(10), ulps=8, why="onnxruntime works in float32"),
        case(op, n(11, np.int32), periodic=0, ulps=8),
        case(op, n(0)),
        case(op, n(2)),
        case(op, n(1), periodic=0),
        case(op, n(7), output_datatype=11, oracle="onnx"),
        case(op, n(7), output_datatype=10, oracle="onnx"),
        case(op, n(7), output_datatype=7),
        fails(op, n(-1), match="negative|-1"),
        fails(op, n(4), output_datatype=8, match="output_datatype 8"),
    )
]

MEL = [
    mel(8, 16, 8192, 0, 4096),
    mel(80, 400, 16000, 0, 8000),
    mel(40, 512, 22050, 125, 7500),
    mel(5, 32, 8000, 0, 4000, output_datatype=11, oracle="onnx"),
    mel(0, 16, 8000, 0, 4000, expect=(np.zeros((9, 0), np.float32),)),
    fails(
        "MelWeightMatrix", n(9), n(16), n(8000), of(0.0), of(9000.0), match="outside the spectrum"
    ),
    fails("MelWeightMatrix", n(9), n(16), n(0), of(0.0), of(9000.0), match="rate (is|must be)"),
]

CASES = [*DFT, *STFT, *WINDOWS, *MEL]
