// Buffers of a segment and their lifetimes in an execution order.
//
// A buffer is an arena value that holds its own bytes and those of the Concat inputs written into
// it. Buffers that a step writes in place of another form one allocation, identified by its first
// buffer (the owner).
#pragma once

#include <vector>

#include "exec/dependencies.h"
#include "exec/offsets.h"
#include "exec/parallel_groups.h"

namespace sdx {

// An input of a Concat that may be written into the output directly, at `offset` bytes.
struct ConcatInput {
  int32_t value, output;  // arena values
  int64_t offset;
};

// A step that may write the arena value `to` over its input `from`.
struct InPlaceStep {
  int32_t step, from, to;
};

// The block of a value that enters or leaves the segment. Until a step writes to the block of an
// output, it can hold others.
struct SlotBlock {
  int32_t slot;
  int64_t bytes;
  std::vector<int32_t> steps;  // that read the input or write to the output
};

// What a segment needs of memory at concrete sizes.
struct MemoryNeeds {
  std::vector<int64_t> bytes;    // by value: of arena values, multiples of kAlign; else 0
  std::vector<int64_t> scratch;  // by step, likewise
  std::vector<InPlaceStep> in_place;
  std::vector<std::vector<ConcatInput>> concats;  // by Concat step; empty where none can be elided
  std::vector<SlotBlock> output_blocks;
  bool consumes_inputs = false;         // as in SegmentSpec
  std::vector<SlotBlock> input_blocks;  // if it does
  StepCosts costs;
};

// In which buffer each value is stored, and how far from its beginning, for a choice of elided
// Concats.
struct BufferMap {
  std::vector<int32_t> buffer;  // by value: the arena value that holds its bytes
  std::vector<int64_t> offset;

  BufferMap(const MemoryNeeds& needs, const std::vector<char>& is_elided);

  // Whether the two values of an in-place step coincide once their buffers do, and the step touches
  // nothing else in these buffers, which it might read after writing.
  bool allows(const InPlaceStep& pair, const std::vector<int32_t>& touched) const;
};

// Lifetimes in an execution order. What a parallel group touches lives as long as the group, and
// nothing in it is written in place: its steps run in no particular order.
class BufferLifetimes {
 public:
  std::vector<Lifetime> lifetimes;  // of owners, then of scratch
  std::vector<int32_t> allocation;  // by lifetime: the owner, or n_values + the step
  std::vector<int32_t> owner;       // by buffer: the first buffer of its allocation
  std::vector<int32_t> position;    // by step: the first position of its parallel group
  Peak peak;

  BufferLifetimes(const Dependencies& dependencies, const MemoryNeeds& needs,
                  const BufferMap& buffers, const std::vector<int32_t>& order,
                  const ParallelGroups& groups);

  // Removes lifetimes that need no bytes of the arena.
  void remove(const std::vector<size_t>& indices);

 private:
  void apply_in_place(const Dependencies& dependencies, const MemoryNeeds& needs,
                      const BufferMap& buffers);
  void collect(const MemoryNeeds& needs);

  std::vector<int32_t> until_;         // by step: the last position of its parallel group
  std::vector<int32_t> first_, last_;  // by buffer: positions; -1: never touched
};

}  // namespace sdx
