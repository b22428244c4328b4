#include "exec/order/simple.h"

#include <queue>

namespace sdx::ordering {
namespace {

// An order in the making.
class Walk {
 public:
  explicit Walk(const Part& part)
      : part_(part), touches_(inverse(part.touchers, part.count())), level_(part.level) {
    is_done_.resize(size_t(part.count()));
    for (int32_t p = 0; p < part.count(); ++p) waits_.push_back(int32_t(part.preds[p].size()));
    for (int32_t b = 0; b < part.touchers.count(); ++b)
      left_.push_back(int32_t(part.touchers[b].size()));
  }

  bool is_done(int32_t p) const { return is_done_[size_t(p)]; }
  bool is_ready(int32_t p) const { return waits_[size_t(p)] == 0 && !is_done(p); }

  Cost cost(int32_t p) const {
    return part_.stages.cost(
        p, part_.sizes, [&](int32_t b) { return is_first(b); },
        [&](int32_t b) { return left_[size_t(b)] == 1; });
  }

  // Does a piece; `changed` is told the pieces whose costs are others now, some of them twice.
  template <class F>
  void take(int32_t p, F changed) {
    const Cost c = cost(p);
    found.order.push_back(p);
    found.peak = std::max(found.peak, level_ + c.rise);
    level_ += c.change;
    is_done_[size_t(p)] = 1;
    changed_.clear();
    for (const int32_t b : touches_[p]) {
      const bool was_first = is_first(b);
      if (--left_[size_t(b)] == 1 || was_first) changed_.push_back(b);
    }
    for (const int32_t q : part_.succs[p]) --waits_[size_t(q)];
    for (const int32_t b : changed_)
      for (const int32_t q : part_.touchers[b]) changed(q);
    for (const int32_t q : part_.succs[p]) changed(q);
  }

  Found found;

 private:
  bool is_first(int32_t b) const { return left_[size_t(b)] == int32_t(part_.touchers[b].size()); }

  const Part& part_;
  const Lists touches_;
  int64_t level_;
  std::vector<char> is_done_;
  std::vector<int32_t> waits_;    // predecessors to come
  std::vector<int32_t> left_;     // pieces that have yet to touch a buffer
  std::vector<int32_t> changed_;  // buffers
};

}  // namespace

Found greedy(const Part& part) {
  Walk walk(part);
  using Entry = std::pair<int64_t, int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  std::vector<int64_t> changes(size_t(part.count()));
  const auto offer = [&](int32_t p) {
    if (!walk.is_ready(p)) return;
    changes[size_t(p)] = walk.cost(p).change;
    ready.push({changes[size_t(p)], p});
  };
  for (int32_t p = 0; p < part.count(); ++p) offer(p);
  while (!ready.empty()) {
    const auto [change, p] = ready.top();
    ready.pop();
    if (!walk.is_done(p) && changes[size_t(p)] == change) walk.take(p, offer);
  }
  return std::move(walk.found);
}

Found oldest_first(const Part& part) {
  Walk walk(part);
  std::vector<int32_t> depth(size_t(part.count())), open, readers;
  for (int32_t p = 0; p < part.count(); ++p)
    for (const int32_t q : part.preds[p])
      depth[size_t(p)] = std::max(depth[size_t(p)], depth[size_t(q)] + 1);
  // What is not done joins a list, the deepest last.
  const auto join = [&](std::span<const int32_t> pieces, std::vector<int32_t>& list) {
    const auto begin = std::ssize(list);
    for (const int32_t p : pieces)
      if (!walk.is_done(p)) list.push_back(p);
    std::sort(list.begin() + begin, list.end(), [&](int32_t a, int32_t b) {
      return depth[size_t(a)] != depth[size_t(b)] ? depth[size_t(a)] < depth[size_t(b)] : a > b;
    });
  };
  size_t n_read = 0;
  for (int32_t next = 0; int32_t(walk.found.order.size()) < part.count();) {
    if (open.empty()) open.push_back(n_read < readers.size() ? readers[n_read++] : next++);
    const int32_t p = open.back();
    if (!walk.is_done(p) && !walk.is_ready(p)) {
      join(part.preds[p], open);
      continue;
    }
    open.pop_back();
    if (walk.is_done(p)) continue;
    walk.take(p, [](int32_t) {});
    join(part.succs[p], readers);
  }
  return std::move(walk.found);
}

}  // namespace sdx::ordering
