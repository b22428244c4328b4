// The search for an order of the pieces of a part.
#pragma once

#include "exec/order/part.h"

namespace sdx::ordering {

constexpr int32_t kMostPieces = 256;  // of a part that is searched

struct Found {
  std::vector<int32_t> order;  // of the part's pieces; empty: none
  int64_t peak = 0;
  bool is_least = false;  // no order has a lower peak, down to the floor
};

struct Limits {
  int64_t floor;  // peaks below it are as good as it
  int64_t below;  // peaks from here on are of no use
  int64_t work;   // costs of pieces that may be found
};

// Looks at sets of pieces that are done, those with the lowest peak first. Adds what it does to
// `work`.
Found search_all(const Part& part, Limits limits, int64_t& work);

// Keeps the best sets of each number of pieces; the work is about proportional to the width.
Found search_best(const Part& part, Limits limits, int width, int64_t& work);

}  // namespace sdx::ordering
