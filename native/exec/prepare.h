// Asks a kernel row for its plan.
#pragma once

#include <vector>

#include "exec/memory.h"
#include "kernels/kernel.h"

namespace sdx {

inline Call call_of(const std::vector<View>& in, const std::vector<View>& out,
                    const std::vector<int64_t>& ints, const std::vector<double>& floats) {
  return {{in.data(), int(in.size())},
          {out.data(), int(out.size())},
          {ints.data(), int(ints.size())},
          {floats.data(), int(floats.size())}};
}

// Runs `prepare` with `memory` for its records and tables. Rows are compiled without exceptions:
// none is thrown through them, and a lack of memory is a Status.
Status prepare(const Kernel& kernel, const Call& call, Bump& memory, Plan& plan);

}  // namespace sdx
