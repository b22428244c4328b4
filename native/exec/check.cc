#include "exec/check.h"

#include <algorithm>
#include <string>

namespace sdx {
namespace {

constexpr int kMaxTypes = 32;  // above all numbers of TensorProto.DataType

[[noreturn]] void refuse(const std::string& what) { throw MalformedProgram(what); }

// A range of valid indices; `what` names them in messages.
struct Range {
  const char* what;
  size_t n;

  void has(int64_t number) const {
    if (number < 0 || number >= int64_t(n))
      refuse(std::string(what) + " " + std::to_string(number) + " is outside [0, " +
             std::to_string(n) + ")");
  }
  template <class Numbers>
  void has_all(const Numbers& numbers) const {
    for (const auto number : numbers) has(number);
  }
  // The same for optional operands, which may be -1: absent.
  void has_present(const std::vector<int32_t>& numbers) const {
    for (const int32_t number : numbers)
      if (number != -1) has(number);
  }
};

void check_length(const char* what, size_t length, size_t expected) {
  if (length != expected)
    refuse(std::string(what) + ": expected " + std::to_string(expected) + ", got " +
           std::to_string(length));
}

void check_rank(size_t rank) {
  if (rank > size_t(kMaxRank))
    refuse("a value has rank " + std::to_string(rank) + ", the maximum is " +
           std::to_string(kMaxRank));
}

void check_type(DType dtype) { Range{"element type", kMaxTypes}.has(int(dtype)); }

template <class Numbers>
void check_permutation(const Numbers& axes, size_t rank) {
  check_length("axes of a permutation", axes.size(), rank);
  std::vector<bool> is_seen(rank);
  for (const auto axis : axes) {
    Range{"axis", rank}.has(axis);
    if (is_seen[size_t(axis)]) refuse("a permutation contains an axis twice");
    is_seen[size_t(axis)] = true;
  }
}

bool is_view(Storage storage) { return storage >= Storage::reshaped; }
// Whether a step writes values of this storage.
bool is_written(Storage storage) {
  return storage == Storage::arena || storage == Storage::exported ||
         storage == Storage::concat_slice || storage == Storage::updated;
}

// Checks one segment. Each method checks one kind of record and relies on those checked before it:
// sizes first, then values, views, steps.
class SegmentCheck {
 public:
  SegmentCheck(const SegmentSpec& spec, int n_slots, int n_names)
      : spec_(spec),
        slots_{"slot", size_t(n_slots)},
        names_{"name", size_t(n_names)},
        registers_{"register", spec.sizes.size()},
        values_{"value", spec.values.size()} {}

  void run() const {
    sizes_and_guards();
    names_.has_all(spec_.names);
    for (size_t i = 0; i < spec_.values.size(); ++i) value(i);
    for (size_t i = 0; i < spec_.values.size(); ++i) (void)base_of(i);
    steps();
    resolved_names();
    for (const Alias& alias : spec_.aliases) {
      slots_.has(alias.slot);
      values_.has(alias.value);
      if (spec_.values[base_of(size_t(alias.value))].storage != Storage::exported)
        refuse("an alias of a value that is not exported");
    }
    values_.has_all(spec_.held_inputs);
    for (const Growth& g : spec_.growths) {
      slots_.has(g.from), slots_.has(g.to);
      Range{"axis", size_t(kMaxRank)}.has(g.axis);
      registers_.has(g.rows);
      names_.has(g.capacity_from), names_.has(g.capacity_to);
    }
  }

 private:
  void sizes_and_guards() const {
    for (size_t i = 0; i < spec_.sizes.size(); ++i) {
      const SizeOp& op = spec_.sizes[i];
      const Range earlier{"earlier register", i};
      if (op.kind > SizeKind::broadcast) refuse("a size has an unknown kind");
      if (op.kind == SizeKind::name) names_.has(op.a);
      if (op.kind > SizeKind::name) earlier.has(op.a), earlier.has(op.b);
    }
    for (const Guard& guard : spec_.guards) {
      if (guard.kind > GuardKind::at_least) refuse("a guard has an unknown kind");
      registers_.has(guard.left), registers_.has(guard.right);
    }
  }

  void value(size_t i) const {
    const ValueSpec& v = spec_.values[i];
    const size_t rank = v.dims.size();
    check_rank(rank);
    check_type(v.dtype);
    registers_.has_all(v.dims);
    switch (v.storage) {
      case Storage::slot: slots_.has(v.at); break;
      case Storage::constant:
      case Storage::arena: break;
      case Storage::exported:
        slots_.has(v.at);
        if (v.numbers.empty()) break;
        check_length("capacity of a value", v.numbers.size(), 2);
        Range{"axis", rank}.has(v.numbers[0]);
        registers_.has(v.numbers[1]);
        break;
      default: view(v, i, rank);
    }
  }

