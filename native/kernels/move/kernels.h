// Kernels of the move family, by the file that defines them. A `resolve_*` function sets the output
// dims that depend on data.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA::moving {

// copy.cc
Status copy(const Call& call, Plan& plan);
Status concat(const Call& call, Plan& plan);
Status split(const Call& call, Plan& plan);
Status rearrange(const Call& call, Plan& plan);  // reshape, then transpose
Status tile(const Call& call, Plan& plan);
Status expand(const Call& call, Plan& plan);
Status resolve_split(const Call& call, const Data& data, View* out);
Status resolve_tile(const Call& call, const Data& data, View* out);
Status resolve_expand(const Call& call, const Data& data, View* out);
Status resolve_reshape(const Call& call, const Data& data, View* out);

// fill.cc
Status fill(const Call& call, Plan& plan);
Status range(const Call& call, Plan& plan);
Status sizes(const Call& call, Plan& plan);
Status eye(const Call& call, Plan& plan);
Status trilu(const Call& call, Plan& plan);
Status resolve_fill(const Call& call, const Data& data, View* out);
Status resolve_range(const Call& call, const Data& data, View* out);

// pad.cc
Status pad(const Call& call, Plan& plan);
Status pad_at_run(const Call& call, Plan& plan);
Status resolve_pad(const Call& call, const Data& data, View* out);

// slice.cc
Status slice(const Call& call, Plan& plan);
Status reverse_sequence(const Call& call, Plan& plan);
Status resolve_slice(const Call& call, const Data& data, View* out);

}  // namespace sdx::SDX_ISA::moving
