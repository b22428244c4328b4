#include "exec/check.h"

#include <algorithm>
#include <string>

namespace sdx {
namespace {

constexpr int kMostTypes = 32;  // above the numbers that ONNX has for element types

[[noreturn]] void refuse(const std::string& what) { throw MalformedProgram(what); }

// Where the numbers of a program belong; what is told apart by `what` in messages.
struct Range {
  const char* what;
  size_t n;

  void has(int64_t number) const {
    if (number < 0 || number >= int64_t(n))
      refuse(std::string(what) + " " + std::to_string(number) + " of " + std::to_string(n));
  }
  template <class Numbers>
  void has_all(const Numbers& numbers) const {
    for (const auto number : numbers) has(number);
  }
  // The same for numbers that may be -1: not given.
  void has_given(const std::vector<int32_t>& numbers) const {
    for (const int32_t number : numbers)
      if (number != -1) has(number);
  }
};

void check_length(const char* what, size_t length, size_t wanted) {
  if (length != wanted)
    refuse(std::string(what) + ": " + std::to_string(length) + " numbers, not " +
           std::to_string(wanted));
}

void check_rank(size_t rank) {
  if (rank > size_t(kMaxRank))
    refuse("a value of rank " + std::to_string(rank) + ", and " + std::to_string(kMaxRank) +
           " is the most");
}

void check_type(DType dtype) { Range{"an element type", kMostTypes}.has(int(dtype)); }

template <class Numbers>
void check_permutation(const Numbers& axes, size_t rank) {
  check_length("a permutation", axes.size(), rank);
  std::vector<bool> is_seen(rank);
  for (const auto axis : axes) {
    Range{"an axis", rank}.has(axis);
    if (is_seen[size_t(axis)]) refuse("a permutation has an axis twice");
    is_seen[size_t(axis)] = true;
  }
}

bool is_view(Storage storage) { return storage >= Storage::reshaped; }
bool is_made(Storage storage) {
  return storage == Storage::arena || storage == Storage::exported || storage == Storage::part;
}

class SegmentCheck {
 public:
  SegmentCheck(const SegmentSpec& spec, int n_slots, int n_names)
      : spec_(spec),
        slots_{"a slot", size_t(n_slots)},
        names_{"a name", size_t(n_names)},
        registers_{"a register", spec.sizes.size()},
        values_{"a value", spec.values.size()} {}

  void run() const {
    sizes();
    names_.has_all(spec_.names);
    for (size_t i = 0; i < spec_.values.size(); ++i) value(i);
    for (size_t i = 0; i < spec_.values.size(); ++i) (void)base_of(i);
    steps();
    resolved();
    for (const Alias& alias : spec_.aliases) {
      slots_.has(alias.slot);
      values_.has(alias.value);
      if (spec_.values[base_of(size_t(alias.value))].storage != Storage::exported)
        refuse("an alias of a value that does not leave");
    }
    for (const Growth& g : spec_.growths) {
      slots_.has(g.from), slots_.has(g.to);
      Range{"an axis", size_t(kMaxRank)}.has(g.axis);
      registers_.has(g.rows);
      names_.has(g.room_from), names_.has(g.room_to);
    }
  }

 private:
  void sizes() const {
    for (size_t i = 0; i < spec_.sizes.size(); ++i) {
      const SizeOp& op = spec_.sizes[i];
      const Range earlier{"an earlier register", i};
      if (op.kind > SizeKind::broadcast) refuse("a size of an unknown kind");
      if (op.kind == SizeKind::name) names_.has(op.a);
      if (op.kind > SizeKind::name) earlier.has(op.a), earlier.has(op.b);
    }
    for (const Guard& guard : spec_.guards) {
      if (guard.kind > GuardKind::at_least) refuse("a guard of an unknown kind");
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
        check_length("a value with room", v.numbers.size(), 2);
        Range{"an axis", rank}.has(v.numbers[0]);
        registers_.has(v.numbers[1]);
        break;
      default: view(v, i, rank);
    }
  }

