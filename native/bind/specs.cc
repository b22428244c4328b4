// The specs from which Python builds native programs: typed records with named fields. Each is
// validated (exec/check.h) when it becomes part of a program; a violation is a MalformedProgram.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "bind/register.h"
#include "exec/check.h"
#include "kernels/registry.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;
using Ints = std::vector<int32_t>;
using Longs = std::vector<int64_t>;
using Pairs = std::vector<std::pair<int32_t, int32_t>>;
using NameTuples = std::vector<std::tuple<int32_t, int32_t, int32_t>>;  // slot, axis, name

DType dtype_of(int number) {
  if (number < 0 || number > 255) throw MalformedProgram("an element type does not fit a byte");
  return DType(number);
}

// Copies the dims of a shape of at most `n` axes; returns its rank.
template <size_t n>
int copy_dims(const Longs& dims, int64_t (&into)[n]) {
  if (dims.size() > n)
    throw MalformedProgram("a value has rank " + std::to_string(dims.size()) + ", the maximum is " +
                           std::to_string(n));
  std::copy(dims.begin(), dims.end(), into);
  return int(dims.size());
}

std::vector<NamedDim> named_dims(const NameTuples& tuples) {
  std::vector<NamedDim> dims;
  for (const auto& [slot, axis, name] : tuples) dims.push_back({slot, axis, name});
  return dims;
}

// Kernels are looked up by name once, here; the spec refers to the table of the chosen ISA.
void add_step(SegmentSpec& spec, const std::string& name, Ints inputs, Ints outputs, Ints ints,
              std::vector<double> floats, Pairs in_place, Ints permutation, bool is_concat) {
  const Isa* isa = chosen_isa();
  const Kernel* kernel = isa == nullptr ? nullptr : find_kernel(*isa, name);
  if (kernel == nullptr) throw MalformedProgram("there is no kernel " + name);
  spec.steps.push_back({kernel, std::move(inputs), std::move(outputs), std::move(ints),
                        std::move(floats), std::move(in_place), std::move(permutation), is_concat});
}

void add_constant(ProgramSpec& spec, int32_t slot, int dtype, const Longs& dims,
                  uintptr_t address) {
  View view;
  view.dtype = dtype_of(dtype);
  view.rank = copy_dims(dims, view.dims);
  view.set_contiguous_strides();
  view.data = reinterpret_cast<const void*>(address);
  spec.constants.push_back({slot, view});
}

void add_scan_output(ControlNode& control, int dtype, const Longs& dims, int axis, bool is_reversed,
                     bool is_concatenated, bool needs_iterations) {
  ScanOutput output{dtype_of(dtype), 0, {}, axis, is_reversed, is_concatenated, needs_iterations};
  output.rank = copy_dims(dims, output.dims);
  control.scan_outputs.push_back(output);
}

void add_input(ProgramSpec& spec, int32_t slot, int rank, int dtype, int capacity_axis) {
  spec.inputs.push_back(slot);
  spec.ranks.push_back(rank);
  spec.dtypes.push_back(dtype_of(dtype));
  spec.capacity_axes.push_back(capacity_axis);
}

// Specs are moved into the program: a Python object that was added is empty afterwards.
void add_segment(ProgramSpec& program, SegmentSpec& spec, Ints frees) {
  check(spec, program.n_slots, program.n_names);
  ProgramItem item;
  item.segment = std::make_unique<Segment>(std::move(spec));
  item.frees = std::move(frees);
  program.items.push_back(std::move(item));
}

void add_control(ProgramSpec& program, ControlNode& control, const NameTuples& resolved_names,
                 Ints frees) {
  check(control, program.n_slots, program.n_names);
  ProgramItem item;
  item.control = std::make_unique<ControlNode>(std::move(control));
  item.resolved_names = named_dims(resolved_names);
  item.frees = std::move(frees);
  program.items.push_back(std::move(item));
}

void add_body(ControlNode& control, ProgramSpec& program, Ints captures, Pairs known_names) {
  check(program);
  control.bodies.push_back({std::make_shared<const Program>(std::move(program)),
                            std::move(captures), std::move(known_names)});
}

