// The rows of the family, by the file that has them.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA::gathering {

// dequantized.cc
Status gather_dequantized(const Call& call, Plan& plan);

// gather.cc
Status gather(const Call& call, Plan& plan);
Status gather_elements(const Call& call, Plan& plan);
Status gather_nd(const Call& call, Plan& plan);

// scatter.cc
Status scatter_elements(const Call& call, Plan& plan);
Status scatter_nd(const Call& call, Plan& plan);
Status tensor_scatter(const Call& call, Plan& plan);

// select.cc
Status one_hot(const Call& call, Plan& plan);
Status compress(const Call& call, Plan& plan);
Status nonzero(const Call& call, Plan& plan);
Status resolve_one_hot(const Call& call, const Data& data, View* out);
Status resolve_compress(const Call& call, const Data& data, View* out);
Status resolve_nonzero(const Call& call, const Data& data, View* out);

}  // namespace sdx::SDX_ISA::gathering
