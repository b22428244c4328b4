#include "exec/prepare.h"

namespace sdx {

Status prepare(const Kernel& kernel, const Call& call, BumpAllocator& memory, Plan& plan) {
  const auto counts = size_t(call.n_in + call.n_out + call.n_ints + call.n_floats);
  // Reserved up front, so that Plan::make never fails. Twice kRecordBytes: a table that is not
  // small may use the reserve, but must leave kRecordBytes of it (BumpAllocator::allocate).
  if (!memory.reserve(2 * kRecordBytes + counts * kRecordBytesEach)) return no_table();
  plan.owner = &memory;
  plan.allocate = [](void* owner, size_t bytes) {
    return static_cast<BumpAllocator*>(owner)->allocate(bytes);
  };
  Status status = kernel.prepare(call, plan);
  if (status.ok()) status = plan.error;
  if (status.ok() && plan.n_phases > kMaxPhases)
    return Status::fail("the kernel %s has %d phases, but at most %d are allowed", kernel.name,
                        plan.n_phases, kMaxPhases);
  return status;
}

}  // namespace sdx
