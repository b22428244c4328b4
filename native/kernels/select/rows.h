// The rows of the family, by the file that has them.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// ints: axis, whether the largest are meant. K is the size of the axis in the output.
Status top_k(const Call& call, Plan& plan);
// Where K, the second input, is known only when it runs.
Status top_k_sizes(const Call& call, const Data& data, View* out);

// Inputs as in ONNX, the last three of them perhaps not given; ints: center_point_box.
Status non_max(const Call& call, Plan& plan);
Status non_max_sizes(const Call& call, const Data& data, View* out);

}  // namespace sdx::SDX_ISA
