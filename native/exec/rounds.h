// Which steps of an order run at once: chains of small ones that do not need each other, each on a
// thread of its own. Larger steps are shared out among all threads, one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/wiring.h"

namespace sdx {

// What steps cost, for who lets branches run at once.
struct Costs {
  static constexpr int64_t kAlone = -1;  // a step that others wait for
  std::vector<int64_t> work;             // by step: nanoseconds on one thread; empty: all are alone
  std::vector<int64_t> bytes;            // by step, that it writes
  int threads = 1;
};

// By position in the order.
struct Rounds {
  std::vector<int32_t> begin, end;  // the first and the last position of its round
  std::vector<int32_t> lane;        // the chain that it is part of, the longest first
};

Rounds make_rounds(const Wiring& wiring, const Costs& costs, const std::vector<int32_t>& order);

}  // namespace sdx
