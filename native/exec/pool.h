// One pool of threads per process. A run borrows workers that are idle and never waits for one.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel.h"

namespace sdx {

// How a session uses the pool.
struct ThreadOptions {
  int threads = 0;        // the caller included; 0: as many as the process may use
  bool spins = true;      // whether workers stay awake for a moment after their work
  bool flushes = false;   // whether tiny numbers count as zero
  int32_t spin_us = 200;  // how long that moment is
  bool calms = false;     // whether it ends with the run
};

// Whether the calling thread takes denormal numbers for zero, and gives zeros for them, from now
// on; the answer is whether it did before.
bool flush_denormals(bool on);

// Sends workers that stay awake to sleep.
void calm_workers();

// CPUs that the process may use, from its affinity and its cgroup's quota.
int usable_cpus();

// Threads of a run at most.
constexpr int kMostThreads = 256;

// Makes sure that the pool can give this many threads, the caller included.
void want_threads(int threads);

// Binds worker i (from 0) to the CPUs in sets[i].
void set_affinities(const std::vector<std::vector<int>>& sets);

// Runs a phase over its whole range, on the calling thread and as many idle workers as pay.
// `data.local` has room for `threads` areas of `local_bytes` each.
Status run_phase(const Phase& phase, const void* args, const Data& data, int64_t local_bytes,
                 const ThreadOptions& options);

}  // namespace sdx
