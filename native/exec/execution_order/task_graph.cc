#include "exec/execution_order/task_graph.h"

#include <algorithm>

namespace sdx::ordering {

ListOfLists inverse(const ListOfLists& lists, int32_t n) {
  // A counting sort by item: count, prefix sums, fill.
  ListOfLists made;
  made.begin.assign(size_t(n) + 1, 0);
  made.items.resize(lists.items.size());
  for (const int32_t item : lists.items) ++made.begin[size_t(item) + 1];
  for (size_t i = 0; i < size_t(n); ++i) made.begin[i + 1] += made.begin[i];
  std::vector<int32_t> at(made.begin.begin(), made.begin.end() - 1);
  for (int32_t list = 0; list < lists.count(); ++list)
    for (const int32_t item : lists[list]) made.items[size_t(at[size_t(item)]++)] = list;
  return made;
}

TaskGraph::TaskGraph(const Tasks& tasks, const std::vector<int32_t>& given) : sizes(tasks.sizes) {
  const size_t n = given.size();
  // `*_seen` hold the last task that listed an item: the next task needs no reset to find
  // duplicates.
  std::vector<int32_t> number(n), pred_seen(n, -1), touch_seen(sizes.size(), -1);
  for (size_t i = 0; i < n; ++i) number[size_t(given[i])] = int32_t(i);
  scratch.reserve(n);
  for (int32_t i = 0; i < int32_t(n); ++i) {
    const Task& task = tasks.tasks[size_t(given[size_t(i)])];
    scratch.push_back(task.scratch);
    for (const int32_t p : task.preds) {
      const int32_t pred = number[size_t(p)];
      if (std::exchange(pred_seen[size_t(pred)], i) != i) preds.items.push_back(pred);
    }
    preds.close();
    for (const int32_t b : task.touches)
      if (sizes[size_t(b)] > 0 && std::exchange(touch_seen[size_t(b)], i) != i)
        touches.items.push_back(b);
    touches.close();
    for (const auto& [from, to] : task.in_place)
      if (sizes[size_t(from)] == sizes[size_t(to)] && sizes[size_t(to)] > 0)
        in_place.push_back({from, to});
    in_place_begin.push_back(int32_t(in_place.size()));
  }
  succs = inverse(preds, int32_t(n));
  users = inverse(touches, n_buffers());
}

int64_t largest_task_need(const TaskGraph& graph) {
  int64_t most = 0;
  std::vector<int32_t> taken(graph.sizes.size(), -1);
  for (int32_t t = 0; t < graph.n_tasks(); ++t) {
    int64_t bytes = graph.scratch[size_t(t)];
    for (const int32_t b : graph.touches[t]) bytes += graph.sizes[size_t(b)];
    // Optimistic: every output that could be written in place is, each counted once.
    for (const InPlacePair& pair : graph.in_place_of(t))
      if (std::exchange(taken[size_t(pair.to)], t) != t) bytes -= graph.sizes[size_t(pair.to)];
    most = std::max(most, bytes);
  }
  return most;
}

bool has_single_order(const TaskGraph& graph) {
  for (int32_t t = 1; t < graph.n_tasks(); ++t)
    if (std::ranges::find(graph.preds[t], t - 1) == graph.preds[t].end()) return false;
  return true;
}

}  // namespace sdx::ordering
