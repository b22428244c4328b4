#include "exec/order/greedy.h"

#include <queue>

namespace sdx {
namespace {

class Greedy {
 public:
  explicit Greedy(const Part& part)
      : part_(part),
        touches_(inverse(part.touchers, part.count())),
        is_done_(size_t(part.count())) {
    for (int32_t p = 0; p < part.count(); ++p) waits_.push_back(int32_t(part.preds[p].size()));
    for (int32_t b = 0; b < part.touchers.count(); ++b)
      left_.push_back(int32_t(part.touchers[b].size()));
    costs_.resize(size_t(part.count()));
  }

  Found run() {
    Found found;
    int64_t level = part_.level;
    for (int32_t p = 0; p < part_.count(); ++p) offer(p);
    while (!ready_.empty()) {
      const auto [change, p] = ready_.top();
      ready_.pop();
      const Cost cost = costs_[size_t(p)];
      if (is_done_[size_t(p)] || cost.change != change) continue;
      found.peak = std::max(found.peak, level + cost.rise);
      level += cost.change;
      found.order.push_back(p);
      take(p);
    }
    return found;
  }

 private:
  bool is_first(int32_t b) const { return left_[size_t(b)] == int32_t(part_.touchers[b].size()); }

  void offer(int32_t p) {
    if (is_done_[size_t(p)] || waits_[size_t(p)] > 0) return;
    costs_[size_t(p)] = part_.stages.cost(
        p, part_.sizes, [&](int32_t b) { return is_first(b); },
        [&](int32_t b) { return left_[size_t(b)] == 1; });
    ready_.push({costs_[size_t(p)].change, p});
  }

  // Costs change where a buffer is no longer untouched, or has one piece left to touch it.
  void take(int32_t p) {
    is_done_[size_t(p)] = 1;
    changed_.clear();
    for (const int32_t b : touches_[p]) {
      const bool was_first = is_first(b);
      if (--left_[size_t(b)] == 1 || was_first) changed_.push_back(b);
    }
    for (const int32_t b : changed_)
      for (const int32_t q : part_.touchers[b]) offer(q);
    for (const int32_t q : part_.succs[p]) {
      --waits_[size_t(q)];
      offer(q);
    }
  }

  using Entry = std::pair<int64_t, int32_t>;

  const Part& part_;
  const Lists touches_;
  std::vector<char> is_done_;
  std::vector<int32_t> waits_;    // predecessors to come
  std::vector<int32_t> left_;     // pieces that have yet to touch a buffer
  std::vector<int32_t> changed_;  // buffers
  std::vector<Cost> costs_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready_;
};

}  // namespace

Found search_greedily(const Part& part) { return Greedy(part).run(); }

}  // namespace sdx
