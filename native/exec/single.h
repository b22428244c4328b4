// One call of a kernel row by itself, as packing, tests and benchmarks make it.
#pragma once

#include "kernels/kernel.h"

namespace sdx {

constexpr int kOnPool = 0;  // in parts that threads take

// Runs a row on tensors that `call` and `data` describe, each phase in so many parts that share
// nothing but the scratch. `data` needs no scratch or local memory of its own. `threads` are those
// of a run on the pool; 0: as many as the process may use.
Status run_single(const Kernel& kernel, const Call& call, Data data, int parts, int threads = 0);

}  // namespace sdx
