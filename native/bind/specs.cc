// What Python builds programs of: typed records with named fields, each proven (exec/check.h) when
// it becomes part of a program.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "bind/parts.h"
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
  if (number < 0 || number > 255) throw MalformedProgram("an element type beyond a byte");
  return DType(number);
}

// The dims of a shape, which may have at most kMaxRank of them.
template <size_t n>
int copy_dims(const Longs& dims, int64_t (&into)[n]) {
  if (dims.size() > n)
    throw MalformedProgram("a value of rank " + std::to_string(dims.size()) + ", and " +
                           std::to_string(n) + " is the most");
  std::copy(dims.begin(), dims.end(), into);
  return int(dims.size());
}

std::vector<NameOf> names_of(const NameTuples& given) {
  std::vector<NameOf> made;
  for (const auto& [slot, axis, name] : given) made.push_back({slot, axis, name});
  return made;
}

void add_step(SegmentSpec& spec, const std::string& row, Ints inputs, Ints outputs, Ints ints,
              std::vector<double> floats, Pairs shares, Ints permutation, bool joins) {
  const Isa* isa = chosen_isa();
  const Kernel* kernel = isa == nullptr ? nullptr : find_kernel(*isa, row);
  if (kernel == nullptr) throw MalformedProgram("there is no kernel " + row);
  spec.steps.push_back({kernel, std::move(inputs), std::move(outputs), std::move(ints),
                        std::move(floats), std::move(shares), std::move(permutation), joins});
}

void add_constant(SequenceSpec& spec, int32_t slot, int dtype, const Longs& dims,
                  uintptr_t address) {
  View view;
  view.dtype = dtype_of(dtype);
  view.rank = copy_dims(dims, view.dims);
  view.pack();
  view.data = reinterpret_cast<const void*>(address);
  spec.constants.push_back({slot, view});
}

void add_stacked(Control& control, int dtype, const Longs& dims, int axis, bool is_reversed,
                 bool is_joined, bool needs_parts) {
  Stacked stacked{dtype_of(dtype), 0, {}, axis, is_reversed, is_joined, needs_parts};
  stacked.rank = copy_dims(dims, stacked.dims);
  control.stacked.push_back(stacked);
}

void add_input(SequenceSpec& spec, int32_t slot, int rank, int dtype, int room_axis) {
  spec.inputs.push_back(slot);
  spec.ranks.push_back(rank);
  spec.dtypes.push_back(dtype_of(dtype));
  spec.room_axes.push_back(room_axis);
}

void add_segment(SequenceSpec& sequence, SegmentSpec& spec, Ints frees) {
  check(spec, sequence.n_slots, sequence.n_names);
  Item item;
  item.segment = std::make_unique<Segment>(std::move(spec));
  item.frees = std::move(frees);
  sequence.items.push_back(std::move(item));
}

void add_control(SequenceSpec& sequence, Control& control, const NameTuples& gives, Ints frees) {
  check(control, sequence.n_slots, sequence.n_names);
  Item item;
  item.control = std::make_unique<Control>(std::move(control));
  item.gives = names_of(gives);
  item.frees = std::move(frees);
  sequence.items.push_back(std::move(item));
}

