#include "exec/parallel_groups.h"

#include <algorithm>
#include <numeric>

namespace sdx {
namespace {

constexpr int32_t kMaxSteps = 64;            // of a group; bounds the search from each position
constexpr int64_t kMaxGroupBytes = 4 << 20;  // written by a group: no byte of it is reused within
constexpr int64_t kMinSaved = 10'000;        // ns that a group must save to pay for waking threads

// Consecutive steps from one position on, joined to chains by their dependencies (union-find).
class Chains {
 public:
  Chains(const Dependencies& dependencies, const StepCosts& costs,
         const std::vector<int32_t>& order, const std::vector<int32_t>& position, int32_t first)
      : dependencies_(dependencies),
        costs_(costs),
        order_(order),
        position_(position),
        first_(first) {}

  // Adds the next step; false where the group must end before it.
  bool add_next() {
    const auto at = first_ + int32_t(chain_.size());
    if (at == int32_t(order_.size()) || int32_t(chain_.size()) == kMaxSteps) return false;
    const auto step = size_t(order_[size_t(at)]);
    bytes_ += costs_.bytes[step];
    if (costs_.work[step] == StepCosts::kNotParallel || bytes_ > kMaxGroupBytes) return false;
    chain_.push_back(int32_t(chain_.size()));
    work_.push_back(costs_.work[step]);
    total_ += costs_.work[step];
    for (const int32_t other : dependencies_.preds[step])
      if (position_[size_t(other)] >= first_) join(position_[size_t(other)] - first_, at - first_);
    return true;
  }

  // Time saved if the chains of the steps so far ran in parallel: the makespan is at least the
  // longest chain and at least an even share per thread.
  int64_t saved() const {
    int64_t longest = 0;
    for (size_t i = 0; i < chain_.size(); ++i)
      if (chain_[i] == int32_t(i)) longest = std::max(longest, work_[i]);
    return total_ - std::max(longest, total_ / costs_.threads);
  }

  // By step, for the first `n`: the number of its chain. The longest is number 0, since threads
  // take chains in that order: longest processing time first.
  std::vector<int32_t> numbered(int32_t n) {
    std::vector<int32_t> heads, chains(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i)
      if (head(i) == i) heads.push_back(i);
    std::stable_sort(heads.begin(), heads.end(),
                     [&](int32_t a, int32_t b) { return work_[size_t(a)] > work_[size_t(b)]; });
    std::vector<int32_t> number(static_cast<size_t>(n), 0);
    for (size_t i = 0; i < heads.size(); ++i) number[size_t(heads[i])] = int32_t(i);
    for (int32_t i = 0; i < n; ++i) chains[size_t(i)] = number[size_t(head(i))];
    return chains;
  }

 private:
  int32_t head(int32_t i) const {
    while (chain_[size_t(i)] != i) i = chain_[size_t(i)];
    return i;
  }

  void join(int32_t a, int32_t b) {
    a = head(a), b = head(b);
    if (a == b) return;
    if (a > b) std::swap(a, b);
    chain_[size_t(b)] = a;
    work_[size_t(a)] += work_[size_t(b)];
  }

  const Dependencies& dependencies_;
  const StepCosts& costs_;
  const std::vector<int32_t>&order_, &position_;
  int32_t first_;
  std::vector<int32_t> chain_;  // union-find parents; the head of a chain is its first step
  std::vector<int64_t> work_;   // of chains, by head
  int64_t total_ = 0, bytes_ = 0;
};

}  // namespace

ParallelGroups find_parallel_groups(const Dependencies& dependencies, const StepCosts& costs,
                                    const std::vector<int32_t>& order) {
  const size_t n = order.size();
  ParallelGroups groups{std::vector<int32_t>(n), std::vector<int32_t>(n),
                        std::vector<int32_t>(n, 0)};
  std::iota(groups.begin.begin(), groups.begin.end(), 0);
  groups.end = groups.begin;
  if (costs.work.empty() || costs.threads < 2) return groups;
  std::vector<int32_t> position(n);
  for (size_t at = 0; at < n; ++at) position[size_t(order[at])] = int32_t(at);
  // From each position, the prefix that saves most becomes a group, and the search goes on after
  // it.
  for (int32_t first = 0; first < int32_t(n);) {
    Chains longest(dependencies, costs, order, position, first);
    int32_t best = 0;
    int64_t most = kMinSaved;
    for (int32_t count = 1; longest.add_next(); ++count)
      if (const int64_t saved = longest.saved(); saved > most) most = saved, best = count;
    if (best == 0) {
      ++first;
      continue;
    }
    Chains chosen(dependencies, costs, order, position, first);
    for (int32_t i = 0; i < best; ++i) (void)chosen.add_next();
    const std::vector<int32_t> chains = chosen.numbered(best);
    for (int32_t i = 0; i < best; ++i) {
      groups.begin[size_t(first + i)] = first;
      groups.end[size_t(first + i)] = first + best - 1;
      groups.chain[size_t(first + i)] = chains[size_t(i)];
    }
    first += best;
  }
  return groups;
}

}  // namespace sdx
