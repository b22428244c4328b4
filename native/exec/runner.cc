#include "exec/runner.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace sdx {
namespace {

constexpr int kMaxOperands = 64;           // on the stack; more go to the heap
constexpr int64_t kChainWork = 1'000'000;  // ns: makes run_phase use a thread for every chain

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::byte* Runner::address_of(const Location& location) const {
  if (location.base >= 0) {
    SDX_ASSERT(size_t(location.base) < state_.slots.size());
    return state_.slots[size_t(location.base)].data + location.offset;
  }
  switch (location.base) {
    case Location::kArena: return arena_.get() + location.offset;
    case Location::kFixed: return reinterpret_cast<std::byte*>(location.offset);
    case Location::kAbsent: return nullptr;
    default: return own_blocks_[size_t(location.own_block())].get() + location.offset;
  }
}

Outcome Runner::run() {
  Outcome outcome;
  outcome.segment = number_;
  outcome.fault = allocate(outcome.bytes);
  if (outcome.fault != Fault::none) {
    outcome.index = -1;
    return outcome;
  }
  run_ = add_profiled_run();
  const std::vector<PlannedStep>& steps = specialization_.steps;
  // One iteration per parallel group; most groups are a single step.
  for (size_t i = 0; i < steps.size(); i = size_t(specialization_.group_ends[i]) + 1) {
    outcome.index = steps[i].number;
    outcome.fault = allocate_blocks(i);
    if (outcome.fault != Fault::none) return outcome;
    if (state_.should_stop != nullptr && state_.should_stop(state_.stop_context)) {
      outcome.fault = Fault::stopped;
      return outcome;
    }
    outcome.status = specialization_.group_ends[i] == int32_t(i) ? run_step(steps[i], nullptr)
                                                                 : run_group(i, outcome.index);
    if (!outcome.status.ok()) {
      outcome.fault = Fault::step;
      return outcome;
    }
    release_blocks(size_t(specialization_.group_ends[i]));
  }
  return outcome;
}

// Records the sizes of this run for its profile; returns the index under which timings refer to it.
int Runner::add_profiled_run() const {
  if (state_.profile == nullptr) return 0;
  state_.profile->dim_sizes.push_back(state_.dim_sizes);
  return int(state_.profile->dim_sizes.size()) - 1;
}

// Allocates the memory of the run, or none of it; `requested` is how much that is. If inputs are
// consumed, outputs and own blocks are allocated before the first step that writes to them.
Fault Runner::allocate(int64_t& requested) {
  const int64_t locals = specialization_.local_bytes * state_.threads.threads;
  const int64_t arena = specialization_.arena_bytes + kAlign + locals;
  requested = arena;
  for (const ExportedValue& exported : specialization_.exports)
    if (takes_new_block(exported) && output_buffer_for(exported) == nullptr)
      requested += exported.bytes;
  requested += specialization_.own_peak_bytes;
  requested = with_live_bytes(state_, requested);
  if (requested > state_.limit_bytes) return Fault::limit;
  try {
    arena_ = state_.pool->arena(size_t(arena));
    local_ = arena_.get() + align_up(specialization_.arena_bytes);
    own_blocks_.resize(specialization_.own_blocks.size());
  } catch (const std::bad_alloc&) {
    return Fault::memory;
  }
  return allocate_blocks(0);
}

// Allocates the outputs and own blocks whose first use is at `position` or before.
Fault Runner::allocate_blocks(size_t position) {
  const std::vector<ExportedValue>& exports = specialization_.exports;
  const std::vector<OwnBlock>& own = specialization_.own_blocks;
  try {
    for (; next_export_ < exports.size() && size_t(exports[next_export_].first_use) <= position;
         ++next_export_)
      set_slot(exports[next_export_]);
    for (; next_own_ < own.size() && size_t(own[next_own_].first) <= position; ++next_own_)
      own_blocks_[next_own_] = state_.pool->arena(size_t(own[next_own_].bytes));
    return Fault::none;
  } catch (const std::bad_alloc&) {
    return Fault::memory;
  }
}

// Releases the own blocks that no step after `position` uses, and inputs that none reads.
void Runner::release_blocks(size_t position) {
  const std::vector<LastUse>& ends = specialization_.own_ends;
  for (; next_own_end_ < ends.size() && size_t(ends[next_own_end_].position) <= position;
       ++next_own_end_)
    own_blocks_[size_t(ends[next_own_end_].index)] = {};
  if (state_.release_input == nullptr) return;
  const std::vector<LastUse>& reads = specialization_.last_reads;
  for (; next_release_ < reads.size() && size_t(reads[next_release_].position) <= position;
       ++next_release_)
    state_.release_input(state_.release_context, reads[next_release_].index);
}

// Whether an output has a block of its own: not that of another output, nor of the cache it
// extends.
bool Runner::takes_new_block(const ExportedValue& exported) const {
  if (exported.growth >= 0) return grown_[size_t(exported.growth)].block == nullptr;
  return exported.root == exported.slot;
}

// The caller's buffer for an output, if there is one of its shape.
const OutputBuffer* Runner::output_buffer_for(const ExportedValue& exported) const {
  for (const OutputBuffer& buffer : state_.output_buffers)
    if (buffer.slot == exported.slot) return buffer.fits(exported.view) ? &buffer : nullptr;
  return nullptr;
}

std::shared_ptr<std::byte> Runner::new_block(const ExportedValue& exported) const {
  if (const OutputBuffer* buffer = output_buffer_for(exported)) return buffer->block();
  return state_.pool->block(size_t(exported.bytes));
}

void Runner::set_slot(const ExportedValue& exported) {
  Slot& slot = state_.slots[size_t(exported.slot)];
  slot.view = exported.view;
  if (exported.growth >= 0)
    set_growing_slot(exported, slot);
  else
    slot.block =
        takes_new_block(exported) ? new_block(exported) : state_.slots[size_t(exported.root)].block;
  slot.data = slot.block.get();
}

// The block of a cache: the caller's buffer, that of its input, whose rows were claimed, or a new
// one with spare capacity.
void Runner::set_growing_slot(const ExportedValue& exported, Slot& slot) {
  Slot& grown = grown_[size_t(exported.growth)];
  if (grown.block == nullptr) {
    grown.block = state_.pool->block(size_t(exported.bytes));
    if (exported.capacity > exported.rows) {
      grown.capacity = std::make_shared<Capacity>();
      grown.capacity->rows = exported.capacity;
      grown.capacity->used = exported.rows;
    }
  }
  slot.block = grown.block;
  slot.capacity = grown.capacity;
}

// A parallel group while it runs: the range of a phase is its chains.
struct Runner::GroupRun {
  Runner* runner;
  size_t first, last;  // steps
  std::mutex mutex{};  // guards what follows
  int32_t failed_chain = INT32_MAX;
  int failed_step = -1;
  Status status{};