void add_body(Control& control, SequenceSpec& program, Ints captures, Pairs known_names) {
  check(program);
  control.bodies.push_back({std::make_shared<const Sequence>(std::move(program)),
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
  nb::enum_<Storage>(m, "Storage", "How a value of a segment comes by its bytes.")
      .value("SLOT", Storage::slot, "An input: the slot `at`.")
      .value("CONSTANT", Storage::constant, "At a fixed address.")
      .value("ARENA", Storage::arena, "Made by a step, dead before the segment ends.")
      .value("EXPORTED", Storage::exported, "Made by a step, in a block that goes to slot `at`.")
      .value("RESHAPED", Storage::reshaped, "A view of the value `at`, as are all that follow.")
      .value("PERMUTED", Storage::permuted, "`numbers` are the axes.")
      .value("SLICED", Storage::sliced, "`numbers` are registers of starts, then the steps.")
      .value("EXPANDED", Storage::expanded)
      .value("PART", Storage::part, "Made by a step, in the bytes of the Concat output `at`.");
  nb::enum_<ControlKind>(m, "ControlKind", "A kind of control flow.")
      .value("BRANCH", ControlKind::branch)
      .value("LOOP", ControlKind::loop)
      .value("SCAN", ControlKind::scan);
}

void bind_segments(nb::module_& m) {
  nb::class_<SegmentSpec>(m, "SegmentSpec", "A segment under construction.")
      .def(
          "__init__",
          [](SegmentSpec* self, int number, Ints key, int effort, bool branches) {
            new (self) SegmentSpec();
            self->number = number;
            self->names = std::move(key);
            self->effort = effort;
            self->branches = branches;
          },
          "number"_a, "key"_a, "effort"_a, "branches"_a,
          "`key` are the names that decide all sizes; `effort` is that of the search for an order.")
      .def(
          "add_size",
          [](SegmentSpec& s, SizeKind kind, int32_t a, int32_t b, int64_t value) {
            s.sizes.push_back({kind, a, b, value});
          },
          "kind"_a, "a"_a, "b"_a, "value"_a, "The next register.")
      .def(
          "add_guard",
          [](SegmentSpec& s, GuardKind kind, int32_t left, int32_t right) {
            s.guards.push_back({kind, left, right});
          },
          "kind"_a, "left"_a, "right"_a)
      .def(
          "add_value",
          [](SegmentSpec& s, Storage storage, int dtype, int32_t at, uintptr_t address, Ints dims,
             Longs numbers) {
            s.values.push_back({storage, dtype_of(dtype), at,
                                reinterpret_cast<const void*>(address), std::move(dims),
                                std::move(numbers)});
          },
          "storage"_a, "dtype"_a, "at"_a, "address"_a, "dims"_a, "numbers"_a,
          "The next value; `dims` are registers.")
      .def("add_step", add_step, "row"_a, "inputs"_a, "outputs"_a, "ints"_a, "floats"_a, "shares"_a,
           "permutation"_a, "joins"_a, "The next step: a kernel row on values; -1: not given.")
      .def(
          "add_resolved",
          [](SegmentSpec& s, int32_t step, int32_t output, int32_t axis, int32_t name) {
            s.resolved.push_back({step, output, axis, name});
          },
          "step"_a, "output"_a, "axis"_a, "name"_a, "A name that a step settles from data.")
      .def(
          "add_alias",
          [](SegmentSpec& s, int32_t slot, int32_t value) { s.aliases.push_back({slot, value}); },
          "slot"_a, "value"_a, "A slot that gets the bytes of an exported value in another shape.")
      .def(
          "add_growth",
          [](SegmentSpec& s, int32_t from, int32_t to, int32_t axis, int32_t rows,
             int32_t room_from,
             int32_t room_to) { s.growths.push_back({from, to, axis, rows, room_from, room_to}); },
          "source"_a, "target"_a, "axis"_a, "rows"_a, "room_from"_a, "room_to"_a,
          "An output that is an input with more rows: `rows` is a register, the rooms are names.");
}

void bind_sequences(nb::module_& m) {
  nb::class_<Control>(m, "ControlSpec", "An If, Loop or Scan under construction.")
      .def(
          "__init__",
          [](Control* self, ControlKind kind, int number, Ints inputs, Ints outputs) {
            new (self) Control{kind, number, {}, std::move(inputs), std::move(outputs), {}, {}};
          },
          "kind"_a, "number"_a, "inputs"_a, "outputs"_a, "Inputs and outputs are slots; -1: none.")
      .def("add_body", add_body, "program"_a, "captures"_a, "known_names"_a,
           "A body, which takes its program over: slots outside, (name outside, name inside).")
      .def("add_stacked", add_stacked, "dtype"_a, "dims"_a, "axis"_a, "is_reversed"_a,
           "is_joined"_a, "needs_parts"_a, "An output that collects what iterations give.")
      .def(
          "add_cut",
          [](Control& c, int axis, bool reversed) { c.cuts.push_back({axis, reversed}); }, "axis"_a,
          "is_reversed"_a, "An input that is cut into a slice for each iteration.");
  nb::class_<SequenceSpec>(m, "SequenceSpec", "Segments and control flow under construction.")
      .def(
          "__init__",
          [](SequenceSpec* self, int n_slots, int n_names) {
            if (n_slots < 0 || n_names < 0) throw MalformedProgram("a negative count");
            new (self) SequenceSpec();
            self->n_slots = n_slots;
            self->n_names = n_names;
          },
          "n_slots"_a, "n_names"_a)
      .def("add_input", add_input, "slot"_a, "rank"_a, "dtype"_a, "room_axis"_a)
      .def(
          "add_output", [](SequenceSpec& s, int32_t slot) { s.outputs.push_back(slot); }, "slot"_a)
      .def(
          "add_name",
          [](SequenceSpec& s, int32_t slot, int32_t axis, int32_t name) {
            s.names.push_back({slot, axis, name});
          },
          "slot"_a, "axis"_a, "name"_a, "A name that the shape of an input gives.")
      .def(
          "add_size",
          [](SequenceSpec& s, int32_t slot, int32_t axis, int64_t size) {
            s.sizes.push_back({slot, axis, size});
          },
          "slot"_a, "axis"_a, "size"_a, "A size that the shape of an input must have.")
      .def("add_constant", add_constant, "slot"_a, "dtype"_a, "dims"_a, "address"_a)
      .def("add_segment", add_segment, "spec"_a, "frees"_a, "Takes the segment over.")
      .def("add_control", add_control, "spec"_a, "gives"_a, "frees"_a,
           "Takes the control flow over; `gives` are (slot, axis, name) that are known after it.");
}

}  // namespace

void bind_specs(nb::module_& m) {
  nb::exception<MalformedProgram>(m, "MalformedProgram");
  m.attr("max_rank") = kMaxRank;
  bind_kinds(m);
  bind_segments(m);
  bind_sequences(m);
}

}  // namespace sdx
