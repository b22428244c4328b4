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
//   - offsets by first fit, by decreasing size and in a few other orders (offsets.h), for what is
//     left.
// The search runs when sizes are known, not when a model is compiled: only then are sizes, scratch,
// copies and in-place steps all known. Pure functions; the caller guards `PlanChoice`.
#pragma once

#include <vector>

#include "exec/buffer_lifetimes.h"
#include "exec/offsets.h"

namespace sdx {

// Decisions that serve later sizes too: an execution order, the elided Concats, the order in which
// lifetimes get their offsets, and how many outputs' blocks hold arena values.
struct PlanChoice {
  std::vector<int32_t> order;
  std::vector<char> is_elided;  // by Concat
  AllocationOrder allocation_order;
  size_t n_output_blocks = 0;
  int64_t searched_bytes = -1;  // live_bytes of the plan it was found for; -1: none yet
};

struct MemoryPlan {
  std::vector<int32_t> order;  // steps
  ParallelGroups groups;
  std::vector<int64_t> offsets;      // by value
  std::vector<int32_t> output_slot;  // by value: the output in whose block it is; -1: the arena
  std::vector<int64_t> scratch;      // offsets, by step
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
