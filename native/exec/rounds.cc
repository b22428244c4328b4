#include "exec/rounds.h"

#include <algorithm>
#include <numeric>

namespace sdx {
namespace {

constexpr int32_t kMostSteps = 64;        // of a round
constexpr int64_t kMostBytes = 4 << 20;   // that its steps write: none of it is used twice
constexpr int64_t kWorthWaking = 10'000;  // ns that a round must save

// Steps from one position on, joined to chains by what they need.
class Chains {
 public:
  Chains(const Wiring& wiring, const Costs& costs, const std::vector<int32_t>& order,
         const std::vector<int32_t>& position, int32_t first)
      : wiring_(wiring), costs_(costs), order_(order), position_(position), first_(first) {}

  // Takes the next step; false where that ends the round.
  bool grow() {
    const auto at = first_ + int32_t(chain_.size());
    if (at == int32_t(order_.size()) || int32_t(chain_.size()) == kMostSteps) return false;
    const auto step = size_t(order_[size_t(at)]);
    bytes_ += costs_.bytes[step];
    if (costs_.work[step] == Costs::kAlone || bytes_ > kMostBytes) return false;
    chain_.push_back(int32_t(chain_.size()));
    work_.push_back(costs_.work[step]);
    total_ += costs_.work[step];
    for (const int32_t other : wiring_.preds[step])
      if (position_[size_t(other)] >= first_) join(position_[size_t(other)] - first_, at - first_);
    return true;
  }

  // What the steps so far would take less if chains ran at once.
  int64_t saves() const {
    int64_t longest = 0;
    for (size_t i = 0; i < chain_.size(); ++i)
      if (chain_[i] == int32_t(i)) longest = std::max(longest, work_[i]);
    return total_ - std::max(longest, total_ / costs_.threads);
  }

  // The chains of the first `n` steps, numbered from the longest on.
  std::vector<int32_t> lanes(int32_t n) {
    std::vector<int32_t> heads, lanes(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i)
      if (head(i) == i) heads.push_back(i);
    std::stable_sort(heads.begin(), heads.end(),
                     [&](int32_t a, int32_t b) { return work_[size_t(a)] > work_[size_t(b)]; });
    std::vector<int32_t> number(static_cast<size_t>(n), 0);
    for (size_t i = 0; i < heads.size(); ++i) number[size_t(heads[i])] = int32_t(i);
    for (int32_t i = 0; i < n; ++i) lanes[size_t(i)] = number[size_t(head(i))];
    return lanes;
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

  const Wiring& wiring_;
  const Costs& costs_;
  const std::vector<int32_t>&order_, &position_;
  int32_t first_;
  std::vector<int32_t> chain_;  // by step: another of its chain, or itself
  std::vector<int64_t> work_;   // of chains, at their heads
  int64_t total_ = 0, bytes_ = 0;
};

}  // namespace

Rounds make_rounds(const Wiring& wiring, const Costs& costs, const std::vector<int32_t>& order) {
  const size_t n = order.size();
  Rounds rounds{std::vector<int32_t>(n), std::vector<int32_t>(n), std::vector<int32_t>(n, 0)};
  std::iota(rounds.begin.begin(), rounds.begin.end(), 0);
  rounds.end = rounds.begin;
  if (costs.work.empty() || costs.threads < 2) return rounds;
  std::vector<int32_t> position(n);
  for (size_t at = 0; at < n; ++at) position[size_t(order[at])] = int32_t(at);
  for (int32_t first = 0; first < int32_t(n);) {
    Chains longest(wiring, costs, order, position, first);
    int32_t best = 0;
    int64_t most = kWorthWaking;
    for (int32_t count = 1; longest.grow(); ++count)
      if (const int64_t saved = longest.saves(); saved > most) most = saved, best = count;
    if (best == 0) {
      ++first;
      continue;
    }
    Chains chosen(wiring, costs, order, position, first);
    for (int32_t i = 0; i < best; ++i) (void)chosen.grow();
    const std::vector<int32_t> lanes = chosen.lanes(best);
    for (int32_t i = 0; i < best; ++i) {
      rounds.begin[size_t(first + i)] = first;
      rounds.end[size_t(first + i)] = first + best - 1;
      rounds.lane[size_t(first + i)] = lanes[size_t(i)];
    }
    first += best;
  }
  return rounds;
}

}  // namespace sdx
