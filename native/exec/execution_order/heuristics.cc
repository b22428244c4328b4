#include "exec/execution_order/heuristics.h"

#include <queue>

namespace sdx::ordering {
namespace {

// An order under construction: which clusters are done, and what the others would cost next.
class OrderBuilder {
 public:
  explicit OrderBuilder(const Subproblem& subproblem)
      : subproblem_(subproblem),
        touches_(inverse(subproblem.users, subproblem.count())),
        live_bytes_(subproblem.live_bytes) {
    is_done_.resize(size_t(subproblem.count()));
    for (int32_t p = 0; p < subproblem.count(); ++p)
      waits_.push_back(int32_t(subproblem.preds[p].size()));
    for (int32_t b = 0; b < subproblem.users.count(); ++b)
      left_.push_back(int32_t(subproblem.users[b].size()));
  }

  bool is_done(int32_t p) const { return is_done_[size_t(p)]; }
  bool is_ready(int32_t p) const { return waits_[size_t(p)] == 0 && !is_done(p); }

  Cost cost(int32_t p) const {
    return subproblem_.stages.cost(
        p, subproblem_.sizes, [&](int32_t b) { return is_first(b); },
        [&](int32_t b) { return left_[size_t(b)] == 1; });
  }

  // Appends a cluster. Calls `changed` for each cluster whose cost differs now, some of them twice:
  // those that no longer touch a buffer first, now touch it last, or have become ready.
  template <class F>
  void append(int32_t p, F changed) {
    const Cost c = cost(p);
    result.order.push_back(p);
    result.peak = std::max(result.peak, live_bytes_ + c.peak_increase);
    live_bytes_ += c.change;
    is_done_[size_t(p)] = 1;
    changed_.clear();
    for (const int32_t b : touches_[p]) {
      const bool was_first = is_first(b);
      if (--left_[size_t(b)] == 1 || was_first) changed_.push_back(b);
    }
    for (const int32_t q : subproblem_.succs[p]) --waits_[size_t(q)];
    for (const int32_t b : changed_)
      for (const int32_t q : subproblem_.users[b]) changed(q);
    for (const int32_t q : subproblem_.succs[p]) changed(q);
  }

  SearchResult result;

 private:
  bool is_first(int32_t b) const {
    return left_[size_t(b)] == int32_t(subproblem_.users[b].size());
  }

  const Subproblem& subproblem_;
  const ListOfLists touches_;
  int64_t live_bytes_;
  std::vector<char> is_done_;
  std::vector<int32_t> waits_;    // unfinished predecessors
  std::vector<int32_t> left_;     // clusters that have yet to touch a buffer
  std::vector<int32_t> changed_;  // buffers
};

}  // namespace

SearchResult greedy_order(const Subproblem& subproblem) {
  OrderBuilder builder(subproblem);
  using Entry = std::pair<int64_t, int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  std::vector<int64_t> changes(size_t(subproblem.count()));
  const auto offer = [&](int32_t p) {
    if (!builder.is_ready(p)) return;
    changes[size_t(p)] = builder.cost(p).change;
    ready.push({changes[size_t(p)], p});
  };
  for (int32_t p = 0; p < subproblem.count(); ++p) offer(p);
  // A changed cost pushes a new entry; entries with an outdated cost are skipped when popped.
  while (!ready.empty()) {
    const auto [change, p] = ready.top();
    ready.pop();
    if (!builder.is_done(p) && changes[size_t(p)] == change) builder.append(p, offer);
  }
  return std::move(builder.result);
}

SearchResult oldest_value_first(const Subproblem& subproblem) {
  OrderBuilder builder(subproblem);
  std::vector<int32_t> depth(size_t(subproblem.count())), open, readers;
  for (int32_t p = 0; p < subproblem.count(); ++p)
    for (const int32_t q : subproblem.preds[p])
      depth[size_t(p)] = std::max(depth[size_t(p)], depth[size_t(q)] + 1);
  // Appends unfinished clusters to a list, the deepest last.
  const auto append_unfinished = [&](std::span<const int32_t> clusters,
                                     std::vector<int32_t>& list) {
    const auto begin = std::ssize(list);
    for (const int32_t p : clusters)
      if (!builder.is_done(p)) list.push_back(p);
    std::sort(list.begin() + begin, list.end(), [&](int32_t a, int32_t b) {
      return depth[size_t(a)] != depth[size_t(b)] ? depth[size_t(a)] < depth[size_t(b)] : a > b;
    });
  };
  // `open` is a depth-first stack: a cluster stays on it until its predecessors, pushed above it,
  // are done. When it is empty, the next reader of the oldest value starts.
  size_t n_read = 0;
  for (int32_t next = 0; int32_t(builder.result.order.size()) < subproblem.count();) {
    if (open.empty()) open.push_back(n_read < readers.size() ? readers[n_read++] : next++);
    const int32_t p = open.back();
    if (!builder.is_done(p) && !builder.is_ready(p)) {
      append_unfinished(subproblem.preds[p], open);
      continue;
    }
    open.pop_back();
    if (builder.is_done(p)) continue;
    builder.append(p, [](int32_t) {});
    append_unfinished(subproblem.succs[p], readers);
  }
  return std::move(builder.result);
}

}  // namespace sdx::ordering
