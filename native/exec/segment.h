// A segment: a list of kernel calls whose sizes are all known once the named dims in its key are.
//
// SegmentSpec is what Python flattens a graph into (program/segment_builder.py): a register program
// for all sizes, values with their storage, and steps over value numbers. check.h validates it.
// A run
//   1. resolves sizes that depend on data (`Kernel::resolve`),
//   2. looks up or makes the specialization for its sizes (specialization.h): views, kernel plans,
//      execution order and memory plan; the last kMaxSpecializations are cached,
//   3. allocates arena and outputs and runs the steps (runner.h).
//
// Thread-safe: any number of concurrent runs. `recent_mutex_` guards `recent_`; `specializing_`
// guards `choice_` and lets one specialization be made at a time. A thread that needs both locks
// `specializing_` first.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "exec/fork_mutex.h"
#include "exec/run_state.h"
#include "exec/sizes.h"

namespace sdx {

// Where the bytes of a value are. Values from `reshaped` on have no memory of their own: they are
// in the bytes of value `at`. Up to `expanded` they are views, which no step writes.
enum class Storage : uint8_t {
  slot,      // an input: slot `at` of the run
  constant,  // at the fixed address `data`
  arena,     // written by a step, dead before the segment ends
  exported,  // written by a step, in a block of its own that goes to slot `at`; `numbers` are
             // empty, or the axis along which it has spare capacity and the register of that
             // capacity
  reshaped,  // a view, like those up to `expanded`
  permuted,  // `numbers` are the axes
  sliced,    // `numbers` are registers of starts, then the steps
  expanded,
  concat_slice,  // written by a step, directly into the Concat output `at` (joined along its last
                 // axis); `numbers` are the register of its start on that axis
  updated,       // written by a step over the input `at`, which the caller owns: its next version
};

struct ValueSpec {
  Storage storage;
  DType dtype;
  int32_t at = 0;
  const void* data = nullptr;
  std::vector<int32_t> dims;  // registers
  std::vector<int64_t> numbers;
};

struct StepSpec {
  const Kernel* kernel;
  std::vector<int32_t> inputs, outputs;  // values; -1: an optional input that is absent
  std::vector<int32_t> ints;             // registers
  std::vector<double> floats;
  // (input, output) pairs that the kernel can compute in place: each output element depends on the
  // input element at the same position only, or the kernel reads the input before it writes.
  std::vector<std::pair<int32_t, int32_t>> in_place;
  std::vector<int32_t>
      permutation;         // the output's axes in terms of in-place inputs' axes, or empty
  bool is_concat = false;  // its inputs may be written into the output directly, along axis ints[0]
};

// A named dim whose size a step resolves from data: an axis of one of the step's outputs.
struct ResolvedName {
  int32_t step, output, axis, name;
};

// A slot that gets the bytes of an exported value in another shape.
struct Alias {
  int32_t slot, value;
};

// An output that is an input with rows appended along an axis: a key/value cache. See
// cache_growth.h.
struct Growth {
  int32_t from, to;  // slots
  int32_t axis;
  int32_t rows;                        // the register of the output's rows
  int32_t capacity_from, capacity_to;  // names: rows that fit into the blocks of input and output
  bool has_spare;  // new blocks reserve rows: the input takes any number of them
};

struct SegmentSpec {
  int number = 0;  // identifies the segment in outcomes and profiles
  std::vector<SizeOp> sizes;
  std::vector<Guard> guards;
  std::vector<int32_t> names;  // the named dims that decide all sizes: the key of a specialization
  std::vector<ValueSpec> values;
  std::vector<StepSpec> steps;
  std::vector<ResolvedName> resolved;
  std::vector<Alias> aliases;
  std::vector<Growth> growths;
  int effort = 0;  // of the search for an execution order; below 0 steps run in the listed order
  bool parallel_branches = false;  // ORT_PARALLEL: independent small steps run concurrently
  // The run owns its inputs: it releases each after its last reader, and allocates outputs and
  // large values right before their first writer. For the backward graphs of training, whose inputs
  // are the activations.
  bool consumes_inputs = false;
  std::vector<int32_t> held_inputs;  // values that the caller keeps: parameters
};

// A value in the arena: its bytes, its offset, and the first and last position of the execution
// order that needs it.
struct ValueSpan {
  int32_t value;
  int64_t bytes, offset;
  int32_t start, end;
  int32_t output_slot = -1;  // not in the arena but in the block of this output, written later
  int32_t own_block = -1;    // not in the arena but in this block of the run
};

// What `resolve` cached, by step number.
using ResolveCaches = std::vector<std::pair<int32_t, std::vector<int64_t>>>;

// The memory of one run of a segment.
struct MemoryReport {
  std::vector<int32_t> order;  // steps in execution order
  std::vector<ValueSpan> values;
  std::vector<ValueSpan> scratch;                     // `value` is the step
  std::vector<std::pair<int32_t, int64_t>> exported;  // slot, bytes
  int64_t arena_bytes, lower_bound, local_bytes;
};

struct Specialization;
struct PlanChoice;
struct Dependencies;

class Segment {
 public:
  explicit Segment(SegmentSpec spec);
  ~Segment();

  Outcome run(RunState& state) const;

  // The memory that a run with the names of `state` takes; nothing where a size is unknown or out
  // of range.
  std::optional<MemoryReport> memory(RunState state) const;

  const SegmentSpec& spec() const { return spec_; }

 private:
  std::shared_ptr<const Specialization> cached_for(const RunState& state) const;
  std::shared_ptr<const Specialization> specialization_for(RunState& state, Outcome& outcome) const;
  Outcome resolve(RunState& state, ResolveCaches& caches) const;

  SegmentSpec spec_;
  std::vector<int32_t> early_guards_;  // checked before sizes are resolved from data
  std::unique_ptr<const Dependencies> dependencies_;
  // Declaration order is the lock order on fork (fork_mutex.h).
  mutable ForkMutex specializing_;
  mutable std::unique_ptr<PlanChoice> choice_;
  mutable ForkMutex recent_mutex_;
  mutable std::vector<std::shared_ptr<const Specialization>> recent_;  // least recently used first
};

}  // namespace sdx
