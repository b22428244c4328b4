// A specialization: a segment prepared for concrete sizes. It has the plan of every kernel call,
// the execution order, and the location of every operand; a run only adds base addresses to
// offsets. Immutable once made, so runs on several threads share it.
#pragma once

#include <vector>

#include "exec/bump_allocator.h"
#include "exec/memory_plan.h"
#include "exec/segment.h"
#include "exec/views.h"

namespace sdx {

// Where an operand is stored: an offset from a base, which is a slot (>= 0), the arena, or an own
// block of the run.
struct Location {
  static constexpr int32_t kArena = -1;
  static constexpr int32_t kFixed = -2;      // a constant: `offset` is its address
  static constexpr int32_t kAbsent = -3;     // an optional operand that is absent
  static constexpr int32_t kOwnBlocks = -4;  // block i is kOwnBlocks - i
  int32_t base = kAbsent;
  int64_t offset = 0;

  int32_t own_block() const { return base <= kOwnBlocks ? kOwnBlocks - base : -1; }
};

struct PlannedStep {
  Plan plan;
  int32_t chain = 0;           // within its parallel group
  int32_t number = 0;          // in the segment's spec
  int32_t first_location = 0;  // of its inputs, then its outputs
  int32_t n_in = 0, n_out = 0;
  Location scratch;
};

// A value that leaves the segment in a slot.
struct ExportedValue {
  int32_t slot;
  int32_t root;  // the slot whose block it shares; usually its own
  View view;
  int64_t bytes;                   // of its block
  int32_t growth = -1;             // index into the segment's growths, for a cache
  int64_t rows = 0, capacity = 0;  // of a cache: rows that it has, and that fit into its block
  int32_t first_use = 0;  // position of the first step that uses its block, if inputs are consumed
};

// What the run releases after the step at a position: an input in a slot, or an own block.
struct LastUse {
  int32_t position, index;
};

struct Specialization {
  std::vector<int64_t> key;         // sizes of the segment's named dims
  std::vector<PlannedStep> steps;   // in execution order
  std::vector<int32_t> group_ends;  // by position: the last position of its parallel group
  std::vector<Location> locations;
  std::vector<ExportedValue> exports;  // by first use
  std::vector<LastUse> last_reads;     // of inputs, by position; empty unless they are consumed
  std::vector<OwnBlock> own_blocks;    // by first position
  std::vector<LastUse> own_ends;       // of own blocks, by position
  int64_t arena_bytes = 0;
  int64_t own_peak_bytes = 0;  // the most bytes of own blocks in use at once
  Peak peak;                   // of what is stored in the arena: a lower bound of arena_bytes
  int64_t local_bytes = 0;     // the most that any step needs per thread
  BumpAllocator plan_memory;   // arguments and tables of the kernel plans
};

// Specializes a segment for the names of `state`. Null where a guard, a size or a kernel refuses:
// `outcome` says which. `choice` carries decisions from one specialization to the next (see
// memory_plan.h). `spans`, if not null, gets the lifetime of each arena value.
std::shared_ptr<const Specialization> specialize(const SegmentSpec& spec,
                                                 const Dependencies& dependencies,
                                                 const RunState& state, PlanChoice& choice,
                                                 Outcome& outcome,
                                                 std::vector<ValueSpan>* spans = nullptr);

}  // namespace sdx
