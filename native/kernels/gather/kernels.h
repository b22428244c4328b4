// Kernels of the gather family, by the file that defines them. A `resolve_*` function sets the
// output dims that depend on data.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA::gathering {

// compress.cc
Status compress(const Call& call, Plan& plan);
Status resolve_compress(const Call& call, const Data& data, View* out);

// gather.cc
Status gather(const Call& call, Plan& plan);
Status gather_elements(const Call& call, Plan& plan);
Status gather_nd(const Call& call, Plan& plan);

// one_hot.cc
Status one_hot(const Call& call, Plan& plan);
Status resolve_one_hot(const Call& call, const Data& data, View* out);

// scatter.cc
Status scatter_elements(const Call& call, Plan& plan);
Status scatter_nd(const Call& call, Plan& plan);
Status tensor_scatter(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA::gathering
