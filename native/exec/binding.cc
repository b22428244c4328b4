#include "exec/binding.h"

#include <algorithm>
#include <unordered_map>

#include "exec/grow.h"
#include "exec/prepare.h"

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

// Elements from one row of the last axis to the next, of a view whose other axes are packed.
int64_t pitch_of(const View& view) { return view.strides[view.rank - 2]; }

void pack_rows(View& view, int64_t pitch) {
  view.strides[view.rank - 1] = 1;
  for (int i = view.rank - 2; i >= 0; --i, pitch *= view.dims[i + 1]) view.strides[i] = pitch;
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
    case Storage::part: return pack_rows(view, pitch_of(views[size_t(spec.at)]));
    default: return view.pack();
  }
}

int64_t bytes_of(const View& view) { return view.count() * size_of(view.dtype); }

// Builds one binding; its members are what several steps of that need.
class Binder {
 public:
  Binder(const SegmentSpec& spec, const Wiring& wiring, const std::vector<int64_t>& registers,
         std::vector<View> views, int threads)
      : spec_(spec), wiring_(wiring), registers_(registers), views_(std::move(views)) {
    need_.costs.threads = threads;
  }

  bool build(Binding& binding, Choice& choice, Outcome& outcome) {
    for (size_t i = 0; i < spec_.steps.size(); ++i) {
      if (Status status = plan(int32_t(i), binding); !status.ok()) {
        outcome.fault = Fault::step;
        outcome.index = int(i);
        outcome.status = status;
        return false;
      }
    }
    if (!measure(binding)) {
      outcome.fault = Fault::memory;
      return false;
    }
    frame_ = make_frame(wiring_, need_, spec_.effort, choice);
    binding.arena_bytes = frame_.bytes;
    binding.peak = frame_.peak;
    locate(binding);
    return true;
  }

  std::vector<Span> spans() const { return spans_of(wiring_, need_, frame_); }

 private:
  Status plan(int32_t number, Binding& binding) {
    const StepSpec& step = spec_.steps[size_t(number)];
    gather(step.inputs, in_);
    gather(step.outputs, out_);
    ints_.clear();
    for (const int32_t r : step.ints) ints_.push_back(registers_[size_t(r)]);
    const Call call = call_of(in_, out_, ints_, step.floats);
    BoundStep& bound = binding.steps.emplace_back();
    bound.number = number;
    bound.n_in = int32_t(in_.size());
    bound.n_out = int32_t(out_.size());
    Status status = prepare(*step.kernel, call, binding.memory, bound.plan);
    bound.plan.local_bytes = align_up(bound.plan.local_bytes);
    binding.local_bytes = std::max(binding.local_bytes, bound.plan.local_bytes);
    return status;
  }

  void gather(const std::vector<int32_t>& ids, std::vector<View>& into) {
    into.clear();
    for (const int32_t id : ids) into.push_back(id < 0 ? View() : views_[size_t(id)]);
  }

  // What the arena must hold. False where no memory does.
  bool measure(const Binding& binding) {
    need_.bytes.assign(spec_.values.size(), 0);
    double total = 0;
    for (size_t i = 0; i < spec_.values.size(); ++i) {
      if (spec_.values[i].storage != Storage::arena) continue;
      need_.bytes[i] = align_up(bytes_of(views_[i]));
      total += double(need_.bytes[i]);
    }
    for (size_t i = 0; i < spec_.steps.size(); ++i) {
      need_.scratch.push_back(align_up(binding.steps[i].plan.scratch_bytes));
      total += double(need_.scratch.back());
      const StepSpec& step = spec_.steps[i];
      for (const auto& [from, to] : step.shares)
        if (may_share(step, from, to))
          need_.shares.push_back(
              {int32_t(i), root(step.inputs[size_t(from)]), root(step.outputs[size_t(to)])});
      if (step.joins) need_.joins.push_back(parts(step));
      for (const int32_t id : step.outputs) lend(id, int32_t(i));
    }
    if (spec_.branches) weigh(binding);
    return total <= double(kMostBytes);
  }

  // What steps cost. Those that can use most of the threads, and take long enough for it, are
  // alone.
  void weigh(const Binding& binding) {
    constexpr int64_t kWorthSplitting = 20'000;  // ns for each thread
    const int64_t threads = need_.costs.threads;
    for (const BoundStep& step : binding.steps) {
      int64_t work = 0, used = 1, bytes = need_.scratch[size_t(step.number)];
      for (int p = 0; p < step.plan.n_phases; ++p) {
        const Phase& phase = step.plan.phases[p];
        const double whole = double(phase.count) * double(phase.work);
        work += int64_t(std::min(whole * double(phase.rounds), 1e15));
        used = std::max(used, std::min(threads, phase.count));
      }
      const bool is_shared_out = 2 * used > threads && work > kWorthSplitting * threads;
      const StepSpec& spec = spec_.steps[size_t(step.number)];
      for (const int32_t id : spec.outputs)
        if (id >= 0) bytes += bytes_of(views_[size_t(id)]);
      need_.costs.bytes.push_back(bytes);
      need_.costs.work.push_back(is_shared_out || has_texts(spec) ? Costs::kAlone : work);
    }
  }

