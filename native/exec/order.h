// The order of tasks that needs the least memory.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace sdx {

// A buffer is alive from the first to the last task that touches it, both included. Scratch is
// alive during its task only. Where a task is the last to touch an input and the first to touch an
// output of the same size, and lists the two as a pair, they are the same bytes in that step; pairs
// count in the order in which they are listed, each buffer once as input and once as output.
struct Task {
  std::vector<int32_t> preds, touches;
  std::vector<std::pair<int32_t, int32_t>> shares;  // (input, output)
  int64_t scratch = 0;
};

struct Tasks {
  std::vector<int64_t> sizes;  // bytes of each buffer
  std::vector<Task> tasks;
};

constexpr int kMaxEffort = 3;

// Throws std::invalid_argument unless all numbers are in range and `order` is a legal order.
void check(const Tasks& tasks, const std::vector<int32_t>& order);

// The most bytes that are alive in a step of the order.
int64_t peak_of(const Tasks& tasks, const std::vector<int32_t>& order);

// A legal order whose peak is as low as a search finds it, and never above that of `given`, which
// is returned where nothing is gained. The work is bounded by counts, near-linear in the tasks;
// each effort above 0 allows about ten times more.
std::vector<int32_t> least_peak(const Tasks& tasks, const std::vector<int32_t>& given, int effort);

}  // namespace sdx
