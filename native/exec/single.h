// One call of a kernel row by itself, as packing, tests and benchmarks make it.
#pragma once

#include "kernels/kernel.h"

namespace sdx {

constexpr int kOnPool = 0;  // as many threads as the process may use

// Runs a row on tensors that `call` and `data` describe, each phase in so many parts that share
// nothing but the scratch. `data` needs no scratch or local memory of its own.
Status run_single(const Kernel& kernel, const Call& call, Data data, int parts);

}  // namespace sdx