  // Keeps the failure of the first chain, so that the error does not depend on the threads.
  void add_failure(const PlannedStep& step, const Status& failure) {
    std::lock_guard lock(mutex);
    if (step.chain < failed_chain)
      failed_chain = step.chain, failed_step = step.number, status = failure;
  }
};

// Runs the group that starts at step `first`, each chain on one thread.
Status Runner::run_group(size_t first, int& failed_step) {
  const auto last = size_t(specialization_.group_ends[first]);
  GroupRun group{this, first, last};
  Phase phase{run_chain, 1, 1, 1};
  for (size_t i = first; i <= last; ++i)
    phase.count = std::max(phase.count, int64_t(specialization_.steps[i].chain) + 1);
  phase.work = kChainWork;
  Data data;
  data.local = local_;
  if (run_phase(phase, &group, data, specialization_.local_bytes, state_.threads).ok()) return {};
  failed_step = group.failed_step;
  return group.status;
}

// A PhaseFn: runs the steps of chains [begin, end) of a group, in execution order.
Status Runner::run_chain(const void* args, const Data& data, int64_t begin, int64_t end) {
  auto& group = *const_cast<GroupRun*>(static_cast<const GroupRun*>(args));
  for (size_t i = group.first; i <= group.last; ++i) {
    const PlannedStep& step = group.runner->specialization_.steps[i];
    if (step.chain < begin || step.chain >= end) continue;
    Status status = group.runner->run_step(step, data.local);
    if (status.ok()) continue;
    group.add_failure(step, status);
    return status;
  }
  return {};
}

// Runs a step on all threads or, with a thread-local area, on this thread alone.
Status Runner::run_step(const PlannedStep& step, std::byte* local) {
  const int64_t began = state_.profile == nullptr ? 0 : now_ns();
  Status status = run_phases(step, local);
  if (state_.profile != nullptr && status.ok()) {
    std::lock_guard lock(timing_mutex_);
    const int chain = local == nullptr ? 0 : step.chain;
    state_.profile->steps.push_back({number_, step.number, run_, chain, began, now_ns()});
  }
  return status;
}

Status Runner::run_phases(const PlannedStep& step, std::byte* local) {
  const int n = step.n_in + step.n_out;
  void* on_stack[kMaxOperands];
  std::vector<void*> on_heap;
  void** at = on_stack;
  if (n > kMaxOperands) {
    on_heap.resize(size_t(n));
    at = on_heap.data();
  }
  for (int i = 0; i < n; ++i)
    at[i] = address_of(specialization_.locations[size_t(step.first_location + i)]);
  Data data{at,
            at + step.n_in,
            address_of(step.scratch),
            local == nullptr ? local_ : local,
            0,
            state_.strings->allocator()};
  ResolveCache cache;
  for (const auto& [number, numbers] : caches_)
    if (number == step.number)
      cache.numbers = numbers.data(), cache.count = int64_t(numbers.size());
  if (cache.numbers != nullptr) data.resolved = &cache;
  for (int p = 0; p < step.plan.n_phases; ++p) {
    const Phase& phase = step.plan.phases[p];
    if (phase.count <= 0) continue;  // kernels are never called with an empty range
    for (data.round = 0; data.round < phase.rounds; ++data.round) {
      Status status = local == nullptr ? run_phase(phase, step.plan.args, data,
                                                   step.plan.local_bytes, state_.threads)
                                       : phase.run(step.plan.args, data, 0, phase.count);
      if (!status.ok()) return status;
    }
  }
  return {};
}

}  // namespace sdx
