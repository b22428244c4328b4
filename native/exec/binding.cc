#include "exec/binding.h"

#include <algorithm>

#include "exec/grow.h"
#include "exec/place.h"

namespace sdx {
namespace {

constexpr int64_t kMostBytes = INT64_MAX / 4;

// Dims from registers. False where one is negative or all together do not fit memory.
bool set_dims(const ValueSpec& spec, const int64_t* registers, View& view) {
  view.dtype = spec.dtype;
  view.rank = int(spec.dims.size());
  int64_t bytes = size_of(spec.dtype);
  bool fits = true;
  for (int i = 0; i < view.rank; ++i) {
    const int64_t d = registers[spec.dims[size_t(i)]];
    view.dims[i] = d;
    if (d < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(d, 1), &bytes)) fits = false;
  }
  return fits && bytes <= kMostBytes;
}

void permute(const View& from, const std::vector<int64_t>& axes, View& to) {
  for (int i = 0; i < to.rank; ++i) to.strides[i] = from.strides[axes[size_t(i)]];
}

void expand(const View& from, View& to) {
  const int more = to.rank - from.rank;
  for (int i = 0; i < to.rank; ++i) {
    const bool repeats = i < more || (from.dims[i - more] == 1 && to.dims[i] != 1);
    to.strides[i] = repeats ? 0 : from.strides[i - more];
  }
}

void scale_steps(const View& from, const std::vector<int64_t>& numbers, View& to) {
  for (int i = 0; i < to.rank; ++i) to.strides[i] = from.strides[i] * numbers[size_t(to.rank + i)];
}

void set_strides(const ValueSpec& spec, const std::vector<View>& views, const int64_t* registers,
                 View& view) {
  switch (spec.storage) {
    case Storage::exported:
      if (spec.numbers.empty()) return view.pack();
      return pack_with_room(view, int(spec.numbers[0]), registers[spec.numbers[1]]);
    case Storage::permuted: return permute(views[size_t(spec.at)], spec.numbers, view);
    case Storage::sliced: return scale_steps(views[size_t(spec.at)], spec.numbers, view);
    case Storage::expanded: return expand(views[size_t(spec.at)], view);
    default: return view.pack();
  }
}

// Builds one binding; its members are what several steps of that need.
class Binder {
 public:
  Binder(const SegmentSpec& spec, const std::vector<int64_t>& registers, std::vector<View> views)
      : spec_(spec), registers_(registers), views_(std::move(views)) {}

  bool build(Binding& binding, Outcome& outcome) {
    for (size_t i = 0; i < spec_.steps.size(); ++i) {
      if (Status status = plan(spec_.steps[i], binding); !status.ok()) {
        outcome.fault = Fault::step;
        outcome.index = int(i);
        outcome.status = status;
        return false;
      }
    }
    if (!lay_out(binding)) {
      outcome.fault = Fault::memory;
      return false;
    }
    locate(binding);
    return true;
  }

 private:
  Status plan(const StepSpec& step, Binding& binding) {
    gather(step.inputs, in_);
    gather(step.outputs, out_);
    ints_.clear();
    for (const int32_t r : step.ints) ints_.push_back(registers_[size_t(r)]);
    const Call call{in_.data(),   int(in_.size()),   out_.data(),        int(out_.size()),
                    ints_.data(), int(ints_.size()), step.floats.data(), int(step.floats.size())};
    BoundStep& bound = binding.steps.emplace_back();
    bound.n_in = int32_t(in_.size());
    bound.n_out = int32_t(out_.size());
    bound.plan.owner = &binding.memory;
    bound.plan.allocate = [](void* owner, size_t bytes) {
      return static_cast<Bump*>(owner)->allocate(bytes);
    };
    Status status = step.kernel->prepare(call, bound.plan);
    bound.plan.local_bytes = (bound.plan.local_bytes + kAlign - 1) / kAlign * kAlign;
    binding.local_bytes = std::max(binding.local_bytes, bound.plan.local_bytes);
    return status;
  }

  void gather(const std::vector<int32_t>& ids, std::vector<View>& into) {
    into.clear();
    for (const int32_t id : ids) into.push_back(id < 0 ? View() : views_[size_t(id)]);
  }

