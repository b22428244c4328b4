#include "exec/segment.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>

#include "exec/binding.h"
#include "exec/grow.h"
#include "exec/prepare.h"

namespace sdx {
namespace {

constexpr size_t kKeptBindings = 8;
constexpr int kMostOperands = 64;  // beyond which pointers go to the heap

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool is_for(const Binding& binding, const std::vector<int32_t>& names, const RunState& state) {
  for (size_t i = 0; i < names.size(); ++i)
    if (binding.key[i] != state.names[size_t(names[i])]) return false;
  return true;
}

std::byte* address(const Place& place, const RunState& state, std::byte* arena) {
  switch (place.base) {
    case Place::kAbsent: return nullptr;
    case Place::kFixed: return reinterpret_cast<std::byte*>(place.offset);
    case Place::kArena: return arena + place.offset;
    default:
      SDX_ASSERT(size_t(place.base) < state.slots.size());
      return state.slots[size_t(place.base)].data + place.offset;
  }
}

// One run over a binding.
class Runner {
 public:
  Runner(const Binding& binding, RunState& state, int number, std::vector<Slot> grown,
         FoundBySteps found)
      : binding_(binding),
        state_(state),
        number_(number),
        grown_(std::move(grown)),
        found_(std::move(found)) {}

  Outcome run() {
    Outcome outcome;
    outcome.segment = number_;
    outcome.fault = allocate(outcome.bytes);
    if (outcome.fault != Fault::none) {
      outcome.index = -1;
      return outcome;
    }
    run_ = note_names();
    for (size_t i = 0; i < binding_.steps.size(); i = size_t(binding_.ends[i]) + 1) {
      outcome.index = binding_.steps[i].number;
      if (state_.should_stop != nullptr && state_.should_stop(state_.stop_context)) {
        outcome.fault = Fault::stopped;
        return outcome;
      }
      outcome.status = binding_.ends[i] == int32_t(i) ? step(binding_.steps[i], nullptr)
                                                      : at_once(i, outcome.index);
      if (!outcome.status.ok()) {
        outcome.fault = Fault::step;
        return outcome;
      }
    }
    return outcome;
  }

 private:
  // For profiles: the sizes of this run, and the number under which they are kept.
  int note_names() const {
    if (state_.moments == nullptr) return 0;
    state_.moments->names.push_back(state_.names);
    return int(state_.moments->names.size()) - 1;
  }

  // All memory of the run, or none of it; `wanted` is how much that is.
  Fault allocate(int64_t& wanted) {
    const int64_t locals = binding_.local_bytes * state_.threads.threads;
    const int64_t arena = binding_.arena_bytes + kAlign_ + locals;
    wanted = arena;
    for (const Export& made : binding_.exports)
      if (is_new(made) && given_for(made) == nullptr) wanted += made.bytes;
    wanted = with_held(state_, wanted);
    if (wanted > state_.limit_bytes) return Fault::limit;
    try {
      arena_ = state_.pool->frame(size_t(arena));
      local_ = arena_.get() + (binding_.arena_bytes + kAlign_ - 1) / kAlign_ * kAlign_;
      for (const Export& made : binding_.exports) hand_out(made);
      return Fault::none;
    } catch (const std::bad_alloc&) {
      return Fault::memory;
    }
  }

  // Whether an output takes a block of its own.
  bool is_new(const Export& made) const {
    if (made.growth >= 0) return grown_[size_t(made.growth)].block == nullptr;
    return made.root == made.slot;
  }

  void hand_out(const Export& made) {
    Slot& slot = state_.slots[size_t(made.slot)];
    slot.view = made.view;
    if (made.growth >= 0)
      grow(made, slot);
    else
      slot.block = is_new(made) ? block_for(made) : state_.slots[size_t(made.root)].block;
    slot.data = slot.block.get();
  }

  std::shared_ptr<std::byte> block_for(const Export& made) {
    if (std::byte* data = given_for(made)) return {data, [](std::byte*) {}};
    return state_.pool->block(size_t(made.bytes));
  }