  // Texts are made in a room that only one thread may fill.
  bool has_texts(const StepSpec& step) const {
    const auto is_text = [&](int32_t id) {
      return id >= 0 && spec_.values[size_t(id)].dtype == DType::string;
    };
    return std::any_of(step.inputs.begin(), step.inputs.end(), is_text) ||
           std::any_of(step.outputs.begin(), step.outputs.end(), is_text);
  }

  // The block of a value that leaves serves others until a step writes to it, unless it is that of
  // an input.
  void lend(int32_t id, int32_t step) {
    const auto base = size_t(wiring_.bases[size_t(id)]);
    const ValueSpec& value = spec_.values[base];
    if (value.storage != Storage::exported || !value.numbers.empty()) return;
    const auto [found, is_new] = lender_of_.emplace(base, need_.lenders.size());
    if (is_new) need_.lenders.push_back({value.at, bytes_of(views_[base]) / kAlign * kAlign, {}});
    need_.lenders[found->second].steps.push_back(step);
  }

  int32_t root(int32_t id) const { return id < 0 ? -1 : wiring_.roots[size_t(id)]; }

  // Whether a value is all of the arena value that it views, without gaps.
  bool is_whole(int32_t id) const {
    return root(id) >= 0 && views_[size_t(id)].is_contiguous() &&
           bytes_of(views_[size_t(id)]) == bytes_of(views_[size_t(root(id))]);
  }

  // Whether each element of an output is made of the same element of an input, and no other of it.
  bool may_share(const StepSpec& step, int32_t input, int32_t output) const {
    const int32_t from = step.inputs[size_t(input)], to = step.outputs[size_t(output)];
    if (root(from) < 0 || !is_whole(to) || !lies_as(from, to, step.permutation)) return false;
    // Other inputs that show the same bytes must be read in the same way.
    for (int32_t i = 0; i < int32_t(step.inputs.size()); ++i) {
      const int32_t id = step.inputs[size_t(i)];
      if (i == input || id < 0 || root(id) != root(from)) continue;
      const std::pair share(i, output);
      const bool may =
          std::find(step.shares.begin(), step.shares.end(), share) != step.shares.end();
      if (!may || !lies_as(id, to, step.permutation)) return false;
    }
    return true;
  }

  // Whether a value is all of the arena value that it views, its elements in the order in which
  // those of an output lie.
  bool lies_as(int32_t from, int32_t to, const std::vector<int32_t>& permutation) const {
    const View &in = views_[size_t(from)], &out = views_[size_t(to)];
    if (bytes_of(in) != bytes_of(out) || in.count() != out.count()) return false;
    if (permutation.empty()) return is_whole(from);
    for (int i = 0; i < out.rank; ++i) {
      const int32_t axis = permutation[size_t(i)];
      if (in.dims[axis] != out.dims[i]) return false;
      if (out.dims[i] != 1 && in.strides[axis] != out.strides[i]) return false;
    }
    return bytes_of(in) == bytes_of(views_[size_t(root(from))]);
  }

  // The inputs of a step that joins which may lie in its output, unless that has gaps itself.
  std::vector<Part> parts(const StepSpec& step) const {
    std::vector<Part> found;
    const int32_t whole = step.outputs[0];
    const View& view = views_[size_t(whole)];
    const int axis = int(registers_[size_t(step.ints[0])]);
    if (root(whole) != whole || view.count(0, axis) != 1) return found;
    int64_t offset = 0;
    for (const int32_t id : step.inputs) {
      if (is_whole(id) && root(id) != whole && need_.bytes[size_t(root(id))] > 0)
        found.push_back({root(id), whole, offset});
      offset += bytes_of(views_[size_t(id)]);
    }
    return found;
  }

