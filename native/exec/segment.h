// A segment: steps whose sizes are all known once the dims in its key are, run in one go.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "exec/block.h"
#include "exec/fork_mutex.h"
#include "exec/memory.h"
#include "exec/pool.h"
#include "exec/sizes.h"
#include "exec/texts.h"
#include "kernels/kernel.h"

namespace sdx {

// How a value comes by its bytes.
enum class Storage : uint8_t {
  slot,      // an input: in the frame's slot `at`
  constant,  // at a fixed address
  arena,     // made by a step, dead before the segment ends
  exported,  // made by a step, in a block of its own that goes to slot `at`; `numbers` are empty,
             // or the axis along which it has room and the register of how much
  reshaped,  // a view of the value `at`, as are all that follow
  permuted,  // `numbers` are the axes
  sliced,    // `numbers` are registers of starts, then the steps
  expanded,
  part,  // made by a step, in the bytes of the value `at`, which is joined along its last axis;
         // `numbers` are the register of where in it
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
  std::vector<int32_t> inputs, outputs;  // values; -1: not given
  std::vector<int32_t> ints;             // registers
  std::vector<double> floats;
  std::vector<std::pair<int32_t, int32_t>> shares;  // (input, output) that may be the same bytes
  std::vector<int32_t> permutation;  // axes of inputs that share, in the output's order; or empty
  bool joins = false;  // inputs may be written directly into the output, along axis ints[0]
};

// A name that a resolving step settles: the axis of one of its outputs.
struct ResolvedName {
  int32_t step, output, axis, name;
};

// A slot that gets the bytes of an exported value in another shape.
struct Alias {
  int32_t slot, value;
};

// An output that is an input with more rows along an axis: a cache of keys or values. It is made
// with room for rows to come; fed back, the next run puts them behind without copying the others.
// The rooms are sizes: the rows that fit into the block of the input, and of the output.
struct Growth {
  int32_t from, to;  // slots
  int32_t axis;
  int32_t rows;                // the register of the output's rows
  int32_t room_from, room_to;  // names
};

struct SegmentSpec {
  int number = 0;  // for outcomes and moments
  std::vector<SizeOp> sizes;
  std::vector<Guard> guards;
  std::vector<int32_t> names;  // those that decide all sizes: the key of a binding
  std::vector<ValueSpec> values;
  std::vector<StepSpec> steps;
  std::vector<ResolvedName> resolved;
  std::vector<Alias> aliases;
  std::vector<Growth> growths;
  int effort = 0;         // of the search for an order; below 0 steps run as they are listed
  bool branches = false;  // whether small steps that do not need each other run at once
};

// The rows of a block with room for more. Whoever adds some claims them first, so that two runs
// that go on from the same rows do not write to the same place.
struct Room {
  int64_t rows = 0;  // that fit
  std::atomic<int64_t> used{0};

  // Rows [from, to) for the caller alone; false where they are taken or do not fit.
  bool claim(int64_t from, int64_t to) {
    return to <= rows && used.compare_exchange_strong(from, to);
  }
};

// A tensor between segments, with a hold on its bytes. Contiguous, but for the gaps of its room.
struct Slot {
  View view;
  std::byte* data = nullptr;
  std::shared_ptr<std::byte> block;  // empty for memory of the caller's
  std::shared_ptr<Room> room;        // of a tensor that may grow
};

enum class Fault : uint8_t { none, guard, size, step, memory, stopped, name, limit };

// How a run ended: at which guard or step (`index`) of which segment, and what its names were.
struct Outcome {
  Fault fault = Fault::none;
  int segment = 0;
  int index = 0;
  Status status;
  std::vector<int64_t> names;
  int64_t bytes = 0;  // that were wanted, for faults of memory
};

// When a step ran, which run of its segment that was, and in which of the chains that ran at once.
struct Moment {
  int segment, step, run, lane;
  int64_t begin_ns, end_ns;
};

// What profiles are made of.
struct Moments {
  std::vector<Moment> steps;
  std::vector<std::vector<int64_t>> names;  // by run of a segment: those of a body have their own
};

// Memory of the caller's for an output, used where the run makes just such a tensor in a block of
// its own. It overlaps nothing that the run reads.
struct Given {
  int32_t slot;
  View view;
  std::byte* data;
};

// Everything about one run that its segments share.
struct RunState {
  std::vector<Slot> slots;
  std::vector<int64_t> names;
  ThreadOptions threads;
  Pool* pool = nullptr;
  Texts* texts = nullptr;
  int64_t limit_bytes = INT64_MAX;  // for arena and outputs at once
  const RunState* outer = nullptr;  // of the run that this is the body of
  int64_t aside_bytes = 0;          // that a loop of this run holds, in no slot yet
  bool grows_in_place = true;
  bool (*should_stop)(void*) = nullptr;  // asked between steps
  void* stop_context = nullptr;
  Moments* moments = nullptr;
  std::vector<Given> given;
};

// So many bytes with those that a run and the runs around it hold already. Where there is no limit
// nobody asks, and they are not counted.
int64_t with_held(const RunState& state, int64_t bytes);

// A value in the arena: its bytes, where they lie, and the first and last position that needs them.
struct Span {
  int32_t value;
  int64_t bytes, offset;
  int32_t start, end;
  int32_t lent = -1;  // the slot of a value made later, in whose block it lies instead
};

// What resolving left, by the numbers of steps.
using FoundBySteps = std::vector<std::pair<int32_t, std::vector<int64_t>>>;

// The memory of one run of a segment.
struct MemoryReport {
  std::vector<int32_t> order;  // steps, as they run
  std::vector<Span> values;
  std::vector<Span> scratch;                          // `value` is the step
  std::vector<std::pair<int32_t, int64_t>> exported;  // slot, bytes
  int64_t arena_bytes, least_bytes, local_bytes;
};

struct Binding;
struct Choice;
struct Wiring;

class Segment {
 public:
  explicit Segment(SegmentSpec spec);
  ~Segment();

  Outcome run(RunState& state) const;

  // What a run with the names of `state` takes; nothing where a size is not known or cannot be.
  std::optional<MemoryReport> memory(RunState state) const;

  const SegmentSpec& spec() const { return spec_; }

 private:
  std::shared_ptr<const Binding> recent_for(const RunState& state) const;
  std::shared_ptr<const Binding> binding_for(RunState& state, Outcome& outcome) const;
  Outcome resolve(RunState& state, FoundBySteps& found) const;

  SegmentSpec spec_;
  std::vector<int32_t> early_guards_;  // to be checked before sizes are resolved
  std::unique_ptr<const Wiring> wiring_;
  mutable ForkMutex choosing_;  // one binding is made at a time; taken before `mutex_`
  mutable std::unique_ptr<Choice> choice_;
  mutable ForkMutex mutex_;
  mutable std::vector<std::shared_ptr<const Binding>> recent_;  // the latest used last
};

}  // namespace sdx
