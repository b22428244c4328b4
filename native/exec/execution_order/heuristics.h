// Orders of a subproblem of any size by greedy rules, in near-linear time. They replace a bad order
// of a range that is too large for search.h.
#pragma once

#include "exec/execution_order/search.h"

namespace sdx::ordering {

// Always runs the ready cluster that lowers the live bytes most (or raises them least); ties by
// number.
SearchResult greedy_order(const Subproblem& subproblem);

// Continues with the readers of the oldest values, and runs what else these readers need right
// before them, so that no value waits long for its readers.
SearchResult oldest_value_first(const Subproblem& subproblem);

}  // namespace sdx::ordering