void bind_kinds(nb::module_& m) {
  nb::enum_<SizeKind>(m, "SizeKind", "How a register of a size program gets its value.")
      .value("NUMBER", SizeKind::number)
      .value("NAME", SizeKind::name)
      .value("ADD", SizeKind::add)
      .value("MUL", SizeKind::mul)
      .value("DIV", SizeKind::div)
      .value("MOD", SizeKind::mod)
      .value("MIN", SizeKind::min)
      .value("MAX", SizeKind::max)
      .value("BROADCAST", SizeKind::broadcast);
  nb::enum_<GuardKind>(m, "GuardKind", "A condition on two registers.")
      .value("EQUAL", GuardKind::equal)
      .value("EQUAL_OR_ONE", GuardKind::equal_or_one)
      .value("BROADCASTS", GuardKind::broadcasts)
      .value("DIVIDES", GuardKind::divides)
      .value("AT_LEAST", GuardKind::at_least);
  nb::enum_<Storage>(m, "Storage", "Where the bytes of a segment's value are.")
      .value("SLOT", Storage::slot, "An input: slot `at` of the run.")
      .value("CONSTANT", Storage::constant, "At a fixed address.")
      .value("ARENA", Storage::arena, "Written by a step, dead before the segment ends.")
      .value("EXPORTED", Storage::exported, "Written by a step, in a block that goes to slot `at`.")
      .value("RESHAPED", Storage::reshaped, "A view of the value `at`, as are all that follow.")
      .value("PERMUTED", Storage::permuted, "`numbers` are the axes.")
      .value("SLICED", Storage::sliced, "`numbers` are registers of starts, then the steps.")
      .value("EXPANDED", Storage::expanded)
      .value("CONCAT_SLICE", Storage::concat_slice,
             "Written by a step, directly into the Concat output `at`.")
      .value("UPDATED", Storage::updated,
             "Written by a step over the input `at`: its next version.");
  nb::enum_<ControlKind>(m, "ControlKind", "A kind of control flow.")
      .value("BRANCH", ControlKind::branch)
      .value("LOOP", ControlKind::loop)
      .value("SCAN", ControlKind::scan);
}

void init_segment(SegmentSpec* self, int number, Ints key, int effort, bool parallel_branches,
                  bool consumes_inputs) {
  new (self) SegmentSpec();
  self->number = number;
  self->names = std::move(key);
  self->effort = effort;
  self->parallel_branches = parallel_branches;
  self->consumes_inputs = consumes_inputs;
}

void add_value(SegmentSpec& s, Storage storage, int dtype, int32_t at, uintptr_t address, Ints dims,
               Longs numbers) {
  s.values.push_back({storage, dtype_of(dtype), at, reinterpret_cast<const void*>(address),
                      std::move(dims), std::move(numbers)});
}

void bind_values_and_steps(nb::class_<SegmentSpec>& segment) {
  segment
      .def(
          "add_size",
          [](SegmentSpec& s, SizeKind kind, int32_t a, int32_t b, int64_t value) {
            s.sizes.push_back({kind, a, b, value});
          },
          "kind"_a, "a"_a, "b"_a, "value"_a, "Add the next register.")
      .def(
          "add_guard",
          [](SegmentSpec& s, GuardKind kind, int32_t left, int32_t right) {
            s.guards.push_back({kind, left, right});
          },
          "kind"_a, "left"_a, "right"_a)
      .def("add_value", add_value, "storage"_a, "dtype"_a, "at"_a, "address"_a, "dims"_a,
           "numbers"_a, "Add the next value; `dims` are registers.")
      .def("add_step", add_step, "kernel"_a, "inputs"_a, "outputs"_a, "ints"_a, "floats"_a,
           "in_place"_a, "permutation"_a, "is_concat"_a,
           "Add the next step: a kernel on values (-1: an absent input).");
}

