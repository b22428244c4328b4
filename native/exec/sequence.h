// A sequence: segments and control flow over one set of slots and names, run without Python.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "exec/segment.h"

namespace sdx {

class Sequence;

// A name that the shape of a slot gives.
struct NameOf {
  int32_t slot, axis, name;
};

// A size that the shape of a slot must have.
struct SizeOf {
  int32_t slot, axis;
  int64_t size;
};

// A body of a control-flow node. The inputs of its program are those of the body, then what it
// takes from outside.
struct Body {
  std::shared_ptr<const Sequence> program;
  std::vector<int32_t> captures;                         // slots outside
  std::vector<std::pair<int32_t, int32_t>> known_names;  // name outside, name inside
};

// Values of all passes, put together along an axis.
struct Stacked {
  DType dtype;
  int rank;                // of one of them
  int64_t dims[kMaxRank];  // where there was no pass; 0 for what is not known
  int axis;
  bool is_reversed;
  bool is_joined;    // along an axis that all of them have, on which their sizes may differ
  bool needs_parts;  // fails where there was no pass
};

// A tensor that is cut into one part for each pass.
struct Cut {
  int axis;
  bool is_reversed;
};

enum class ControlKind : uint8_t { branch, loop, scan };

// If, Loop or Scan, in slots of the sequence that it stands in.
struct Control {
  ControlKind kind;
  int number = 0;                        // for outcomes
  std::vector<Body> bodies;              // branch: then, else; others: one
  std::vector<int32_t> inputs, outputs;  // slots; -1: not given
  std::vector<Stacked> stacked;          // the last outputs of loop and scan
  std::vector<Cut> cuts;                 // the last inputs of scan
};

// A constant that is an output as it is.
struct FixedSlot {
  int32_t slot;
  View view;
};

struct Item {
  std::unique_ptr<Segment> segment;  // or, where there is none:
  std::unique_ptr<Control> control;
  std::vector<NameOf> gives;   // names that are known after it
  std::vector<int32_t> frees;  // slots that nobody reads after it
};

struct SequenceSpec {
  SequenceSpec() = default;
  SequenceSpec(SequenceSpec&&) = default;  // items cannot be copied

  int n_slots = 0, n_names = 0;
  std::vector<int32_t> inputs, outputs;  // slots
  std::vector<int> ranks;                // of the inputs
  std::vector<DType> dtypes;
  std::vector<int> room_axes;  // along which an input may have room; -1: none
  std::vector<NameOf> names;   // that the inputs give
  std::vector<SizeOf> sizes;   // that the inputs must have
  std::vector<FixedSlot> constants;
  std::vector<Item> items;
};

class Sequence {
 public:
  explicit Sequence(SequenceSpec spec) : spec_(std::move(spec)) {}

  // Names from the shapes of the inputs, which are in their slots. Fault::name where a name has two
  // sizes or a size is not what it must be: `index` is the slot.
  Outcome bind_names(RunState& state) const;

  Outcome run(RunState& state) const;

  // A run as a body: `inputs` are those of the body, what it takes from outside is in `outer`.
  Outcome run_body(const Body& body, std::vector<Slot> inputs, const RunState& outer,
                   std::vector<Slot>& outputs) const;

  // What a run of one of its segments, or of one in its bodies, takes with these names; nothing
  // where there is no such segment, or a size is not known.
  std::optional<MemoryReport> memory(int number, const std::vector<int64_t>& names) const;

  const SequenceSpec& spec() const { return spec_; }
  RunState fresh_state() const;

 private:
  SequenceSpec spec_;
};

// Runs If, Loop or Scan on the slots of `state`.
Outcome run_control(const Control& control, RunState& state);

}  // namespace sdx
