#include "exec/order/flow.h"

#include <algorithm>

namespace sdx::ordering {

Lists inverse(const Lists& lists, int32_t n) {
  Lists made;
  made.begin.assign(size_t(n) + 1, 0);
  made.items.resize(lists.items.size());
  for (const int32_t item : lists.items) ++made.begin[size_t(item) + 1];
  for (size_t i = 0; i < size_t(n); ++i) made.begin[i + 1] += made.begin[i];
  std::vector<int32_t> at(made.begin.begin(), made.begin.end() - 1);
  for (int32_t list = 0; list < lists.count(); ++list)
    for (const int32_t item : lists[list]) made.items[size_t(at[size_t(item)]++)] = list;
  return made;
}

Flow::Flow(const Tasks& tasks, const std::vector<int32_t>& given) : sizes(tasks.sizes) {
  const size_t n = given.size();
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
    for (const auto& [from, to] : task.shares)
      if (sizes[size_t(from)] == sizes[size_t(to)] && sizes[size_t(to)] > 0)
        shares.push_back({from, to});
    share_begin.push_back(int32_t(shares.size()));
  }
  succs = inverse(preds, int32_t(n));
  touchers = inverse(touches, n_buffers());
}

int64_t least_need(const Flow& flow) {
  int64_t most = 0;
  std::vector<int32_t> taken(flow.sizes.size(), -1);
  for (int32_t t = 0; t < flow.n_tasks(); ++t) {
    int64_t bytes = flow.scratch[size_t(t)];
    for (const int32_t b : flow.touches[t]) bytes += flow.sizes[size_t(b)];
    for (const Share& share : flow.shares_of(t))
      if (std::exchange(taken[size_t(share.to)], t) != t) bytes -= flow.sizes[size_t(share.to)];
    most = std::max(most, bytes);
  }
  return most;
}

bool is_forced(const Flow& flow) {
  for (int32_t t = 1; t < flow.n_tasks(); ++t)
    if (std::ranges::find(flow.preds[t], t - 1) == flow.preds[t].end()) return false;
  return true;
}

}  // namespace sdx::ordering
