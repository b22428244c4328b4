#include "exec/specialization.h"

#include <algorithm>
#include <unordered_map>

#include "exec/prepare.h"

namespace sdx {
namespace {

// ns of work per thread from which a step is better split over threads than run next to others.
constexpr int64_t kWorthSplitting = 20'000;

bool is_earlier(const LastUse& a, const LastUse& b) { return a.position < b.position; }

// Builds one specialization: plans every kernel, measures what memory that needs, makes a memory
// plan, and turns offsets into operand locations.
class Specializer {
 public:
  Specializer(const SegmentSpec& spec, const Dependencies& dependencies,
              const std::vector<int64_t>& registers, std::vector<View> views, int threads)
      : spec_(spec), dependencies_(dependencies), registers_(registers), views_(std::move(views)) {
    needs_.costs.threads = threads;
    needs_.consumes_inputs = spec.consumes_inputs;
  }

  bool build(Specialization& made, PlanChoice& choice, Outcome& outcome) {
    for (size_t i = 0; i < spec_.steps.size(); ++i) {
      if (Status status = plan_step(int32_t(i), made); !status.ok()) {
        outcome.fault = Fault::step;
        outcome.index = int(i);
        outcome.status = status;
        return false;
      }
    }
    store_in_outputs();
    if (!measure(made)) {
      outcome.fault = Fault::memory;
      return false;
    }
    plan_ = make_memory_plan(dependencies_, needs_, spec_.effort, choice);
    for (size_t i = 0; i < stored_in_.size(); ++i)
      if (stored_in_[i] >= 0) plan_.values[i] = {0, spec_.values[size_t(stored_in_[i])].at, -1};
    SDX_ASSERT(is_inside_blocks());
    made.arena_bytes = plan_.bytes;
    made.peak = plan_.peak;
    locate_steps(made);
    locate_exports(made);
    list_own_blocks(made);
    return true;
  }

  std::vector<ValueSpan> spans() const { return spans_of(dependencies_, needs_, plan_); }

 private:
  Status plan_step(int32_t number, Specialization& made);
  void gather_views(const std::vector<int32_t>& ids, std::vector<View>& into) const;

  void store_in_outputs();
  int32_t output_of(int32_t id) const;
  bool measure(const Specialization& made);
  void measure_costs(const Specialization& made);
  bool handles_strings(const StepSpec& step) const;
  void add_output_block(int32_t id, int32_t step);
  void add_input_block(int32_t id, int32_t step);
  void add_to_block(size_t value, int32_t step, std::vector<SlotBlock>& blocks);
  bool may_be_in_place(const StepSpec& step, int32_t input, int32_t output) const;
  bool has_layout_of(int32_t from, int32_t to, const std::vector<int32_t>& permutation) const;
  bool is_whole(int32_t id) const;
  std::vector<ConcatInput> concat_inputs(const StepSpec& step) const;

  [[maybe_unused]] bool is_inside_blocks() const;
  void locate_steps(Specialization& made) const;
  void locate_exports(Specialization& made) const;
  void find_slot_lifetimes(Specialization& made) const;
  void list_own_blocks(Specialization& made) const;
  void export_value(const ValueSpec& value, const View& view, Specialization& made) const;
  static Location location_of(const Placement& placed);
  Location location_of(int32_t id) const;

  // The arena value in whose bytes a value is stored; -1: none.
  int32_t root(int32_t id) const { return id < 0 ? -1 : dependencies_.roots[size_t(id)]; }