  // The caller's memory for an output, if there is some of its shape.
  std::byte* given_for(const Export& made) const {
    for (const Given& given : state_.given) {
      if (given.slot != made.slot) continue;
      const bool fits =
          given.view.rank == made.view.rank && made.growth < 0 &&
          std::equal(given.view.dims, given.view.dims + given.view.rank, made.view.dims);
      return fits ? given.data : nullptr;
    }
    return nullptr;
  }

  // The block of an output with room: that of its input, or a new one.
  void grow(const Export& made, Slot& slot) {
    Slot& planned = grown_[size_t(made.growth)];
    if (planned.block == nullptr) {
      planned.block = state_.pool->block(size_t(made.bytes));
      if (state_.grows_in_place) {
        planned.room = std::make_shared<Room>();
        planned.room->rows = made.room;
        planned.room->used = made.rows;
      }
    }
    slot.block = planned.block;
    slot.room = planned.room;
  }

  // Steps [first, end of its round], each chain on one thread; `failed` is the one that did.
  Status at_once(size_t first, int& failed) {
    const auto last = size_t(binding_.ends[first]);
    Round round{this, first, last};
    Phase phase{run_lane, 1, 1, 1};
    for (size_t i = first; i <= last; ++i)
      phase.count = std::max(phase.count, int64_t(binding_.steps[i].lane) + 1);
    phase.work = kLaneWork;
    Data data;
    data.local = local_;
    if (run_phase(phase, &round, data, binding_.local_bytes, state_.threads).ok()) return {};
    failed = round.failed;
    return round.status;
  }

  struct Round {
    Runner* runner;
    size_t first, last;
    std::mutex noting{};
    int32_t failed_lane = INT32_MAX;  // the first chain that failed, at which step, and how
    int failed = -1;
    Status status{};

    void note(const BoundStep& step, const Status& how) {
      std::lock_guard lock(noting);
      if (step.lane < failed_lane) failed_lane = step.lane, failed = step.number, status = how;
    }
  };

  static Status run_lane(const void* args, const Data& data, int64_t begin, int64_t end) {
    auto& round = *const_cast<Round*>(static_cast<const Round*>(args));
    for (size_t i = round.first; i <= round.last; ++i) {
      const BoundStep& bound = round.runner->binding_.steps[i];
      if (bound.lane < begin || bound.lane >= end) continue;
      Status status = round.runner->step(bound, data.local);
      if (status.ok()) continue;
      round.note(bound, status);
      return status;
    }
    return {};
  }

  // Runs a step: on all threads, or with a local area on this one alone.
  Status step(const BoundStep& bound, std::byte* local) {
    const int64_t began = state_.moments == nullptr ? 0 : now_ns();
    Status status = run_phases(bound, local);
    if (state_.moments != nullptr && status.ok()) {
      std::lock_guard lock(noting_);
      const int lane = local == nullptr ? 0 : bound.lane;
      state_.moments->steps.push_back({number_, bound.number, run_, lane, began, now_ns()});
    }
    return status;
  }

  Status run_phases(const BoundStep& bound, std::byte* local) {
    const int n = bound.n_in + bound.n_out;
    void* near[kMostOperands];
    std::vector<void*> far;
    void** at = near;
    if (n > kMostOperands) {
      far.resize(size_t(n));
      at = far.data();
    }
    for (int i = 0; i < n; ++i)
      at[i] = address(binding_.places[size_t(bound.first_place + i)], state_, arena_.get());
    Data data{
        at, at + bound.n_in,     arena_.get() + bound.scratch, local == nullptr ? local_ : local,
        0,  state_.texts->room()};
    ResolveCache cache;
    for (const auto& [number, numbers] : found_)
      if (number == bound.number)
        cache.numbers = numbers.data(), cache.count = int64_t(numbers.size());
    if (cache.numbers != nullptr) data.resolved = &cache;
    for (int p = 0; p < bound.plan.n_phases; ++p) {
      const Phase& phase = bound.plan.phases[p];
      for (data.round = 0; data.round < phase.rounds; ++data.round) {
        Status status = local == nullptr ? run_phase(phase, bound.plan.args, data,
                                                     bound.plan.local_bytes, state_.threads)
                                         : phase.run(bound.plan.args, data, 0, phase.count);
        if (!status.ok()) return status;
      }
    }
    return {};
  }

