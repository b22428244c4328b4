// Tasks in flat lists, numbered by the order given.
#pragma once

#include <span>

#include "exec/order.h"

namespace sdx::ordering {

// Lists of numbers, one after another.
struct Lists {
  std::vector<int32_t> begin{0}, items;

  std::span<const int32_t> operator[](int32_t i) const {
    return {items.data() + begin[size_t(i)], items.data() + begin[size_t(i) + 1]};
  }
  int32_t count() const { return int32_t(begin.size()) - 1; }
  void close() { begin.push_back(int32_t(items.size())); }
};

// For each number below `n`, the lists that hold it.
Lists inverse(const Lists& lists, int32_t n);

struct Share {
  int32_t from, to;
};

// Task i is the i-th of the order given, so predecessors have lower numbers. No list names anything
// twice, and buffers without bytes are touched by nobody.
struct Flow {
  Flow(const Tasks& tasks, const std::vector<int32_t>& given);

  int32_t n_tasks() const { return int32_t(scratch.size()); }
  int32_t n_buffers() const { return int32_t(sizes.size()); }
  std::span<const Share> shares_of(int32_t task) const {
    return {shares.data() + share_begin[size_t(task)],
            shares.data() + share_begin[size_t(task) + 1]};
  }

  std::vector<int64_t> sizes, scratch;
  Lists preds, succs;       // of tasks
  Lists touches, touchers;  // of tasks, of buffers
  std::vector<int32_t> share_begin{0};
  std::vector<Share> shares;  // between buffers of equal sizes
};

// No order has a lower peak: the most that a single task needs for itself.
int64_t least_need(const Flow& flow);

// Whether there is no other order.
bool is_forced(const Flow& flow);

}  // namespace sdx::ordering