  // Arena values and the steps' scratch share one placement. False where no memory holds them.
  bool lay_out(Binding& binding) {
    std::vector<Life> lives;
    std::vector<int32_t> whose;  // values, then steps
    const auto n_values = int32_t(spec_.values.size());
    for (int32_t i = 0; i < n_values; ++i) {
      const ValueSpec& value = spec_.values[size_t(i)];
      if (value.storage != Storage::arena) continue;
      const View& view = views_[size_t(i)];
      lives.push_back({view.count() * size_of(view.dtype), value.start, value.end});
      whose.push_back(i);
    }
    for (size_t i = 0; i < binding.steps.size(); ++i) {
      const int64_t bytes = binding.steps[i].plan.scratch_bytes;
      if (bytes == 0) continue;
      lives.push_back({bytes, int32_t(i), int32_t(i)});
      whose.push_back(n_values + int32_t(i));
    }
    double total = 0;
    for (const Life& life : lives) total += double(life.size);
    if (total > double(kMostBytes)) return false;
    std::vector<int64_t> offsets;
    binding.arena_bytes = place(lives, offsets);
    arena_.assign(size_t(n_values), 0);
    for (size_t i = 0; i < whose.size(); ++i) {
      if (whose[i] < n_values)
        arena_[size_t(whose[i])] = offsets[i];
      else
        binding.steps[size_t(whose[i] - n_values)].scratch = offsets[i];
    }
    return true;
  }

  void locate(Binding& binding) {
    for (size_t i = 0; i < spec_.steps.size(); ++i) {
      binding.steps[i].first_place = int32_t(binding.places.size());
      for (const int32_t id : spec_.steps[i].inputs) binding.places.push_back(place_of(id));
      for (const int32_t id : spec_.steps[i].outputs) binding.places.push_back(place_of(id));
    }
    for (size_t i = 0; i < spec_.values.size(); ++i)
      if (spec_.values[i].storage == Storage::exported)
        export_value(spec_.values[i], views_[i], binding);
    for (const Alias& alias : spec_.aliases)
      binding.exports.push_back(
          {alias.slot, place_of(alias.value).base, views_[size_t(alias.value)], 0});
  }

  void export_value(const ValueSpec& value, const View& view, Binding& binding) {
    Export made{value.at, value.at, view, view.count() * size_of(view.dtype)};
    if (!value.numbers.empty()) {
      View whole = view;
      made.rows = view.dims[value.numbers[0]];
      made.room = whole.dims[value.numbers[0]] = registers_[size_t(value.numbers[1])];
      made.bytes = whole.count() * size_of(view.dtype);
      for (size_t g = 0; g < spec_.growths.size(); ++g)
        if (spec_.growths[g].to == value.at) made.growth = int32_t(g);
    }
    binding.exports.push_back(made);
  }

  Place place_of(int32_t id) const {
    if (id < 0) return {};
    const ValueSpec& value = spec_.values[size_t(id)];
    switch (value.storage) {
      case Storage::slot:
      case Storage::exported: return {value.at, 0};
      case Storage::constant:
        return {Place::kFixed, int64_t(reinterpret_cast<intptr_t>(value.data))};
      case Storage::arena: return {Place::kArena, arena_[size_t(id)]};
      case Storage::sliced: {
        Place place = place_of(value.at);
        const View& from = views_[size_t(value.at)];
        for (int i = 0; i < from.rank; ++i)
          place.offset +=
              registers_[size_t(value.numbers[size_t(i)])] * from.strides[i] * size_of(from.dtype);
        return place;
      }
      default: return place_of(value.at);
    }
  }

  const SegmentSpec& spec_;
  const std::vector<int64_t>& registers_;
  std::vector<View> views_;
  std::vector<int64_t> arena_;  // offsets, by value
  std::vector<View> in_, out_;
  std::vector<int64_t> ints_;
};

}  // namespace

bool make_views(const SegmentSpec& spec, const RunState& state, const int64_t* registers,
                std::vector<View>& views) {
  views.assign(spec.values.size(), View());
  bool fits = true;
  for (size_t i = 0; i < spec.values.size(); ++i) {
    const ValueSpec& value = spec.values[i];
    View& view = views[i];
    if (value.storage == Storage::slot) {
      view = state.slots[size_t(value.at)].view;
      continue;
    }
    fits = set_dims(value, registers, view) && fits;
    set_strides(value, views, registers, view);
    if (value.storage == Storage::constant) view.data = value.data;
  }
  return fits;
}

std::shared_ptr<const Binding> make_binding(const SegmentSpec& spec, const RunState& state,
                                            Outcome& outcome) {
  std::vector<int64_t> registers(spec.sizes.size());
  const bool fits = evaluate(spec.sizes, state.names.data(), registers.data());
  for (size_t i = 0; i < spec.guards.size(); ++i) {
    if (holds(spec.guards[i], registers.data())) continue;
    outcome.fault = Fault::guard;
    outcome.index = int(i);
    return nullptr;
  }
  std::vector<View> views;
  if (!fits || !make_views(spec, state, registers.data(), views)) {
    outcome.fault = Fault::size;
    return nullptr;
  }
  auto binding = std::make_shared<Binding>();
  for (const int32_t name : spec.names) binding->key.push_back(state.names[size_t(name)]);
  if (!Binder(spec, registers, std::move(views)).build(*binding, outcome)) return nullptr;
  return binding;
}

}  // namespace sdx
