#include "exec/single.h"

#include "exec/memory.h"
#include "exec/pool.h"

namespace sdx {

namespace {

// A phase in parts, one after the other.
Status run_parts(const Phase& phase, const Plan& plan, Data data, int parts) {
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t begin = phase.count * i / parts, end = phase.count * (i + 1) / parts;
    if (begin == end) continue;
    Bump own;  // a fresh one for each part, so that nothing can be carried over
    data.local = static_cast<std::byte*>(own.allocate(size_t(plan.local_bytes)));
    if (Status status = phase.run(plan.args, data, begin, end); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Status run_single(const Kernel& kernel, const Call& call, Data data, int parts, int n_threads) {
  Bump bump;
  Plan plan;
  plan.owner = &bump;
  plan.allocate = [](void* owner, size_t bytes) {
    return static_cast<Bump*>(owner)->allocate(bytes);
  };
  if (Status status = kernel.prepare(call, plan); !status.ok()) return status;
  data.scratch = static_cast<std::byte*>(bump.allocate(size_t(plan.scratch_bytes)));
  const int64_t local = (plan.local_bytes + 63) / 64 * 64;
  ThreadOptions threads{1, true};
  if (parts == kOnPool) {
    threads.threads = n_threads > 0 ? n_threads : usable_cpus();
    want_threads(threads.threads);
    data.local = static_cast<std::byte*>(bump.allocate(size_t(local * threads.threads)));
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
