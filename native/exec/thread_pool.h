// One thread pool per process, as large as CPU affinity and the cgroup's quota allow, or as a
// session requests. A run borrows idle workers and never waits for one that has not begun:
//   - the caller puts its job into the mailboxes of idle workers, works on the job itself, then
//     withdraws the offers that no worker has accepted;
//   - it waits only for workers that are in the middle of a chunk;
//   - a phase of less than a few microseconds of work wakes no worker.
// Nested and concurrent runs therefore cannot deadlock, and a busy pool only makes them slower.
// A forked child starts with an empty pool: the threads of the parent do not exist there.
//
// Thread-safe: mailboxes are atomics; `ThreadPool::growing` guards the creation of workers.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel.h"

namespace sdx {

// How a session uses the pool.
struct ThreadOptions {
  int threads = 0;                 // the caller included; 0: as many as the process may use
  bool spins = true;               // workers spin (busy-wait) for a moment after their work
  bool flushes_denormals = false;  // denormal inputs and results count as zero
  int32_t spin_us = 200;           // how long they spin (busy-wait)
  bool stops_spinning = false;     // they go to sleep when the run ends (force_spinning_stop)
};

// Sets whether the calling thread treats denormals as zero, in operands and results; returns
// whether it did before.
bool flush_denormals(bool on);

// Sends spinning workers to sleep.
void stop_spinning();

// CPUs that the process may use: the minimum of its affinity and its cgroup's quota.
int usable_cpus();

// Threads of a run at most: run_phase keeps an array of this size on the stack.
constexpr int kMaxThreads = 256;

// Makes sure that the pool has workers for this many threads, the caller included.
void ensure_threads(int threads);

// Binds worker i (from 0) to the CPUs in sets[i].
void set_affinities(const std::vector<std::vector<int>>& sets);

// Runs a phase over its whole range, on the calling thread and as many idle workers as pay off.
// `data.local` has space for `threads` areas of `local_bytes` each. If items fail, the status is
// that of the first one, whatever the number of threads.
Status run_phase(const Phase& phase, const void* args, const Data& data, int64_t local_bytes,
                 const ThreadOptions& options);

}  // namespace sdx