  // A view's source is listed before the view; only a Concat output comes after its slices.
  void view(const ValueSpec& v, size_t i, size_t rank) const {
    if (v.storage > Storage::updated) refuse("a value has an unknown storage");
    if (v.storage == Storage::concat_slice) {
      values_.has(v.at);
      if (rank < 2 || spec_.values[size_t(v.at)].dims.size() < 2)
        refuse("a slice of a Concat output has less than two axes");
      check_length("the start of a Concat slice", v.numbers.size(), 1);
      registers_.has(v.numbers[0]);
      return;
    }
    Range{"earlier value", i}.has(v.at);
    const ValueSpec& source = spec_.values[size_t(v.at)];
    const size_t source_rank = source.dims.size();
    if (size_of(v.dtype) != size_of(source.dtype))
      refuse("a view has an element type of another size");
    if (v.storage == Storage::updated && source.storage != Storage::slot &&
        source.storage != Storage::updated)
      refuse("a value that is updated in place is not an input");
    if (v.storage == Storage::permuted || v.storage == Storage::sliced)
      check_length("the rank of a view", rank, source_rank);
    if (v.storage == Storage::permuted) check_permutation(v.numbers, rank);
    if (v.storage == Storage::expanded && rank < source_rank)
      refuse("an expanded view has fewer axes than its source");
    if (v.storage == Storage::sliced) {
      check_length("starts and steps of a slice", v.numbers.size(), 2 * rank);
      for (size_t axis = 0; axis < rank; ++axis) registers_.has(v.numbers[axis]);
    }
    if (v.storage == Storage::reshaped && rank < 2 && is_concat_slice(size_t(v.at)))
      refuse("a slice of a Concat output has less than two axes");
  }

  bool is_concat_slice(size_t id) const {
    while (spec_.values[id].storage == Storage::reshaped) id = size_t(spec_.values[id].at);
    return spec_.values[id].storage == Storage::concat_slice;
  }

  // The value in whose bytes a value is stored. Concat slices may refer forwards: cycles are
  // possible.
  size_t base_of(size_t id) const {
    for (size_t walked = 0; is_view(spec_.values[id].storage); ++walked) {
      if (walked > spec_.values.size()) refuse("values view each other");
      id = size_t(spec_.values[id].at);
    }
    return id;
  }

  // The value whose step must run before a value can be read: itself, or the one it views.
  size_t written_value(size_t id) const {
    while (is_view(spec_.values[id].storage) && spec_.values[id].storage < Storage::concat_slice)
      id = size_t(spec_.values[id].at);
    return id;
  }

  // Steps are listed in a valid execution order: every value is written once, before it is read.
  void steps() const {
    std::vector<bool> exists(spec_.values.size()), is_outdated(spec_.values.size());
    for (const StepSpec& step : spec_.steps) {
      if (step.kernel == nullptr) refuse("a step has no kernel");
      values_.has_present(step.inputs);
      values_.has_all(step.outputs);
      registers_.has_all(step.ints);
      for (const int32_t id : step.inputs) {
        if (id < 0) continue;
        const size_t made = written_value(size_t(id));
        if (is_written(spec_.values[made].storage) && !exists[made])
          refuse(std::string(step.kernel->name) + " reads a value before it is written");
        if (is_outdated[made])
          refuse(std::string(step.kernel->name) + " reads an input after it was updated");
      }
      for (const int32_t id : step.outputs) {
        if (!is_written(spec_.values[size_t(id)].storage) || exists[size_t(id)])
          refuse(std::string(step.kernel->name) + " writes a value that exists already");
        exists[size_t(id)] = true;
        if (spec_.values[size_t(id)].storage == Storage::updated) update(step, id, is_outdated);
      }
      in_place(step);
    }
  }

  // An input is updated by a step that reads it, and each of its versions once.
  void update(const StepSpec& step, int32_t id, std::vector<bool>& is_outdated) const {
    const int32_t before = spec_.values[size_t(id)].at;
    const auto& inputs = step.inputs;
    if (std::find(inputs.begin(), inputs.end(), before) == inputs.end())
      refuse(std::string(step.kernel->name) + " updates a value that it does not read");
    if (is_outdated[size_t(before)])
      refuse(std::string(step.kernel->name) + " updates an input that was updated already");
    is_outdated[size_t(before)] = true;
  }

  // What memory_plan.h uses to write outputs over inputs and Concat inputs into outputs.
  void in_place(const StepSpec& step) const {
    for (const auto& [input, output] : step.in_place) {
      Range{"input", step.inputs.size()}.has(input);
      Range{"output", step.outputs.size()}.has(output);
    }
    if (!step.permutation.empty() && !step.outputs.empty())
      check_permutation(step.permutation, spec_.values[size_t(step.outputs[0])].dims.size());
    if (!step.is_concat) return;
    if (step.ints.empty() || step.outputs.size() != 1)
      refuse("a Concat without an axis or with more than one output");
    values_.has_all(step.inputs);
  }

