// A native program: segments and control flow over one set of slots and named dims, run without
// Python. Bodies of If, Loop and Scan are programs too.
//
// Immutable after construction and thread-safe: each run has a RunState of its own, and segments
// synchronize their caches.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "exec/segment.h"

namespace sdx {

class Program;

// A named dim whose size is that of an axis of a slot.
struct NamedDim {
  int32_t slot, axis, name;
};

// A fixed size that an axis of a slot must have.
struct FixedDim {
  int32_t slot, axis;
  int64_t size;
};

// A body of a control-flow node. Its program's inputs are those of the ONNX body, then its
// captures.
struct Body {
  std::shared_ptr<const Program> program;
  std::vector<int32_t> captures;                         // slots of the outer program
  std::vector<std::pair<int32_t, int32_t>> known_names;  // (name outside, name inside)
};

// A scan output of Loop or Scan: the values of all iterations, stacked along a new axis or
// concatenated along an existing one.
struct ScanOutput {
  DType dtype;
  int rank;                // of the value of one iteration
  int64_t dims[kMaxRank];  // of that value if there is no iteration; 0 where unknown
  int axis;
  bool is_reversed;
  bool is_concatenated;   // along `axis`, on which the sizes of iterations may differ
  bool needs_iterations;  // without any, the run fails
};

// A scan input of Scan: iteration i gets the slice i along an axis.
struct ScanInput {
  int axis;
  bool is_reversed;
};

enum class ControlKind : uint8_t { branch, loop, scan };

// An If, Loop or Scan over slots of the program that contains it.
struct ControlNode {
  ControlKind kind;
  int number = 0;                        // identifies it in outcomes
  std::vector<Body> bodies;              // branch: then, else; others: one
  std::vector<int32_t> inputs, outputs;  // slots, as ONNX orders them; -1: absent
  std::vector<ScanOutput> scan_outputs;  // the last outputs of loop and scan
  std::vector<ScanInput> scan_inputs;    // the last inputs of scan
};

// A constant that is itself an output of the program.
struct ConstantSlot {
  int32_t slot;
  View view;
};

// One element of a program's list: a segment or a control-flow node.
struct ProgramItem {
  std::unique_ptr<Segment> segment;  // null: `control` is set
  std::unique_ptr<ControlNode> control;
  std::vector<NamedDim> resolved_names;  // whose sizes are known from its outputs
  std::vector<int32_t> frees;            // slots that it is the last to read
};

struct ProgramSpec {
  ProgramSpec() = default;
  ProgramSpec(ProgramSpec&&) = default;  // items cannot be copied

  int n_slots = 0, n_names = 0;
  std::vector<int32_t> inputs, outputs;  // slots
  std::vector<int> ranks;                // of the inputs
  std::vector<DType> dtypes;             // of the inputs
  std::vector<int> capacity_axes;        // axis along which an input may have spare rows; -1: none
  std::vector<NamedDim> names;           // named dims of the inputs
  std::vector<FixedDim> sizes;           // required dims of the inputs
  std::vector<ConstantSlot> constants;
  std::vector<ProgramItem> items;
};

class Program {
 public:
  explicit Program(ProgramSpec spec) : spec_(std::move(spec)) {}

  // Sets the named dims from the shapes of the inputs in their slots. Fault::name where a name gets
  // two sizes or a fixed size differs: `index` is the slot.
  Outcome bind_names(RunState& state) const;

  Outcome run(RunState& state) const;

  // Runs this program as a body, with `inputs` of the ONNX body and captures from `outer`.
  Outcome run_body(const Body& body, std::vector<Slot> inputs, const RunState& outer,
                   std::vector<Slot>& outputs) const;

  // The memory of one segment, here or in a body, for these sizes of named dims; nothing where
  // there is no such segment or a size is unknown.
  std::optional<MemoryReport> memory(int number, const std::vector<int64_t>& names) const;

  const ProgramSpec& spec() const { return spec_; }
  RunState new_state() const;

 private:
  ProgramSpec spec_;
};

// Runs an If, Loop or Scan on the slots of `state`.
Outcome run_control(const ControlNode& control, RunState& state);

}  // namespace sdx
