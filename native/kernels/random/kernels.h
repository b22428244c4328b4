// Kernels of the random family. Their first input is a vector of float64 with the number of the
// run, or none. Their first ints: whether the stream is that of nodes without a seed, the seed, and
// where in the vector the number of the run is, or -1.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// ints: the seed, the threshold of 32 bits below which an element is dropped, and where in the
// input the number of the run is.
Status dropout_mask(const Call& call, Plan& plan);

// floats: a scale, and what is added.
Status random_uniform(const Call& call, Plan& plan);
Status random_normal(const Call& call, Plan& plan);

// Inputs after the first: probabilities. ints after the first: the bits of an output that is 1.
Status bernoulli(const Call& call, Plan& plan);
// Inputs after the first: logarithms of probabilities.
Status multinomial(const Call& call, Plan& plan);
// Inputs after the first, and outputs, as in ONNX.
Status dropout(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