  void resolved_names() const {
    for (const ResolvedName& r : spec_.resolved) {
      Range{"step", spec_.steps.size()}.has(r.step);
      const StepSpec& step = spec_.steps[size_t(r.step)];
      if (step.kernel->resolve == nullptr)
        refuse(std::string(step.kernel->name) + " does not resolve sizes");
      Range{"output", step.outputs.size()}.has(r.output);
      const ValueSpec& made = spec_.values[size_t(step.outputs[size_t(r.output)])];
      Range{"axis", made.dims.size()}.has(r.axis);
      names_.has(r.name);
      for (const int32_t id : step.inputs) {  // read before any step has run
        if (id < 0) continue;
        const Storage storage = spec_.values[size_t(id)].storage;
        if (storage != Storage::slot && storage != Storage::constant)
          refuse(std::string(step.kernel->name) +
                 " resolves sizes from a value that is written later");
      }
    }
  }

  const SegmentSpec& spec_;
  Range slots_, names_, registers_, values_;
};

// The inputs (without captures) and outputs that a body must have, by the ONNX operator.
struct BodyCounts {
  size_t inputs, outputs;
};

BodyCounts counts_of(const ControlNode& control) {
  const size_t n = control.inputs.size(), scan_outputs = control.scan_outputs.size();
  switch (control.kind) {
    case ControlKind::branch:
      check_length("inputs of If", n, 1);
      return {0, control.outputs.size()};
    case ControlKind::loop: {  // trip count, condition, carried -> condition, carried, scan outputs
      const size_t carried = n > 2 ? n - 2 : 0;
      return {2 + carried, 1 + carried + scan_outputs};
    }
    case ControlKind::scan:
      if (control.scan_inputs.empty() || control.scan_inputs.size() > n)
        refuse("a Scan has no scan inputs");
      return {n, n - control.scan_inputs.size() + scan_outputs};
  }
  refuse("a control-flow node has an unknown kind");
}

}  // namespace

void check(const SegmentSpec& spec, int n_slots, int n_names) {
  SegmentCheck(spec, n_slots, n_names).run();
}

void check(const ControlNode& control, int n_slots, int n_names) {
  const Range slots{"slot", size_t(n_slots)}, names{"name", size_t(n_names)};
  slots.has_present(control.inputs);
  slots.has_present(control.outputs);
  const BodyCounts counts = counts_of(control);
  const bool is_branch = control.kind == ControlKind::branch;
  const size_t first_required = control.kind == ControlKind::loop ? 2 : 0;
  for (size_t i = first_required; i < control.inputs.size(); ++i) slots.has(control.inputs[i]);
  check_length("bodies", control.bodies.size(), is_branch ? 2 : 1);
  const size_t n_conditions =
      control.kind == ControlKind::loop ? 1 : 0;  // a Loop body's first output
  if (control.outputs.size() > counts.outputs - n_conditions)
    refuse("a control-flow node has more outputs than its body");
  for (const Body& body : control.bodies) {
    const ProgramSpec& inside = body.program->spec();
    check_length("inputs of a body", inside.inputs.size(), counts.inputs + body.captures.size());
    check_length("outputs of a body", inside.outputs.size(), counts.outputs);
    slots.has_all(body.captures);
    for (const auto& [outside, inside_name] : body.known_names) {
      names.has(outside);
      Range{"name", size_t(inside.n_names)}.has(inside_name);
    }
  }
  for (const ScanOutput& s : control.scan_outputs) {
    check_type(s.dtype);
    check_rank(size_t(s.rank) + !s.is_concatenated);
    Range{"axis", size_t(s.rank) + !s.is_concatenated}.has(s.axis);
  }
  for (const ScanInput& cut : control.scan_inputs) Range{"axis", size_t(kMaxRank)}.has(cut.axis);
}

void check(const ProgramSpec& spec) {
  const Range slots{"slot", size_t(spec.n_slots)}, names{"name", size_t(spec.n_names)};
  const Range axes{"axis", size_t(kMaxRank)};
  slots.has_all(spec.inputs);
  slots.has_all(spec.outputs);
  for (const int rank : spec.ranks) check_rank(size_t(rank));
  for (const DType dtype : spec.dtypes) check_type(dtype);
  for (size_t i = 0; i < spec.inputs.size(); ++i)
    if (spec.capacity_axes[i] != -1)
      Range{"axis", size_t(spec.ranks[i])}.has(spec.capacity_axes[i]);
  for (const NamedDim& n : spec.names) slots.has(n.slot), axes.has(n.axis), names.has(n.name);
  for (const FixedDim& s : spec.sizes) slots.has(s.slot), axes.has(s.axis);
  for (const ConstantSlot& fixed : spec.constants) {
    slots.has(fixed.slot);
    check_type(fixed.view.dtype);
  }
  for (const ProgramItem& item : spec.items) {
    slots.has_all(item.frees);
    for (const NamedDim& n : item.resolved_names)
      slots.has(n.slot), axes.has(n.axis), names.has(n.name);
  }
}

}  // namespace sdx
