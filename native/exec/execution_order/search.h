// Searches for an order of one subproblem (at most kMaxClusters clusters).
//
// A state is the set of finished clusters: the live bytes depend only on the set, so of several
// orders that reach one set only the one with the lowest peak matters. Both searches first run, at
// no loss, every ready cluster that neither raises the live bytes nor needs more than the bound
// (see `run_free`).
#pragma once

#include "exec/execution_order/subproblem.h"

namespace sdx::ordering {

constexpr int32_t kMaxClusters = 256;  // sets are bit sets of up to four 64-bit words

struct SearchResult {
  std::vector<int32_t> order;  // of the subproblem's clusters; empty: none found
  int64_t peak = 0;
  bool is_optimal = false;  // proven: no order has a lower peak that is above the floor
};

struct Limits {
  int64_t lower_bound;  // a peak at or below it is good enough
  int64_t upper_bound;  // exclusive: orders with this peak or a higher one are of no use
  int64_t work;         // cluster costs that may be computed
};

// Best-first branch and bound over sets, lowest bound first, with a transposition table. Finds the
// optimum, or proves that none is below `limits.upper_bound`, unless the work runs out. Adds its
// work to `work`.
SearchResult best_first_search(const Subproblem& subproblem, Limits limits, int64_t& work);

// Beam search: keeps the `width` best sets of each cardinality. Work grows with the width.
SearchResult beam_search(const Subproblem& subproblem, Limits limits, int width, int64_t& work);

}  // namespace sdx::ordering
