// Search for an execution order of least peak memory, over abstract tasks: steps of a segment
// (exec/memory_plan.cc) or nodes of a graph with estimated sizes (schedule/least_peak.py).
//
// The problem is a generalized pebble game and NP-hard; Liu's algorithm solves trees only. The
// search (execution_order/) therefore combines an exact reduction with bounded searches:
//   task_graph.h     the tasks as flat lists, numbered by the given order
//   merge_tasks.h    exact contraction: the bytes alive after a set of tasks are submodular in the
//                    set, so some neighbours can be merged without losing an optimal order
//   cluster_graph.h  the merged tasks (clusters) with what each needs and changes
//   improve.h        cuts the order into independent ranges and searches the worst ones first
//   search.h         beam search, then best-first branch and bound over sets of finished clusters
//   heuristics.h     greedy orders for ranges that are too large to search
//
// The search is worth 27.8 -> 6.8 MB for the decoder of T5 and 87 -> 60 MB for Swin-T, nothing for
// chains, and takes 0.1 to 3 % of the time that a model takes to compile.
//
// All work is bounded by counts, never by a clock: equal input gives an equal order everywhere.
// Thread-safe: there is no shared state.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace sdx {

// A buffer is alive from the first to the last task that touches it, both included. Scratch is
// alive during its task only. A pair (input, output) in `in_place` may share bytes: if the task is
// the last to touch the input and the first to touch the output, and both have the same size, the
// two count once in that task. Pairs are tried in the listed order, each buffer once as input and
// once as output.
struct Task {
  std::vector<int32_t> preds, touches;
  std::vector<std::pair<int32_t, int32_t>> in_place;  // (input, output)
  int64_t scratch = 0;
};

struct Tasks {
  std::vector<int64_t> sizes;  // bytes of each buffer
  std::vector<Task> tasks;
};

constexpr int kMaxEffort = 3;

// Throws std::invalid_argument unless all indices are in range and `order` is a topological order.
void check(const Tasks& tasks, const std::vector<int32_t>& order);

// The most bytes that are alive in any step of the order. A direct simulation, independent of the
// search's own bookkeeping, which decides whether a found order is accepted.
int64_t peak_of_order(const Tasks& tasks, const std::vector<int32_t>& order);

// A topological order with a low peak, never above that of `given`, which is returned where nothing
// is gained. The work is bounded by counts, near-linear in the tasks; each effort above 0 allows
// about ten times more.
std::vector<int32_t> least_peak_order(const Tasks& tasks, const std::vector<int32_t>& given,
                                      int effort);

}  // namespace sdx
