// The memory plan of a segment for concrete sizes: the execution order, which values are written in
// place of others, and the offset of everything in the arena. Combines, in this order:
//   - an execution order of low peak memory (execution_order.h) or the listed one, whichever gives
//     the smaller arena;
//   - Concat elision: inputs of a Concat are written into its output directly, where that pays;
//   - in-place steps: an output reuses the bytes of an input that dies there
//     (buffer_lifetimes.h);
//   - output block reuse: the block of an output holds arena values until its first write. Without
//     it, large outputs at the end (logits, gradients of embeddings) add to an arena that is idle
//     by then (the arena of GPT-2 has 3 MB instead of 21);
//   - or, in segments that consume their inputs, blocks of their own for large values: allocated
//     and freed during the run, as inputs and outputs are there, they take the memory that is live;
//   - offsets by first fit, by decreasing size and in a few other orders (offsets.h), for what is
//     left.
// The search runs when sizes are known, not when a model is compiled: only then are sizes, scratch,
// copies and in-place steps all known. Pure functions; the caller guards `PlanChoice`.
#pragma once

#include <vector>

#include "exec/buffer_lifetimes.h"
#include "exec/offsets.h"

namespace sdx {

// Decisions that serve later sizes too: an execution order, the elided Concats, and the order in
// which lifetimes get their offsets.
struct PlanChoice {
  std::vector<int32_t> order;
  std::vector<char> is_elided;  // by Concat
  AllocationOrder allocation_order;
  int64_t searched_bytes = -1;  // live_bytes of the plan it was found for; -1: none yet
};

// A block of the run, for the values and scratch that are alive in a range of positions.
struct OwnBlock {
  int64_t bytes;
  int32_t first, last;  // positions of the execution order
};

// Where bytes are: at an offset in the arena, in an own block or in the block of an output.
struct Placement {
  int64_t offset = 0;
  int32_t output_slot = -1;  // -1: not in an output
  int32_t own_block = -1;    // index into `own_blocks`; -1: in none
};

struct MemoryPlan {
  std::vector<int32_t> order;  // steps
  ParallelGroups groups;
  std::vector<Placement> values;
  std::vector<Placement> scratch;    // by step
  std::vector<OwnBlock> own_blocks;  // by first position
  int64_t bytes = 0;                 // of the arena
  int64_t live_bytes = 0;            // the peak, values in output blocks included
  Peak peak;                         // of what is in the arena
};

// Makes a plan. `effort` is that of least_peak_order; below 0 the steps run in the listed order. A
// choice is reused until a plan has more than kGrown times the live bytes it was found for.
MemoryPlan make_memory_plan(const Dependencies& dependencies, const MemoryNeeds& needs, int effort,
                            PlanChoice& choice);

// The first and last position at which each arena value is touched.
std::vector<ValueSpan> spans_of(const Dependencies& dependencies, const MemoryNeeds& needs,
                                const MemoryPlan& plan);

}  // namespace sdx
