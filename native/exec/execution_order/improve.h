// Lowers the peak of an order: cuts it into independent ranges and searches the worst ones.
//
// 1. Cut the order at positions where everything before must precede everything after: the ranges
//    are independent, and the peak is the maximum over them.
// 2. Give ranges that are too large for a search a heuristic order, then search windows of them.
// 3. Search the ranges, the one with the highest peak first, until one cannot be improved: it then
//    bounds the peak of the whole order.
// 4. Spend what is left of the work on wider and wider windows around the peak.
#pragma once

#include "exec/execution_order/subproblem.h"

namespace sdx::ordering {

// Leaves `order` with the lowest peak that is found; a peak of `lower_bound` is low enough.
void improve(MeasuredOrder& order, const ClusterGraph& clusters, int64_t lower_bound, int effort);

}  // namespace sdx::ordering