  static constexpr int64_t kAlign_ = 64;
  static constexpr int64_t kLaneWork = 1'000'000;  // ns: every chain is worth a thread
  const Binding& binding_;
  RunState& state_;
  int number_;
  std::vector<Slot> grown_;
  FoundBySteps found_;
  Pool::Frame arena_;
  std::byte* local_ = nullptr;
  int run_ = 0;  // for profiles
  std::mutex noting_;
};

int64_t* keep(void* owner, int64_t count) {
  auto& numbers = *static_cast<std::vector<int64_t>*>(owner);
  try {
    numbers.resize(size_t(count));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return numbers.data();
}

}  // namespace

int64_t with_held(const RunState& state, int64_t bytes) {
  if (state.limit_bytes == INT64_MAX) return bytes;
  std::vector<const std::byte*> seen;
  for (const RunState* run = &state; run != nullptr; run = run->outer) {
    bytes += run->aside_bytes;
    for (const Slot& slot : run->slots) {
      const std::byte* block = slot.block.get();
      if (block == nullptr || std::find(seen.begin(), seen.end(), block) != seen.end()) continue;
      seen.push_back(block);
      bytes += slot.view.count() * size_of(slot.view.dtype);
    }
  }
  return bytes;
}

namespace {

// The guards that do not rest on names which steps of the segment resolve.
std::vector<int32_t> early_guards(const SegmentSpec& spec) {
  std::vector<bool> is_late(spec.sizes.size());
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    const SizeOp& op = spec.sizes[i];
    if (op.kind == SizeKind::name) {
      for (const ResolvedName& r : spec.resolved) is_late[i] = is_late[i] || r.name == op.a;
    } else if (op.kind != SizeKind::number) {
      is_late[i] = is_late[size_t(op.a)] || is_late[size_t(op.b)];
    }
  }
  std::vector<int32_t> found;
  for (size_t i = 0; i < spec.guards.size(); ++i)
    if (!is_late[size_t(spec.guards[i].left)] && !is_late[size_t(spec.guards[i].right)])
      found.push_back(int32_t(i));
  return found;
}

}  // namespace

Segment::Segment(SegmentSpec spec)
    : spec_(std::move(spec)),
      early_guards_(spec_.resolved.empty() ? std::vector<int32_t>() : early_guards(spec_)),
      wiring_(std::make_unique<Wiring>(spec_)),
      choice_(std::make_unique<Choice>()) {}
Segment::~Segment() = default;

Outcome Segment::run(RunState& state) const {
  FoundBySteps found;
  Outcome outcome = resolve(state, found);
  outcome.segment = spec_.number;
  if (outcome.fault != Fault::none) return outcome;
  std::vector<Slot> grown = plan_growths(spec_, state);
  const std::shared_ptr<const Binding> binding = binding_for(state, outcome);
  if (binding == nullptr) return outcome;
  return Runner(*binding, state, spec_.number, std::move(grown), std::move(found)).run();
}

// Asks the rows whose output sizes depend on data; the names that these give become known. They
// read data as all kernels do: not before the guards on sizes that are known by then hold.
Outcome Segment::resolve(RunState& state, FoundBySteps& found) const {
  Outcome outcome;
  if (spec_.resolved.empty()) return outcome;
  for (const ResolvedName& r : spec_.resolved) state.names[size_t(r.name)] = 0;
  std::vector<int64_t> registers(spec_.sizes.size());
  (void)evaluate(spec_.sizes, state.names.data(), registers.data());
  for (const int32_t i : early_guards_) {
    if (holds(spec_.guards[size_t(i)], registers.data())) continue;
    outcome.fault = Fault::guard;
    outcome.index = i;
    return outcome;
  }
  std::vector<View> views;
  (void)make_views(spec_, state, registers.data(), views);
  int asked = -1;
  std::vector<View> out;
  for (const ResolvedName& r : spec_.resolved) {
    const StepSpec& step = spec_.steps[size_t(r.step)];
    if (r.step != asked) {
      asked = r.step;
      std::vector<View> in;
      std::vector<const void*> at;
      std::vector<int64_t> ints;
      for (const int32_t id : step.inputs) {
        in.push_back(id < 0 ? View() : views[size_t(id)]);
        if (id < 0) {
          at.push_back(nullptr);
        } else {
          const ValueSpec& value = spec_.values[size_t(id)];
          at.push_back(value.storage == Storage::constant ? value.data
                                                          : state.slots[size_t(value.at)].data);
        }
      }
      out.clear();
      for (const int32_t id : step.outputs) out.push_back(views[size_t(id)]);
      for (const int32_t reg : step.ints) ints.push_back(registers[size_t(reg)]);
      const Call call = call_of(in, out, ints, step.floats);
      const ResolveCache kept{nullptr, 0, &found.emplace_back(r.step, std::vector<int64_t>()).second,
                       keep};
      const Data data{at.data(), nullptr, nullptr, nullptr, 0, state.texts->room(), &kept};
      outcome.status = step.kernel->resolve(call, data, out.data());
      if (!outcome.status.ok()) {
        outcome.fault = Fault::step;
        outcome.index = r.step;
        return outcome;
      }
    }
    state.names[size_t(r.name)] = out[size_t(r.output)].dims[r.axis];
  }
  return outcome;
}

std::optional<MemoryReport> Segment::memory(RunState state) const {
  std::vector<int64_t> registers(spec_.sizes.size());
  (void)evaluate(spec_.sizes, state.names.data(), registers.data());
  for (const ValueSpec& value : spec_.values) {
    if (value.storage != Storage::slot) continue;
    View& view = state.slots[size_t(value.at)].view;
    view.dtype = value.dtype;
    view.rank = int(value.dims.size());
    for (int i = 0; i < view.rank; ++i) view.dims[i] = registers[size_t(value.dims[size_t(i)])];
    view.pack();
  }
  (void)plan_growths(spec_, state);
  Outcome outcome;
  MemoryReport report;
  std::lock_guard lock(choosing_);
  const auto binding = make_binding(spec_, *wiring_, state, *choice_, outcome, &report.values);
  if (binding == nullptr) return std::nullopt;
  for (size_t i = 0; i < binding->steps.size(); ++i) {
    const BoundStep& step = binding->steps[i];
    report.order.push_back(step.number);
    if (const int64_t bytes = align_up(step.plan.scratch_bytes); bytes > 0)
      report.scratch.push_back({step.number, bytes, step.scratch, int32_t(i), int32_t(i)});
  }
  for (const Export& made : binding->exports)
    if (made.bytes > 0) report.exported.emplace_back(made.slot, made.bytes);
  report.arena_bytes = binding->arena_bytes;
  report.least_bytes = binding->peak.bytes;
  report.local_bytes = binding->local_bytes;
  return report;
}

std::shared_ptr<const Binding> Segment::recent_for(const RunState& state) const {
  std::lock_guard lock(mutex_);
  for (size_t i = recent_.size(); i-- > 0;) {
    if (!is_for(*recent_[i], spec_.names, state)) continue;
    std::shared_ptr<const Binding> found = recent_[i];
    if (i + 1 != recent_.size()) {
      recent_.erase(recent_.begin() + long(i));
      recent_.push_back(found);
    }
    return found;
  }
  return nullptr;
}

std::shared_ptr<const Binding> Segment::binding_for(RunState& state, Outcome& outcome) const {
  if (auto found = recent_for(state)) return found;
  std::lock_guard choosing(choosing_);
  if (auto found = recent_for(state)) return found;  // another run made it meanwhile
  std::shared_ptr<const Binding> made = make_binding(spec_, *wiring_, state, *choice_, outcome);
  if (made == nullptr) return nullptr;
  std::lock_guard lock(mutex_);
  if (recent_.size() == kKeptBindings) recent_.erase(recent_.begin());
  recent_.push_back(made);
  return made;
}

}  // namespace sdx
