#include "exec/single.h"

#include "exec/pool.h"
#include "exec/prepare.h"

namespace sdx {

namespace {

Status no_memory() { return Status::fail("there is no memory for the row's scratch"); }

// A phase in parts, one after the other.
Status run_parts(const Phase& phase, const Plan& plan, Data data, int parts) {
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t begin = phase.count * i / parts, end = phase.count * (i + 1) / parts;
    if (begin == end) continue;
    Bump own;  // a fresh one for each part, so that nothing can be carried over
    data.local = static_cast<std::byte*>(own.allocate(size_t(plan.local_bytes)));
    if (data.local == nullptr) return no_memory();
    if (Status status = phase.run(plan.args, data, begin, end); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Status run_single(const Kernel& kernel, const Call& call, Data data, int parts, int n_threads) {
  Bump bump;
  Plan plan;
  if (Status status = prepare(kernel, call, bump, plan); !status.ok()) return status;
  data.scratch = static_cast<std::byte*>(bump.allocate(size_t(plan.scratch_bytes)));
  if (data.scratch == nullptr) return no_memory();
  const int64_t local = (plan.local_bytes + 63) / 64 * 64;
  ThreadOptions threads{1, true};
  if (parts == kOnPool) {
    threads.threads = n_threads > 0 ? n_threads : usable_cpus();
    want_threads(threads.threads);
    data.local = static_cast<std::byte*>(bump.allocate(size_t(local * threads.threads)));
    if (data.local == nullptr) return no_memory();
  }
  for (int p = 0; p < plan.n_phases; ++p) {
    const Phase& phase = plan.phases[p];
    for (data.round = 0; data.round < phase.rounds; ++data.round) {
      Status status = parts == kOnPool ? run_phase(phase, plan.args, data, local, threads)
                                       : run_parts(phase, plan, data, parts);
      if (!status.ok()) return status;
    }
  }
  return {};
}

}  // namespace sdx
