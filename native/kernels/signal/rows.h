// The rows of the family, by the file that has them.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// Inputs: x, and the length where it is known only when it runs. ints: axis, inverse, onesided, and
// the length, or 0.
Status dft(const Call& call, Plan& plan);
Status dft_sizes(const Call& call, const Data& data, View* out);

// Inputs: the signal, step, window and length as in ONNX; those that are known are not given.
// ints: onesided, step and length, each of these 0 where an input has it.
Status stft(const Call& call, Plan& plan);
Status stft_sizes(const Call& call, const Data& data, View* out);

// Input: the number of samples. ints: periodic. floats: the factors of cos(0), cos(a) and cos(2a).
Status cosine_window(const Call& call, Plan& plan);
Status cosine_window_sizes(const Call& call, const Data& data, View* out);

// Inputs as in ONNX.
Status mel_weights(const Call& call, Plan& plan);
Status mel_weights_sizes(const Call& call, const Data& data, View* out);

// The one number that an integer input holds.
SDX_INLINE int64_t number_in(const Call& call, const Data& data, int slot) {
  return call.in[slot].dtype == DType::i32 ? input<int32_t>(data, slot)[0]
                                           : input<int64_t>(data, slot)[0];
}

}  // namespace sdx::SDX_ISA