void bind_segments(nb::module_& m) {
  nb::class_<SegmentSpec> segment(m, "SegmentSpec", "A segment under construction.");
  segment.def("__init__", init_segment, "number"_a, "key"_a, "effort"_a, "parallel_branches"_a,
              "consumes_inputs"_a = false,
              "`key`: the named dims that decide all sizes; `effort`: of the execution order "
              "search.");
  bind_values_and_steps(segment);
  segment
      .def(
          "add_resolved",
          [](SegmentSpec& s, int32_t step, int32_t output, int32_t axis, int32_t name) {
            s.resolved.push_back({step, output, axis, name});
          },
          "step"_a, "output"_a, "axis"_a, "name"_a, "Add a named dim that a step resolves.")
      .def(
          "add_alias",
          [](SegmentSpec& s, int32_t slot, int32_t value) { s.aliases.push_back({slot, value}); },
          "slot"_a, "value"_a, "Add a slot with the bytes of an exported value in another shape.")
      .def(
          "add_growth",
          [](SegmentSpec& s, int32_t from, int32_t to, int32_t axis, int32_t rows,
             int32_t capacity_from, int32_t capacity_to, bool has_spare) {
            s.growths.push_back({from, to, axis, rows, capacity_from, capacity_to, has_spare});
          },
          "source"_a, "target"_a, "axis"_a, "rows"_a, "capacity_from"_a, "capacity_to"_a,
          "has_spare"_a,
          "Add a cache: an output that is an input with rows appended. `rows` is a register, the "
          "capacities are names; with `has_spare` new blocks reserve rows.")
      .def(
          "hold_input", [](SegmentSpec& s, int32_t value) { s.held_inputs.push_back(value); },
          "value"_a, "Declare that the caller keeps an input, although inputs are consumed.");
}

void bind_control(nb::module_& m) {
  nb::class_<ControlNode>(m, "ControlSpec", "An If, Loop or Scan under construction.")
      .def(
          "__init__",
          [](ControlNode* self, ControlKind kind, int number, Ints inputs, Ints outputs) {
            new (self) ControlNode{kind, number, {}, std::move(inputs), std::move(outputs), {}, {}};
          },
          "kind"_a, "number"_a, "inputs"_a, "outputs"_a, "Inputs and outputs are slots; -1: none.")
      .def("add_body", add_body, "program"_a, "captures"_a, "known_names"_a,
           "Add a body, which consumes its program; `captures` are outer slots, `known_names` are "
           "(name outside, name inside).")
      .def("add_scan_output", add_scan_output, "dtype"_a, "dims"_a, "axis"_a, "is_reversed"_a,
           "is_concatenated"_a, "needs_iterations"_a,
           "Add an output that combines the values of all iterations.")
      .def(
          "add_scan_input",
          [](ControlNode& c, int axis, bool reversed) {
            c.scan_inputs.push_back({axis, reversed});
          },
          "axis"_a, "is_reversed"_a, "Add an input of which each iteration gets a slice.");
}

void init_program(ProgramSpec* self, int n_slots, int n_names) {
  if (n_slots < 0 || n_names < 0) throw MalformedProgram("a count is negative");
  new (self) ProgramSpec();
  self->n_slots = n_slots;
  self->n_names = n_names;
}

void bind_programs(nb::module_& m) {
  nb::class_<ProgramSpec>(m, "ProgramSpec", "Segments and control flow under construction.")
      .def("__init__", init_program, "n_slots"_a, "n_names"_a)
      .def("add_input", add_input, "slot"_a, "rank"_a, "dtype"_a, "capacity_axis"_a)
      .def(
          "add_output", [](ProgramSpec& s, int32_t slot) { s.outputs.push_back(slot); }, "slot"_a)
      .def(
          "add_name",
          [](ProgramSpec& s, int32_t slot, int32_t axis, int32_t name) {
            s.names.push_back({slot, axis, name});
          },
          "slot"_a, "axis"_a, "name"_a, "Add a named dim whose size is that of an input's axis.")
      .def(
          "add_size",
          [](ProgramSpec& s, int32_t slot, int32_t axis, int64_t size) {
            s.sizes.push_back({slot, axis, size});
          },
          "slot"_a, "axis"_a, "size"_a, "Add a size that an input's axis must have.")
      .def("add_constant", add_constant, "slot"_a, "dtype"_a, "dims"_a, "address"_a)
      .def("add_segment", add_segment, "spec"_a, "frees"_a, "Consumes the segment.")
      .def("add_control", add_control, "spec"_a, "resolved_names"_a, "frees"_a,
           "Consumes the control flow; `resolved_names` are the (slot, axis, name) whose sizes are "
           "known after it.");
}

}  // namespace

void bind_specs(nb::module_& m) {
  nb::exception<MalformedProgram>(m, "MalformedProgram");
  m.attr("max_rank") = kMaxRank;
  bind_kinds(m);
  bind_segments(m);
  bind_control(m);
  bind_programs(m);
}

}  // namespace sdx
