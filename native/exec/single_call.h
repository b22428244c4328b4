// One call of a kernel by itself: for prepacking weights, tests and benchmarks.
#pragma once

#include "kernels/kernel.h"

namespace sdx {

constexpr int kOnThreadPool = 0;  // as `splits`: the range is distributed over threads

// Runs a kernel on the tensors of `call` and `data`; scratch and local memory are allocated here.
// Each phase runs in `splits` ranges one after another, or on the thread pool with `threads`
// threads (0: as many as the process may use). Tests compare splits: they must not change any byte.
Status run_single_call(const Kernel& kernel, const Call& call, Data data, int splits,
                       int threads = 0);

}  // namespace sdx
