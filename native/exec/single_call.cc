#include "exec/single_call.h"

#include "exec/prepare.h"
#include "exec/thread_pool.h"

namespace sdx {

namespace {

Status out_of_memory() { return Status::fail("out of memory for the scratch of the kernel"); }

// A phase in ranges, one after the other.
Status run_splits(const Phase& phase, const Plan& plan, Data data, int splits) {
  for (int64_t i = 0; i < splits; ++i) {
    const int64_t begin = phase.count * i / splits, end = phase.count * (i + 1) / splits;
    if (begin == end) continue;
    BumpAllocator own;  // fresh for each range, so that none can read what another left
    data.local = static_cast<std::byte*>(own.allocate(size_t(plan.local_bytes)));
    if (data.local == nullptr) return out_of_memory();
    if (Status status = phase.run(plan.args, data, begin, end); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Status run_single_call(const Kernel& kernel, const Call& call, Data data, int splits,
                       int n_threads) {
  BumpAllocator allocator;
  Plan plan;
  if (Status status = prepare(kernel, call, allocator, plan); !status.ok()) return status;
  data.scratch = static_cast<std::byte*>(allocator.allocate(size_t(plan.scratch_bytes)));
  if (data.scratch == nullptr) return out_of_memory();
  const int64_t local = (plan.local_bytes + 63) / 64 * 64;
  ThreadOptions threads{1, true};
  if (splits == kOnThreadPool) {
    threads.threads = n_threads > 0 ? n_threads : usable_cpus();
    ensure_threads(threads.threads);
    data.local = static_cast<std::byte*>(allocator.allocate(size_t(local * threads.threads)));
    if (data.local == nullptr) return out_of_memory();
  }
  for (int p = 0; p < plan.n_phases; ++p) {
    const Phase& phase = plan.phases[p];
    for (data.round = 0; data.round < phase.rounds; ++data.round) {
      Status status = splits == kOnThreadPool ? run_phase(phase, plan.args, data, local, threads)
                                              : run_splits(phase, plan, data, splits);
      if (!status.ok()) return status;
    }
  }
  return {};
}

}  // namespace sdx