  // What a view views is listed before it; only the whole that a part lies in comes after the part.
  void view(const ValueSpec& v, size_t i, size_t rank) const {
    if (v.storage > Storage::part) refuse("a value of an unknown storage");
    if (v.storage == Storage::part) {
      values_.has(v.at);
      if (rank < 2 || spec_.values[size_t(v.at)].dims.size() < 2) refuse("a part without rows");
      check_length("a part", v.numbers.size(), 1);
      registers_.has(v.numbers[0]);
      return;
    }
    Range{"an earlier value", i}.has(v.at);
    const ValueSpec& source = spec_.values[size_t(v.at)];
    const size_t source_rank = source.dims.size();
    if (size_of(v.dtype) != size_of(source.dtype)) refuse("a view of another element type");
    if (v.storage == Storage::permuted || v.storage == Storage::sliced)
      check_length("the rank of a view", rank, source_rank);
    if (v.storage == Storage::permuted) check_permutation(v.numbers, rank);
    if (v.storage == Storage::expanded && rank < source_rank) refuse("an expansion to fewer axes");
    if (v.storage == Storage::sliced) {
      check_length("a slice", v.numbers.size(), 2 * rank);
      for (size_t axis = 0; axis < rank; ++axis) registers_.has(v.numbers[axis]);
    }
    if (v.storage == Storage::reshaped && rank < 2 && is_part(size_t(v.at)))
      refuse("a part without rows");
  }

  bool is_part(size_t id) const {
    while (spec_.values[id].storage == Storage::reshaped) id = size_t(spec_.values[id].at);
    return spec_.values[id].storage == Storage::part;
  }

  // The value in whose bytes a value lies.
  size_t base_of(size_t id) const {
    for (size_t walked = 0; is_view(spec_.values[id].storage); ++walked) {
      if (walked > spec_.values.size()) refuse("values that view each other");
      id = size_t(spec_.values[id].at);
    }
    return id;
  }

  // The value that has to be made before a value is there: itself, or what it views.
  size_t made_for(size_t id) const {
    while (is_view(spec_.values[id].storage) && spec_.values[id].storage != Storage::part)
      id = size_t(spec_.values[id].at);
    return id;
  }

  void steps() const {
    std::vector<bool> is_there(spec_.values.size());
    for (const StepSpec& step : spec_.steps) {
      if (step.kernel == nullptr) refuse("a step without a kernel");
      values_.has_given(step.inputs);
      values_.has_all(step.outputs);
      registers_.has_all(step.ints);
      for (const int32_t id : step.inputs) {
        if (id < 0) continue;
        const size_t made = made_for(size_t(id));
        if (is_made(spec_.values[made].storage) && !is_there[made])
          refuse(std::string(step.kernel->name) + " reads a value before it is made");
      }
      for (const int32_t id : step.outputs) {
        if (!is_made(spec_.values[size_t(id)].storage) || is_there[size_t(id)])
          refuse(std::string(step.kernel->name) + " makes a value that is there already");
        is_there[size_t(id)] = true;
      }
      in_place(step);
    }
  }

  void in_place(const StepSpec& step) const {
    for (const auto& [input, output] : step.shares) {
      Range{"an input", step.inputs.size()}.has(input);
      Range{"an output", step.outputs.size()}.has(output);
    }
    if (!step.permutation.empty() && !step.outputs.empty())
      check_permutation(step.permutation, spec_.values[size_t(step.outputs[0])].dims.size());
    if (!step.joins) return;
    if (step.ints.empty() || step.outputs.size() != 1) refuse("a join without an axis or output");
    values_.has_all(step.inputs);
  }

  void resolved() const {
    for (const ResolvedName& r : spec_.resolved) {
      Range{"a step", spec_.steps.size()}.has(r.step);
      const StepSpec& step = spec_.steps[size_t(r.step)];
      if (step.kernel->resolve == nullptr)
        refuse(std::string(step.kernel->name) + " resolves no sizes");
      Range{"an output", step.outputs.size()}.has(r.output);
      const ValueSpec& made = spec_.values[size_t(step.outputs[size_t(r.output)])];
      Range{"an axis", made.dims.size()}.has(r.axis);
      names_.has(r.name);
      for (const int32_t id : step.inputs) {  // they are read before any step has run
        if (id < 0) continue;
        const Storage storage = spec_.values[size_t(id)].storage;
        if (storage != Storage::slot && storage != Storage::constant)
          refuse(std::string(step.kernel->name) + " resolves sizes by a value that is not there");
      }
    }
  }

