#include "exec/flow.h"

#include <algorithm>

namespace sdx {

Lists inverse(const Lists& lists, int32_t n) {
  Lists made;
  made.begin.assign(size_t(n) + 1, 0);
  made.items.resize(lists.items.size());
  for (const int32_t item : lists.items) ++made.begin[size_t(item) + 1];
  for (size_t i = 0; i < size_t(n); ++i) made.begin[i + 1] += made.begin[i];
  std::vector<int32_t> at(made.begin.begin(), made.begin.end() - 1);
  const int32_t n_lists = int32_t(lists.begin.size()) - 1;
  for (int32_t list = 0; list < n_lists; ++list)
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
      if (std::exchange(touch_seen[size_t(b)], i) != i) touches.items.push_back(b);
    touches.close();
    for (const auto& [from, to] : task.shares)
      if (sizes[size_t(from)] == sizes[size_t(to)] && sizes[size_t(to)] > 0)
        shares.push_back({from, to});
    share_begin.push_back(int32_t(shares.size()));
  }
  succs = inverse(preds, int32_t(n));
  touchers = inverse(touches, n_buffers());
}

Walk::Walk(const Flow& flow) : flow_(flow) {
  for (int32_t t = 0; t < flow.n_tasks(); ++t) waits_.push_back(int32_t(flow.preds[t].size()));
  for (int32_t b = 0; b < flow.n_buffers(); ++b) left_.push_back(int32_t(flow.touchers[b].size()));
}

int64_t Walk::shared(int32_t task) const {
  int64_t bytes = 0;
  const size_t begin = size_t(flow_.share_begin[size_t(task)]);
  const size_t end = size_t(flow_.share_begin[size_t(task) + 1]);
  const auto can = [&](const Share& s) { return left_[size_t(s.from)] == 1 && is_first(s.to); };
  for (size_t i = begin; i < end; ++i) {
    const Share& share = flow_.shares[i];
    bool is_free = can(share);
    for (size_t j = begin; is_free && j < i; ++j) {
      const Share& other = flow_.shares[j];
      is_free = !(can(other) && (other.from == share.from || other.to == share.to));
    }
    if (is_free) bytes += flow_.sizes[size_t(share.to)];
  }
  return bytes;
}

Walk::Cost Walk::cost(int32_t task) const {
  int64_t made = 0, freed = 0;
  for (const int32_t b : flow_.touches[task]) {
    if (is_first(b)) made += flow_.sizes[size_t(b)];
    if (left_[size_t(b)] == 1) freed += flow_.sizes[size_t(b)];
  }
  return {made + flow_.scratch[size_t(task)] - shared(task), made - freed};
}

std::vector<int32_t> Walk::take(int32_t task) {
  std::vector<int32_t> changed;
  level_ += cost(task).change;
  for (const int32_t b : flow_.touches[task]) {
    const bool was_first = is_first(b);
    if (--left_[size_t(b)] != 1 && !was_first) continue;
    changed.insert(changed.end(), flow_.touchers[b].begin(), flow_.touchers[b].end());
  }
  for (const int32_t s : flow_.succs[task]) --waits_[size_t(s)];
  return changed;
}

}  // namespace sdx
