// Tasks in flat lists, numbered by the order given, and an order of them in the making.
#pragma once

#include <span>

#include "exec/order.h"

namespace sdx {

// Lists of numbers, one after another.
struct Lists {
  std::vector<int32_t> begin{0}, items;

  std::span<const int32_t> operator[](int32_t i) const {
    return {items.data() + begin[size_t(i)], items.data() + begin[size_t(i) + 1]};
  }
  void close() { begin.push_back(int32_t(items.size())); }
};

// For each number below `n`, the lists that hold it.
Lists inverse(const Lists& lists, int32_t n);

struct Share {
  int32_t from, to;
};

// Tasks of an order given: task i is the i-th of it, so predecessors have lower numbers. No list
// names anything twice.
struct Flow {
  explicit Flow(const Tasks& tasks, const std::vector<int32_t>& given);

  int32_t n_tasks() const { return int32_t(scratch.size()); }
  int32_t n_buffers() const { return int32_t(sizes.size()); }

  std::vector<int64_t> sizes, scratch;
  Lists preds, succs;       // of tasks
  Lists touches, touchers;  // of tasks, of buffers
  std::vector<int32_t> share_begin{0};
  std::vector<Share> shares;  // of equal sizes, by task
};

// What is alive after some of the tasks.
class Walk {
 public:
  explicit Walk(const Flow& flow);

  int64_t level() const { return level_; }
  bool is_ready(int32_t task) const { return waits_[size_t(task)] == 0; }

  // Bytes that a task needs beyond the level, and those by which it changes the level. Both only
  // fall while other tasks are done.
  struct Cost {
    int64_t rise, change;
  };
  Cost cost(int32_t task) const;

  // Does a task; the tasks whose cost it changes.
  std::vector<int32_t> take(int32_t task);

 private:
  int64_t shared(int32_t task) const;
  bool is_first(int32_t b) const { return left_[size_t(b)] == int32_t(flow_.touchers[b].size()); }

  const Flow& flow_;
  int64_t level_ = 0;
  std::vector<int32_t> waits_;  // predecessors to come, by task
  std::vector<int32_t> left_;   // touches to come, by buffer
};

}  // namespace sdx
