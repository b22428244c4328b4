// Kernels of the select family. A `*_sizes` function sets the output dims that depend on data.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// No operands other than x. The number of rows is the rank of x.
Status nonzero(const Call& call, Plan& plan);
Status resolve_nonzero(const Call& call, const Data& data, View* out);

// ints: axis, whether the largest are selected. K is the size of the axis in the output.
Status top_k(const Call& call, Plan& plan);
// For a K, the second input, that is not constant.
Status top_k_sizes(const Call& call, const Data& data, View* out);

// Inputs as in ONNX, of which the last three are optional; ints: center_point_box.
Status non_max_suppression(const Call& call, Plan& plan);
Status non_max_suppression_sizes(const Call& call, const Data& data, View* out);

}  // namespace sdx::SDX_ISA
