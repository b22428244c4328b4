// Calls a kernel's `prepare` for concrete sizes.
#pragma once

#include <vector>

#include "exec/bump_allocator.h"
#include "kernels/kernel.h"

namespace sdx {

inline Call call_of(const std::vector<View>& in, const std::vector<View>& out,
                    const std::vector<int64_t>& ints, const std::vector<double>& floats) {
  return {{in.data(), int(in.size())},
          {out.data(), int(out.size())},
          {ints.data(), int(ints.size())},
          {floats.data(), int(floats.size())}};
}

// Runs `prepare` with `memory` for its arguments and tables. Kernels are compiled without
// exceptions, so nothing on the way may throw: a lack of memory is a Status.
Status prepare(const Kernel& kernel, const Call& call, BumpAllocator& memory, Plan& plan);

}  // namespace sdx
