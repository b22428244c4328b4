// Kernels of the signal family. A `*_sizes` function sets the output dims that depend on data.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// Inputs: x, and dft_length where it is not constant. ints: axis, inverse, onesided, and dft_length
// (0: it is an input).
Status dft(const Call& call, Plan& plan);
Status dft_sizes(const Call& call, const Data& data, View* out);

// Inputs: signal, frame_step, window, frame_length as in ONNX, where they are not constant.
// ints: onesided, frame_step and frame_length (0: it is an input).
Status stft(const Call& call, Plan& plan);
Status stft_sizes(const Call& call, const Data& data, View* out);

// HannWindow, HammingWindow and BlackmanWindow. Input: size. ints: periodic. floats: the factors of
// cos(0), cos(a) and cos(2a).
Status cosine_window(const Call& call, Plan& plan);
Status cosine_window_sizes(const Call& call, const Data& data, View* out);

// MelWeightMatrix; inputs as in ONNX.
Status mel_weights(const Call& call, Plan& plan);
Status mel_weights_sizes(const Call& call, const Data& data, View* out);

// The value of an integer scalar input.
SDX_INLINE int64_t number_in(const Call& call, const Data& data, int operand) {
  return call.in[operand].dtype == DType::i32 ? input<int32_t>(data, operand)[0]
                                              : input<int64_t>(data, operand)[0];
}

}  // namespace sdx::SDX_ISA