  const SegmentSpec& spec_;
  const Dependencies& dependencies_;
  const std::vector<int64_t>& registers_;
  std::vector<View> views_;
  MemoryNeeds needs_;
  // By value: the exported value in whose block an arena value is stored, since the last step that
  // touches it writes the exported one in its place; -1: none.
  std::vector<int32_t> stored_in_;
  // Input or exported value -> index into needs_.input_blocks or needs_.output_blocks.
  std::unordered_map<size_t, size_t> block_of_;
  MemoryPlan plan_;
  std::vector<View> in_, out_;  // of the current step
  std::vector<int64_t> ints_;
};

Status Specializer::plan_step(int32_t number, Specialization& made) {
  const StepSpec& step = spec_.steps[size_t(number)];
  gather_views(step.inputs, in_);
  gather_views(step.outputs, out_);
  ints_.clear();
  for (const int32_t r : step.ints) ints_.push_back(registers_[size_t(r)]);
  const Call call = call_of(in_, out_, ints_, step.floats);
  PlannedStep& planned = made.steps.emplace_back();
  planned.number = number;
  planned.n_in = int32_t(in_.size());
  planned.n_out = int32_t(out_.size());
  Status status = prepare(*step.kernel, call, made.plan_memory, planned.plan);
  planned.plan.local_bytes = align_up(planned.plan.local_bytes);
  made.local_bytes = std::max(made.local_bytes, planned.plan.local_bytes);
  return status;
}

void Specializer::gather_views(const std::vector<int32_t>& ids, std::vector<View>& into) const {
  into.clear();
  for (const int32_t id : ids) into.push_back(id < 0 ? View() : views_[size_t(id)]);
}

// The exported value in whose block a value is stored; -1: none.
int32_t Specializer::output_of(int32_t id) const {
  const int32_t base = dependencies_.bases[size_t(id)];
  const ValueSpec& value = spec_.values[size_t(base)];
  if (value.storage == Storage::exported) return value.numbers.empty() ? base : -1;
  return value.storage == Storage::arena ? stored_in_[size_t(base)] : -1;
}

// Finds arena values that a step overwrites with an output, in place: they are stored in the block
// of the output from the first. Backwards, so that chains of such steps are found whole. A value
// qualifies if no other step reads it, so that the step is its last in any order.
void Specializer::store_in_outputs() {
  stored_in_.assign(spec_.values.size(), -1);
  std::vector<int32_t> n_touching(spec_.values.size(), 0);
  std::vector<char> is_overwriting(spec_.values.size(), 0);
  for (const std::vector<int32_t>& touched : dependencies_.touches)
    for (const int32_t value : touched) ++n_touching[size_t(value)];
  for (auto step = spec_.steps.rbegin(); step != spec_.steps.rend(); ++step)
    for (const auto& [from, to] : step->in_place) {
      const int32_t in = root(step->inputs[size_t(from)]), out = step->outputs[size_t(to)];
      const int32_t output = output_of(out), base = dependencies_.bases[size_t(out)];
      if (output < 0 || in < 0 || is_overwriting[size_t(base)]) continue;
      // Its writer and this step.
      if (n_touching[size_t(in)] != 2 || !may_be_in_place(*step, from, to)) continue;
      stored_in_[size_t(in)] = output;
      is_overwriting[size_t(base)] = 1;
    }
}

// Fills `needs_`: what the arena must hold. False where no memory can hold it; the total is a
// double since a sum of int64_t could overflow.
bool Specializer::measure(const Specialization& made) {
  needs_.bytes.assign(spec_.values.size(), 0);
  double total = 0;
  for (size_t i = 0; i < spec_.values.size(); ++i) {
    if (spec_.values[i].storage != Storage::arena || stored_in_[i] >= 0) continue;
    needs_.bytes[i] = align_up(bytes_of(views_[i]));
    total += double(needs_.bytes[i]);
  }
  for (size_t i = 0; i < spec_.steps.size(); ++i) {
    needs_.scratch.push_back(align_up(made.steps[i].plan.scratch_bytes));
    total += double(needs_.scratch.back());
    const StepSpec& step = spec_.steps[i];
    for (const auto& [from, to] : step.in_place)
      if (root(step.outputs[size_t(to)]) >= 0 && may_be_in_place(step, from, to))
        needs_.in_place.push_back(
            {int32_t(i), root(step.inputs[size_t(from)]), root(step.outputs[size_t(to)])});
    if (step.is_concat) needs_.concats.push_back(concat_inputs(step));
    for (const int32_t id : step.outputs) add_output_block(id, int32_t(i));
    if (spec_.consumes_inputs)
      for (const int32_t id : step.inputs) add_input_block(id, int32_t(i));
  }
  if (spec_.parallel_branches) measure_costs(made);
  return total <= double(kMaxBytes);
}

// The costs of steps, for parallel groups. A step that can use most of the threads, and runs long
// enough for it, is split over threads instead.
void Specializer::measure_costs(const Specialization& made) {
  const int64_t threads = needs_.costs.threads;
  for (const PlannedStep& step : made.steps) {
    int64_t work = 0, used = 1, bytes = needs_.scratch[size_t(step.number)];
    for (int p = 0; p < step.plan.n_phases; ++p) {
      const Phase& phase = step.plan.phases[p];
      const double whole = double(phase.count) * double(phase.work);
      work += int64_t(std::min(whole * double(phase.rounds), 1e15));  // sums stay in range
      used = std::max(used, std::min(threads, phase.count));
    }
    const bool is_split = 2 * used > threads && work > kWorthSplitting * threads;
    const StepSpec& spec = spec_.steps[size_t(step.number)];
    for (const int32_t id : spec.outputs)
      if (id >= 0) bytes += bytes_of(views_[size_t(id)]);
    needs_.costs.bytes.push_back(bytes);
    needs_.costs.work.push_back(is_split || handles_strings(spec) ? StepCosts::kNotParallel : work);
  }
}

// Steps on strings stay out of parallel groups: all strings of a run come from one StringArena, and
// its lock would serialize the chains.
bool Specializer::handles_strings(const StepSpec& step) const {
  const auto is_string = [&](int32_t id) {
    return id >= 0 && spec_.values[size_t(id)].dtype == DType::string;
  };
  return std::any_of(step.inputs.begin(), step.inputs.end(), is_string) ||
         std::any_of(step.outputs.begin(), step.outputs.end(), is_string);
}

// The block of an exported value can hold other values until the first step writes to it, unless it
// may be the block of a cache from an earlier run.
void Specializer::add_output_block(int32_t id, int32_t step) {
  const int32_t output = output_of(id);
  if (output >= 0) add_to_block(size_t(output), step, needs_.output_blocks);
}

// An input that is consumed is alive until the last step that reads it; one that the caller keeps
// takes the same memory in every plan.
void Specializer::add_input_block(int32_t id, int32_t step) {
  if (id < 0) return;
  const auto base = size_t(dependencies_.bases[size_t(id)]);
  const auto& held = spec_.held_inputs;
  if (spec_.values[base].storage == Storage::slot &&
      std::find(held.begin(), held.end(), int32_t(base)) == held.end())
    add_to_block(base, step, needs_.input_blocks);
}

void Specializer::add_to_block(size_t value, int32_t step, std::vector<SlotBlock>& blocks) {
  const auto [entry, is_new] = block_of_.emplace(value, blocks.size());
  if (is_new)
    blocks.push_back({spec_.values[value].at, bytes_of(views_[value]) / kAlign * kAlign, {}});
  std::vector<int32_t>& steps = blocks[entry->second].steps;
  if (steps.empty() || steps.back() != step) steps.push_back(step);
}

// Whether a value is all of the arena or exported value in which it is stored, contiguous.
bool Specializer::is_whole(int32_t id) const {
  if (id < 0) return false;
  const int32_t base = dependencies_.bases[size_t(id)];
  return (root(id) >= 0 || output_of(id) >= 0) && views_[size_t(id)].is_contiguous() &&
         bytes_of(views_[size_t(id)]) == bytes_of(views_[size_t(base)]);
}

// Whether an output can be written over an input: element i of both is at the same offset. Other
// inputs that show the same bytes must be declared in place and have that layout too, or the kernel
// could read elements that it has overwritten.
bool Specializer::may_be_in_place(const StepSpec& step, int32_t input, int32_t output) const {
  const int32_t from = step.inputs[size_t(input)], to = step.outputs[size_t(output)];
  if (root(from) < 0 || !is_whole(to) || !has_layout_of(from, to, step.permutation)) return false;
  for (int32_t i = 0; i < int32_t(step.inputs.size()); ++i) {
    const int32_t id = step.inputs[size_t(i)];
    if (i == input || id < 0 || root(id) != root(from)) continue;
    const std::pair pair(i, output);
    const bool is_declared =
        std::find(step.in_place.begin(), step.in_place.end(), pair) != step.in_place.end();
    if (!is_declared || !has_layout_of(id, to, step.permutation)) return false;
  }
  return true;
}

// Whether a value is all of the arena value in which it is stored, its (permuted) elements at the
// offsets of the output's.
bool Specializer::has_layout_of(int32_t from, int32_t to,
                                const std::vector<int32_t>& permutation) const {
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

// The inputs of a Concat that may be written into its output directly: all of them are contiguous
// there if no axis before the joined one has more than one element.
std::vector<ConcatInput> Specializer::concat_inputs(const StepSpec& step) const {
  std::vector<ConcatInput> inputs;
  const int32_t output = step.outputs[0];
  const View& view = views_[size_t(output)];
  const int axis = int(registers_[size_t(step.ints[0])]);
  const bool is_in_arena = root(output) == output && stored_in_[size_t(output)] < 0;
  if (!is_in_arena || view.count(0, axis) != 1) return inputs;
  int64_t offset = 0;
  for (const int32_t id : step.inputs) {
    if (root(id) >= 0 && is_whole(id) && root(id) != output && needs_.bytes[size_t(root(id))] > 0)
      inputs.push_back({root(id), output, offset});
    offset += bytes_of(views_[size_t(id)]);
  }
  return inputs;
}

// Whether all arena values and scratch are inside of the arena or of their own blocks.
bool Specializer::is_inside_blocks() const {
  const auto is_inside = [&](const Placement& placed, int64_t bytes) {
    if (bytes == 0 || placed.output_slot >= 0) return true;
    const int64_t whole =
        placed.own_block >= 0 ? plan_.own_blocks[size_t(placed.own_block)].bytes : plan_.bytes;
    return placed.offset >= 0 && placed.offset + bytes <= whole;
  };
  for (size_t i = 0; i < spec_.values.size(); ++i)
    if (spec_.values[i].storage == Storage::arena &&
        !is_inside(plan_.values[i], bytes_of(views_[i])))
      return false;
  for (size_t i = 0; i < needs_.scratch.size(); ++i)
    if (!is_inside(plan_.scratch[i], needs_.scratch[i])) return false;
  return true;
}

// Sorts the steps into execution order and gives them locations for operands and scratch.
void Specializer::locate_steps(Specialization& made) const {
  std::vector<PlannedStep> steps;
  steps.reserve(made.steps.size());
  made.group_ends = plan_.groups.end;
  for (size_t at = 0; at < plan_.order.size(); ++at) {
    const int32_t number = plan_.order[at];
    const StepSpec& spec = spec_.steps[size_t(number)];
    PlannedStep& step = steps.emplace_back(made.steps[size_t(number)]);
    step.chain = plan_.groups.chain[at];
    step.scratch = location_of(plan_.scratch[size_t(number)]);
    step.first_location = int32_t(made.locations.size());
    for (const int32_t id : spec.inputs) made.locations.push_back(location_of(id));
    for (const int32_t id : spec.outputs) made.locations.push_back(location_of(id));
  }
  made.steps = std::move(steps);
}

void Specializer::locate_exports(Specialization& made) const {
  for (size_t i = 0; i < spec_.values.size(); ++i)
    if (spec_.values[i].storage == Storage::exported)
      export_value(spec_.values[i], views_[i], made);
  for (const Alias& alias : spec_.aliases)
    made.exports.push_back(
        {alias.slot, location_of(alias.value).base, views_[size_t(alias.value)], 0});
  if (spec_.consumes_inputs) find_slot_lifetimes(made);
}

// When each output is allocated, and each input released.
void Specializer::find_slot_lifetimes(Specialization& made) const {
  std::unordered_map<int32_t, int32_t> first, last;  // by slot: positions
  for (size_t at = 0; at < made.steps.size(); ++at) {
    const PlannedStep& step = made.steps[at];
    for (int32_t i = 0; i < step.n_in + step.n_out; ++i) {
      const int32_t base = made.locations[size_t(step.first_location + i)].base;
      first.emplace(base, plan_.groups.begin[at]);
      last[base] = plan_.groups.end[at];
    }
  }
  for (ExportedValue& exported : made.exports)
    if (const auto found = first.find(exported.root); found != first.end())
      exported.first_use = found->second;
  std::stable_sort(made.exports.begin(), made.exports.end(),
                   [](const auto& a, const auto& b) { return a.first_use < b.first_use; });
  for (const ValueSpec& value : spec_.values)
    if (const auto found = last.find(value.at);
        value.storage == Storage::slot && found != last.end())
      made.last_reads.push_back({found->second, value.at});
  std::stable_sort(made.last_reads.begin(), made.last_reads.end(), is_earlier);
}

void Specializer::list_own_blocks(Specialization& made) const {
  made.own_blocks = plan_.own_blocks;
  std::vector<Lifetime> lifetimes;
  for (const auto& [bytes, first, last] : plan_.own_blocks) {
    made.own_ends.push_back({last, int32_t(lifetimes.size())});
    lifetimes.push_back({bytes, first, last});
  }
  made.own_peak_bytes = peak_of_lifetimes(lifetimes).bytes;
  std::stable_sort(made.own_ends.begin(), made.own_ends.end(), is_earlier);
}

void Specializer::export_value(const ValueSpec& value, const View& view,
                               Specialization& made) const {
  ExportedValue exported{value.at, value.at, view, bytes_of(view)};
  if (!value.numbers.empty()) {
    View block = view;
    exported.rows = view.dims[value.numbers[0]];
    exported.capacity = block.dims[value.numbers[0]] = registers_[size_t(value.numbers[1])];
    exported.bytes = bytes_of(block);
    for (size_t g = 0; g < spec_.growths.size(); ++g)
      if (spec_.growths[g].to == value.at) exported.growth = int32_t(g);
  }
  made.exports.push_back(exported);
}

Location Specializer::location_of(const Placement& placed) {
  if (placed.own_block >= 0) return {Location::kOwnBlocks - placed.own_block, placed.offset};
  return {placed.output_slot >= 0 ? placed.output_slot : Location::kArena, placed.offset};
}

Location Specializer::location_of(int32_t id) const {
  if (id < 0) return {};
  const ValueSpec& value = spec_.values[size_t(id)];
  switch (value.storage) {
    case Storage::slot:
    case Storage::exported: return {value.at, 0};
    case Storage::constant:
      return {Location::kFixed, int64_t(reinterpret_cast<intptr_t>(value.data))};
    case Storage::arena: return location_of(plan_.values[size_t(id)]);
    case Storage::sliced: {
      Location location = location_of(value.at);
      const View& from = views_[size_t(value.at)];
      for (int i = 0; i < from.rank; ++i)
        location.offset +=
            registers_[size_t(value.numbers[size_t(i)])] * from.strides[i] * size_of(from.dtype);
      return location;
    }
    case Storage::concat_slice: {
      Location location = location_of(value.at);
      location.offset += registers_[size_t(value.numbers[0])] * size_of(value.dtype);
      return location;
    }
    default: return location_of(value.at);
  }
}

}  // namespace

std::shared_ptr<const Specialization> specialize(const SegmentSpec& spec,
                                                 const Dependencies& dependencies,
                                                 const RunState& state, PlanChoice& choice,
                                                 Outcome& outcome, std::vector<ValueSpan>* spans) {
  std::vector<int64_t> registers(spec.sizes.size());
  const bool fits = evaluate(spec.sizes, state.dim_sizes.data(), registers.data());
  // Guards first: they name the node whose sizes are wrong, which an overflow alone cannot.
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
  auto made = std::make_shared<Specialization>();
  for (const int32_t name : spec.names) made->key.push_back(state.dim_sizes[size_t(name)]);
  Specializer specializer(spec, dependencies, registers, std::move(views), state.threads.threads);
  if (!specializer.build(*made, choice, outcome)) return nullptr;
  if (spans != nullptr) *spans = specializer.spans();
  return made;
}

}  // namespace sdx
