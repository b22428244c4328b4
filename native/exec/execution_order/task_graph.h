// Tasks as flat lists of integers (compressed sparse rows), numbered by the given order.
#pragma once

#include <span>

#include "exec/execution_order.h"

namespace sdx::ordering {

// Lists of integers stored one after another: list i is items[begin[i], begin[i + 1]).
struct ListOfLists {
  std::vector<int32_t> begin{0}, items;

  std::span<const int32_t> operator[](int32_t i) const {
    return {items.data() + begin[size_t(i)], items.data() + begin[size_t(i) + 1]};
  }
  int32_t count() const { return int32_t(begin.size()) - 1; }
  void close() { begin.push_back(int32_t(items.size())); }
};

// For each integer below `n`, the lists that contain it.
ListOfLists inverse(const ListOfLists& lists, int32_t n);

struct InPlacePair {
  int32_t from, to;
};

// Task i is the i-th of the given order, so predecessors have lower numbers. Lists have no
// duplicates, and buffers of zero bytes are left out of `touches`.
struct TaskGraph {
  TaskGraph(const Tasks& tasks, const std::vector<int32_t>& given);

  int32_t n_tasks() const { return int32_t(scratch.size()); }
  int32_t n_buffers() const { return int32_t(sizes.size()); }
  std::span<const InPlacePair> in_place_of(int32_t task) const {
    return {in_place.data() + in_place_begin[size_t(task)],
            in_place.data() + in_place_begin[size_t(task) + 1]};
  }

  std::vector<int64_t> sizes, scratch;
  ListOfLists preds, succs;    // of tasks
  ListOfLists touches, users;  // of tasks, of buffers
  std::vector<int32_t> in_place_begin{0};
  std::vector<InPlacePair> in_place;  // only pairs of equal sizes
};

// A lower bound of every order's peak: the most that a single task needs by itself.
int64_t largest_task_need(const TaskGraph& graph);

// Whether the tasks form a chain, which has only one topological order.
bool has_single_order(const TaskGraph& graph);

}  // namespace sdx::ordering
