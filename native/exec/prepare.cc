#include "exec/prepare.h"

namespace sdx {

Status prepare(const Kernel& kernel, const Call& call, Bump& memory, Plan& plan) {
  const auto counts = size_t(call.n_in + call.n_out + call.n_ints + call.n_floats);
  // Twice: what is not small must leave kRecordBytes.
  if (!memory.reserve(2 * kRecordBytes + counts * kRecordBytesEach)) return no_table();
  plan.owner = &memory;
  plan.allocate = [](void* owner, size_t bytes) {
    return static_cast<Bump*>(owner)->allocate(bytes);
  };
  Status status = kernel.prepare(call, plan);
  if (status.ok() && plan.n_phases > kMaxPhases)
    return Status::fail("the kernel %s has %d phases, and %d is the most", kernel.name,
                        plan.n_phases, kMaxPhases);
  return status;
}

}  // namespace sdx