  // Whether all that lies in the arena lies inside it.
  [[maybe_unused]] bool is_inside() const {
    for (size_t i = 0; i < spec_.values.size(); ++i) {
      const int64_t bytes = bytes_of(views_[i]);
      if (spec_.values[i].storage != Storage::arena || bytes == 0 || frame_.lent[i] >= 0) continue;
      if (frame_.offsets[i] < 0 || frame_.offsets[i] + bytes > frame_.bytes) return false;
    }
    for (size_t i = 0; i < need_.scratch.size(); ++i) {
      const int64_t end = frame_.scratch[i] + need_.scratch[i];
      if (need_.scratch[i] > 0 && (frame_.scratch[i] < 0 || end > frame_.bytes)) return false;
    }
    return true;
  }

  // Steps in their order, with places for their operands and scratch.
  void locate(Binding& binding) {
    SDX_ASSERT(is_inside());
    std::vector<BoundStep> steps;
    steps.reserve(binding.steps.size());
    binding.ends = frame_.rounds.end;
    for (size_t at = 0; at < frame_.order.size(); ++at) {
      const int32_t number = frame_.order[at];
      const StepSpec& spec = spec_.steps[size_t(number)];
      BoundStep& step = steps.emplace_back(binding.steps[size_t(number)]);
      step.lane = frame_.rounds.lane[at];
      step.scratch = frame_.scratch[size_t(number)];
      step.first_place = int32_t(binding.places.size());
      for (const int32_t id : spec.inputs) binding.places.push_back(place_of(id));
      for (const int32_t id : spec.outputs) binding.places.push_back(place_of(id));
    }
    binding.steps = std::move(steps);
    for (size_t i = 0; i < spec_.values.size(); ++i)
      if (spec_.values[i].storage == Storage::exported)
        export_value(spec_.values[i], views_[i], binding);
    for (const Alias& alias : spec_.aliases)
      binding.exports.push_back(
          {alias.slot, place_of(alias.value).base, views_[size_t(alias.value)], 0});
  }

  void export_value(const ValueSpec& value, const View& view, Binding& binding) {
    Export made{value.at, value.at, view, bytes_of(view)};
    if (!value.numbers.empty()) {
      View whole = view;
      made.rows = view.dims[value.numbers[0]];
      made.room = whole.dims[value.numbers[0]] = registers_[size_t(value.numbers[1])];
      made.bytes = bytes_of(whole);
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
      case Storage::arena:
        return {frame_.lent[size_t(id)] >= 0 ? frame_.lent[size_t(id)] : Place::kArena,
                frame_.offsets[size_t(id)]};
      case Storage::sliced: {
        Place place = place_of(value.at);
        const View& from = views_[size_t(value.at)];
        for (int i = 0; i < from.rank; ++i)
          place.offset +=
              registers_[size_t(value.numbers[size_t(i)])] * from.strides[i] * size_of(from.dtype);
        return place;
      }
      case Storage::part: {
        Place place = place_of(value.at);
        place.offset += registers_[size_t(value.numbers[0])] * size_of(value.dtype);
        return place;
      }
      default: return place_of(value.at);
    }
  }

  const SegmentSpec& spec_;
  const Wiring& wiring_;
  const std::vector<int64_t>& registers_;
  std::vector<View> views_;
  Need need_;
  std::unordered_map<size_t, size_t> lender_of_;  // by value that leaves
  Frame frame_;
  std::vector<View> in_, out_;
  std::vector<int64_t> ints_;
};

}  // namespace

namespace {

// Whether a value is a part, or one in another shape.
bool is_part(const SegmentSpec& spec, int32_t id) {
  while (spec.values[size_t(id)].storage == Storage::reshaped) id = spec.values[size_t(id)].at;
  return spec.values[size_t(id)].storage == Storage::part;
}

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
    if (!set_dims(value, registers, view))
      fits = false;
    else if (value.storage != Storage::part)
      set_strides(value, views, registers, view);
    if (value.storage == Storage::constant) view.data = value.data;
  }
  if (!fits) return false;
  for (size_t i = spec.values.size(); i-- > 0;)  // what parts lie in is listed behind them
    if (spec.values[i].storage == Storage::part)
      set_strides(spec.values[i], views, registers, views[i]);
  for (size_t i = 0; i < spec.values.size(); ++i)  // and their rows may be counted otherwise
    if (spec.values[i].storage == Storage::reshaped && is_part(spec, spec.values[i].at))
      pack_rows(views[i], pitch_of(views[size_t(spec.values[i].at)]));
  return true;
}

std::shared_ptr<const Binding> make_binding(const SegmentSpec& spec, const Wiring& wiring,
                                            const RunState& state, Choice& choice, Outcome& outcome,
                                            std::vector<Span>* spans) {
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
  Binder binder(spec, wiring, registers, std::move(views), state.threads.threads);
  if (!binder.build(*binding, choice, outcome)) return nullptr;
  if (spans != nullptr) *spans = binder.spans();
  return binding;
}

}  // namespace sdx
