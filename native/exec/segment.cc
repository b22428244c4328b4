#include "exec/segment.h"

#include <algorithm>
#include <mutex>
#include <new>

#include "exec/cache_growth.h"
#include "exec/prepare.h"
#include "exec/runner.h"

namespace sdx {
namespace {

// Enough for alternating prefill and decode sizes or a few batch sizes; each may hold large tables.
constexpr size_t kMaxSpecializations = 8;

bool is_for(const Specialization& specialization, const std::vector<int32_t>& names,
            const RunState& state) {
  for (size_t i = 0; i < names.size(); ++i)
    if (specialization.key[i] != state.dim_sizes[size_t(names[i])]) return false;
  return true;
}

// ResolveCache::resize of a std::vector.
int64_t* resize_cache(void* owner, int64_t count) {
  auto& numbers = *static_cast<std::vector<int64_t>*>(owner);
  try {
    numbers.resize(size_t(count));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return numbers.data();
}

// The guards that depend on no name that a step of the segment resolves from data.
std::vector<int32_t> early_guards(const SegmentSpec& spec) {
  std::vector<bool> is_late(spec.sizes.size());  // by register
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    const SizeOp& op = spec.sizes[i];
    if (op.kind == SizeKind::name) {
      for (const ResolvedName& r : spec.resolved) is_late[i] = is_late[i] || r.name == op.a;
    } else if (op.kind != SizeKind::number) {
      is_late[i] = is_late[size_t(op.a)] || is_late[size_t(op.b)];
    }
  }
  std::vector<int32_t> early;
  for (size_t i = 0; i < spec.guards.size(); ++i)
    if (!is_late[size_t(spec.guards[i].left)] && !is_late[size_t(spec.guards[i].right)])
      early.push_back(int32_t(i));
  return early;
}

// Calls a kernel's `resolve`, which sets the dims of `outputs` from the data of its inputs. check.h
// has proven that these are in slots or constants: no step has run yet.
Status resolve_step(const SegmentSpec& spec, int32_t number, const std::vector<View>& views,
                    const std::vector<int64_t>& registers, const RunState& state,
                    ResolveCaches& caches, std::vector<View>& outputs) {
  const StepSpec& step = spec.steps[size_t(number)];
  std::vector<View> inputs;
  std::vector<const void*> at;
  std::vector<int64_t> ints;
  for (const int32_t id : step.inputs) {
    inputs.push_back(id < 0 ? View() : views[size_t(id)]);
    if (id < 0) {
      at.push_back(nullptr);
      continue;
    }
    const ValueSpec& value = spec.values[size_t(id)];
    at.push_back(value.storage == Storage::constant ? value.data
                                                    : state.slots[size_t(value.at)].data);
  }
  outputs.clear();
  for (const int32_t id : step.outputs) outputs.push_back(views[size_t(id)]);
  for (const int32_t reg : step.ints) ints.push_back(registers[size_t(reg)]);
  const Call call = call_of(inputs, outputs, ints, step.floats);
  const ResolveCache cache{nullptr, 0, &caches.emplace_back(number, std::vector<int64_t>()).second,
                           resize_cache};
  const Data data{at.data(), nullptr, nullptr, nullptr, 0, state.strings->allocator(), &cache};
  return step.kernel->resolve(call, data, outputs.data());
}

}  // namespace

Segment::Segment(SegmentSpec spec)
    : spec_(std::move(spec)),
      early_guards_(spec_.resolved.empty() ? std::vector<int32_t>() : early_guards(spec_)),
      dependencies_(std::make_unique<Dependencies>(spec_)),
      choice_(std::make_unique<PlanChoice>()) {}
Segment::~Segment() = default;

Outcome Segment::run(RunState& state) const {
  ResolveCaches caches;
  Outcome outcome = resolve(state, caches);
  outcome.segment = spec_.number;
  if (outcome.fault != Fault::none) return outcome;
  std::vector<Slot> grown = plan_growths(spec_, state);
  const std::shared_ptr<const Specialization> specialization = specialization_for(state, outcome);
  if (specialization == nullptr) return outcome;
  return Runner(*specialization, state, spec_.number, std::move(grown), std::move(caches)).run();
}

// Resolves the named dims that depend on data. Like all kernels, `resolve` may read data only after
// the guards on the sizes that are known by then hold.
Outcome Segment::resolve(RunState& state, ResolveCaches& caches) const {
  Outcome outcome;
  if (spec_.resolved.empty()) return outcome;
  // The names get a placeholder; registers that depend on them are not read before they are set.
  for (const ResolvedName& r : spec_.resolved) state.dim_sizes[size_t(r.name)] = 0;
  std::vector<int64_t> registers(spec_.sizes.size());
  (void)evaluate(spec_.sizes, state.dim_sizes.data(), registers.data());
  for (const int32_t i : early_guards_) {
    if (holds(spec_.guards[size_t(i)], registers.data())) continue;
    outcome.fault = Fault::guard;
    outcome.index = i;
    return outcome;
  }
  std::vector<View> views, outputs;
  (void)make_views(spec_, state, registers.data(), views);
  int resolved_step = -1;  // names of one step are listed together
  for (const ResolvedName& r : spec_.resolved) {
    if (r.step != resolved_step) {
      resolved_step = r.step;
      outcome.status = resolve_step(spec_, r.step, views, registers, state, caches, outputs);
      if (!outcome.status.ok()) {
        outcome.fault = Fault::step;
        outcome.index = r.step;
        return outcome;
      }
    }
    state.dim_sizes[size_t(r.name)] = outputs[size_t(r.output)].dims[r.axis];
  }
  return outcome;
}

std::optional<MemoryReport> Segment::memory(RunState state) const {
  std::vector<int64_t> registers(spec_.sizes.size());
  (void)evaluate(spec_.sizes, state.dim_sizes.data(), registers.data());
  for (const ValueSpec& value : spec_.values) {
    if (value.storage != Storage::slot) continue;
    View& view = state.slots[size_t(value.at)].view;
    view.dtype = value.dtype;
    view.rank = int(value.dims.size());
    for (int i = 0; i < view.rank; ++i) view.dims[i] = registers[size_t(value.dims[size_t(i)])];
    view.set_contiguous_strides();
  }
  (void)plan_growths(spec_, state);
  Outcome outcome;
  MemoryReport report;
  std::lock_guard lock(specializing_);
  const auto made = specialize(spec_, *dependencies_, state, *choice_, outcome, &report.values);
  if (made == nullptr) return std::nullopt;
  for (size_t i = 0; i < made->steps.size(); ++i) {
    const PlannedStep& step = made->steps[i];
    report.order.push_back(step.number);
    if (const int64_t bytes = align_up(step.plan.scratch_bytes); bytes > 0)
      report.scratch.push_back({step.number, bytes, step.scratch.offset, int32_t(i), int32_t(i), -1,
                                step.scratch.own_block()});
  }
  for (const ExportedValue& exported : made->exports)
    if (exported.bytes > 0) report.exported.emplace_back(exported.slot, exported.bytes);
  report.arena_bytes = made->arena_bytes;
  report.lower_bound = made->peak.bytes;
  report.local_bytes = made->local_bytes;
  return report;
}

// The cached specialization for these names, which becomes the most recently used; null if none.
std::shared_ptr<const Specialization> Segment::cached_for(const RunState& state) const {
  std::lock_guard lock(recent_mutex_);
  for (size_t i = recent_.size(); i-- > 0;) {
    if (!is_for(*recent_[i], spec_.names, state)) continue;
    std::shared_ptr<const Specialization> cached = recent_[i];
    if (i + 1 != recent_.size()) {
      recent_.erase(recent_.begin() + long(i));
      recent_.push_back(cached);
    }
    return cached;
  }
  return nullptr;
}

std::shared_ptr<const Specialization> Segment::specialization_for(RunState& state,
                                                                  Outcome& outcome) const {
  if (auto cached = cached_for(state)) return cached;
  std::lock_guard specializing(specializing_);
  if (auto cached = cached_for(state)) return cached;  // another run has made it meanwhile
  std::shared_ptr<const Specialization> made =
      specialize(spec_, *dependencies_, state, *choice_, outcome);
  if (made == nullptr) return nullptr;
  std::lock_guard lock(recent_mutex_);
  if (recent_.size() == kMaxSpecializations) recent_.erase(recent_.begin());
  recent_.push_back(made);
  return made;
}

}  // namespace sdx