  const SegmentSpec& spec_;
  Range slots_, names_, registers_, values_;
};

// How many inputs and outputs of its own the body of a control-flow node has.
struct BodyCounts {
  size_t inputs, outputs;
};

BodyCounts counts_of(const Control& control) {
  const size_t n = control.inputs.size(), stacked = control.stacked.size();
  switch (control.kind) {
    case ControlKind::branch:
      check_length("the inputs of If", n, 1);
      return {0, control.outputs.size()};
    case ControlKind::loop: {
      const size_t carried = n > 2 ? n - 2 : 0;
      return {2 + carried, 1 + carried + stacked};
    }
    case ControlKind::scan:
      if (control.cuts.empty() || control.cuts.size() > n) refuse("a Scan without scanned inputs");
      return {n, n - control.cuts.size() + stacked};
  }
  refuse("control flow of an unknown kind");
}

}  // namespace

void check(const SegmentSpec& spec, int n_slots, int n_names) {
  SegmentCheck(spec, n_slots, n_names).run();
}

void check(const Control& control, int n_slots, int n_names) {
  const Range slots{"a slot", size_t(n_slots)}, names{"a name", size_t(n_names)};
  slots.has_given(control.inputs);
  slots.has_given(control.outputs);
  const BodyCounts counts = counts_of(control);
  const bool is_branch = control.kind == ControlKind::branch;
  const size_t first = control.kind == ControlKind::loop ? 2 : 0;  // that must be given
  for (size_t i = first; i < control.inputs.size(); ++i) slots.has(control.inputs[i]);
  check_length("bodies", control.bodies.size(), is_branch ? 2 : 1);
  const size_t steering = control.kind == ControlKind::loop ? 1 : 0;
  if (control.outputs.size() > counts.outputs - steering) refuse("outputs that no body gives");
  for (const Body& body : control.bodies) {
    const SequenceSpec& inside = body.program->spec();
    check_length("the inputs of a body", inside.inputs.size(),
                 counts.inputs + body.captures.size());
    check_length("the outputs of a body", inside.outputs.size(), counts.outputs);
    slots.has_all(body.captures);
    for (const auto& [there, here] : body.known_names) {
      names.has(there);
      Range{"a name", size_t(inside.n_names)}.has(here);
    }
  }
  for (const Stacked& s : control.stacked) {
    check_type(s.dtype);
    check_rank(size_t(s.rank) + !s.is_joined);
    Range{"an axis", size_t(s.rank) + !s.is_joined}.has(s.axis);
  }
  for (const Cut& cut : control.cuts) Range{"an axis", size_t(kMaxRank)}.has(cut.axis);
}

void check(const SequenceSpec& spec) {
  const Range slots{"a slot", size_t(spec.n_slots)}, names{"a name", size_t(spec.n_names)};
  const Range axes{"an axis", size_t(kMaxRank)};
  slots.has_all(spec.inputs);
  slots.has_all(spec.outputs);
  for (const int rank : spec.ranks) check_rank(size_t(rank));
  for (const DType dtype : spec.dtypes) check_type(dtype);
  for (size_t i = 0; i < spec.inputs.size(); ++i)
    if (spec.room_axes[i] != -1) Range{"an axis", size_t(spec.ranks[i])}.has(spec.room_axes[i]);
  for (const NameOf& n : spec.names) slots.has(n.slot), axes.has(n.axis), names.has(n.name);
  for (const SizeOf& s : spec.sizes) slots.has(s.slot), axes.has(s.axis);
  for (const FixedSlot& fixed : spec.constants) {
    slots.has(fixed.slot);
    check_type(fixed.view.dtype);
  }
  for (const Item& item : spec.items) {
    slots.has_all(item.frees);
    for (const NameOf& n : item.gives) slots.has(n.slot), axes.has(n.axis), names.has(n.name);
  }
}

}  // namespace sdx
