#include "exec/execution_order/search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>
#include <tuple>

namespace sdx::ordering {
namespace {

constexpr size_t kMinBranching = 4;  // clusters that a beam search tries from a state, at least

// Work is counted in cluster costs; the other operations as fractions or multiples of one.
constexpr int64_t kBuffersPerCost = 8;   // buffers of a cluster that cost as much as one cost
constexpr int64_t kCostOfState = 6;      // storing a state
constexpr int64_t kScannedPerCost = 16;  // costs scanned in the time of computing one
constexpr int64_t kCopiedPerCost = 6;    // costs copied in that time

// Limits of the memory of a search, at any effort.
constexpr size_t kMaxStates = size_t(1) << 20, kMaxPathSteps = size_t(1) << 24;

// A set of clusters as a bit set of compile-time size.
template <int kWords>
struct ClusterSet {
  std::array<uint64_t, kWords> words{};

  bool operator==(const ClusterSet&) const = default;
  bool has(int32_t i) const { return words[size_t(i) / 64] >> (i % 64) & 1; }
  void add(int32_t i) { words[size_t(i) / 64] |= uint64_t(1) << (i % 64); }
  void remove(int32_t i) { words[size_t(i) / 64] &= ~(uint64_t(1) << (i % 64)); }
  bool intersects(const ClusterSet& m) const {
    uint64_t both = 0;
    for (size_t w = 0; w < kWords; ++w) both |= words[w] & m.words[w];
    return both != 0;
  }
  // Whether this set without i is a subset of m.
  bool is_subset_but(const ClusterSet& m, int32_t i) const {
    uint64_t rest = 0;
    for (size_t w = 0; w < kWords; ++w)
      rest |= words[w] & ~m.words[w] & ~(w == size_t(i) / 64 ? uint64_t(1) << (i % 64) : 0);
    return rest == 0;
  }
  void unite(const ClusterSet& m) {
    for (size_t w = 0; w < kWords; ++w) words[w] |= m.words[w];
  }
  void intersect(const ClusterSet& m) {
    for (size_t w = 0; w < kWords; ++w) words[w] &= m.words[w];
  }
  int count_without(const ClusterSet& m) const {
    int n = 0;
    for (size_t w = 0; w < kWords; ++w) n += std::popcount(words[w] & ~m.words[w]);
    return n;
  }
  size_t hash() const {
    uint64_t h = 0;
    for (const uint64_t w : words) h = (h ^ w) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return size_t(h);
  }
  template <class F>
  void each(F f) const {
    for (size_t w = 0; w < kWords; ++w)
      for (uint64_t rest = words[w]; rest != 0; rest &= rest - 1)
        f(int32_t(w * 64) + std::countr_zero(rest));
  }
};

// A set of finished clusters and the best known order of them, as a linked list that starts at
// `path`.
template <int kWords>
struct SearchState {
  ClusterSet<kWords> done, ready;
  int64_t live_bytes, peak;
  int64_t bound;  // a lower bound of the peak of every continuation
  int32_t n_done, path;
};

template <int kWords>
class Search {
 public:
  using State = SearchState<kWords>;

  Search(const Subproblem& subproblem, Limits limits)
      : subproblem_(subproblem),
        limits_(limits),
        touches_(inverse(subproblem.users, subproblem.count())) {
    for (int32_t p = 0; p < subproblem.count(); ++p)
      weights_.push_back(1 + int64_t(touches_[p].size()) / kBuffersPerCost);
    preds_.resize(size_t(subproblem.count()));
    users_.resize(subproblem.sizes.size());
    for (int32_t p = 0; p < subproblem.count(); ++p)
      for (const int32_t q : subproblem.preds[p]) preds_[size_t(p)].add(q);
    for (int32_t b = 0; b < subproblem.users.count(); ++b)
      for (const int32_t p : subproblem.users[b]) users_[size_t(b)].add(p);
  }

  SearchResult best_first();
  SearchResult beam(int width);
  int64_t work() const { return work_; }

 private:
  struct PathStep {
    int32_t before, cluster;  // an index into path_, -1: the start; the cluster run after it
  };
  // A state with the costs of its ready clusters, which are updated instead of recomputed.
  struct CostedState {
    State state;
    std::array<Cost, size_t(kWords) * 64> costs;

    void copy(const CostedState& other) {
      state = other.state;
      state.ready.each([&](int32_t p) { costs[size_t(p)] = other.costs[size_t(p)]; });
    }
  };

  void start(CostedState& at);
  void update_cost(CostedState& at, int32_t p);
  void run(CostedState& at, int32_t p);
  void run_free(CostedState& at);
  bool recovers_level(const State& from, CostedState& at);
  ClusterSet<kWords> branches_of(const CostedState& at, size_t most);
  template <class F>
  void expand(const State& s, size_t most, F offer);
  SearchResult result_of(const State& s, bool is_optimal) const;

  const Subproblem& subproblem_;
  const Limits limits_;
  const ListOfLists touches_;
  std::vector<int64_t> weights_;  // by cluster: work of computing its cost
  std::vector<ClusterSet<kWords>> preds_, users_;
  std::vector<PathStep> path_;
  CostedState base_, child_;
  std::vector<State> children_;
  std::vector<std::tuple<int64_t, int64_t, int32_t>> ranks_;  // need, change, cluster
  int64_t work_ = 0;
};

template <int kWords>
void Search<kWords>::start(CostedState& at) {
  at.state = {{}, {}, subproblem_.live_bytes, subproblem_.live_bytes, 0, 0, -1};
  for (int32_t p = 0; p < subproblem_.count(); ++p)
    if (subproblem_.preds[p].empty()) {
      at.state.ready.add(p);
      update_cost(at, p);
    }
  run_free(at);
}

template <int kWords>
void Search<kWords>::update_cost(CostedState& at, int32_t p) {
  work_ += weights_[size_t(p)];
  at.costs[size_t(p)] = subproblem_.stages.cost(
      p, subproblem_.sizes, [&](int32_t b) { return !users_[size_t(b)].intersects(at.state.done); },
      [&](int32_t b) { return users_[size_t(b)].is_subset_but(at.state.done, p); });
}

// Runs a cluster and recomputes the costs that this changes: of clusters that become ready, are no
// longer the first to touch a buffer, or are now the last.
template <int kWords>
void Search<kWords>::run(CostedState& at, int32_t p) {
  State& s = at.state;
  const Cost c = at.costs[size_t(p)];
  s.peak = std::max(s.peak, s.live_bytes + c.peak_increase);
  s.live_bytes += c.change;
  s.ready.remove(p);
  ++s.n_done;
  ClusterSet<kWords> changed;
  for (const int32_t b : touches_[p]) {
    const ClusterSet<kWords>& all = users_[size_t(b)];
    if (!all.intersects(s.done) || all.count_without(s.done) == 2) changed.unite(all);
  }
  s.done.add(p);
  changed.intersect(s.ready);
  for (const int32_t q : subproblem_.succs[p])
    if (preds_[size_t(q)].is_subset_but(s.done, p)) {
      s.ready.add(q);
      changed.add(q);
    }
  changed.each([&](int32_t q) { update_cost(at, q); });
  path_.push_back({s.path, p});
  s.path = int32_t(path_.size()) - 1;
}

// Runs, at no loss, every ready cluster that does not raise the live bytes and stays within the
// bound: costs only fall while others run (submodularity), so no continuation is worse for it.
// Where no ready cluster stays within the bound, the cheapest one raises the bound.
template <int kWords>
void Search<kWords>::run_free(CostedState& at) {
  State& s = at.state;
  s.bound = std::max({s.bound, s.peak, limits_.lower_bound});
  for (bool again = s.n_done < subproblem_.count(); again;) {
    again = false;
    work_ += s.ready.count_without({}) / kScannedPerCost;
    int64_t least = std::numeric_limits<int64_t>::max();
    s.ready.each([&](int32_t p) {
      const Cost c = at.costs[size_t(p)];
      least = std::min(least, s.live_bytes + c.peak_increase);
      if (c.change > 0 || s.live_bytes + c.peak_increase > s.bound) return;
      run(at, p);
      again = true;
    });
    if (again || s.n_done == subproblem_.count() || least <= s.bound) continue;
    s.bound = least;
    again = true;
  }
}

// Whether the clusters that the latest one enabled bring the live bytes back to what they were,
// without a new peak. Like a single cluster that does not raise the live bytes, the sequence can
// then run immediately, and its alternatives need not be tried.
template <int kWords>
bool Search<kWords>::recovers_level(const State& from, CostedState& at) {
  State& s = at.state;
  if (s.peak > from.bound) return false;
  for (bool again = s.live_bytes > from.live_bytes; again;) {
    again = false;
    s.ready.each([&](int32_t p) {
      const Cost c = at.costs[size_t(p)];
      if (from.ready.has(p) || c.change > 0 || s.live_bytes + c.peak_increase > from.bound) return;
      run(at, p);
      again = true;
    });
  }
  return s.live_bytes <= from.live_bytes;
}

// The ready clusters to branch on: those with the lowest need, then the fewest live bytes after.
template <int kWords>
ClusterSet<kWords> Search<kWords>::branches_of(const CostedState& at, size_t most) {
  const State& s = at.state;
  ClusterSet<kWords> made = s.ready;
  if (size_t(made.count_without({})) <= most) return made;
  ranks_.clear();
  made.each([&](int32_t p) {
    const Cost c = at.costs[size_t(p)];
    ranks_.push_back({std::max(s.bound, s.live_bytes + c.peak_increase), c.change, p});
  });
  std::partial_sort(ranks_.begin(), ranks_.begin() + int64_t(most), ranks_.end());
  made = {};
  for (size_t i = 0; i < most; ++i) made.add(std::get<2>(ranks_[i]));
  return made;
}

template <int kWords>
template <class F>
void Search<kWords>::expand(const State& s, size_t most, F offer) {
  base_.state = s;
  s.ready.each([&](int32_t p) { update_cost(base_, p); });
  children_.clear();
  bool is_decided = false;
  branches_of(base_, most).each([&](int32_t p) {
    if (is_decided || s.live_bytes + base_.costs[size_t(p)].peak_increase >= limits_.upper_bound)
      return;
    work_ += 1 + s.ready.count_without({}) / kCopiedPerCost;
    child_.copy(base_);
    run(child_, p);
    is_decided = recovers_level(s, child_);
    if (is_decided) children_.clear();
    run_free(child_);
    if (child_.state.bound < limits_.upper_bound) children_.push_back(child_.state);
  });
  for (const State& child : children_) offer(child);
}

template <int kWords>
SearchResult Search<kWords>::result_of(const State& s, bool is_optimal) const {
  SearchResult made;
  for (int32_t at = s.path; at >= 0; at = path_[size_t(at)].before)
    made.order.push_back(path_[size_t(at)].cluster);
  std::reverse(made.order.begin(), made.order.end());
  made.peak = s.peak;
  made.is_optimal = is_optimal;
  return made;
}

// Sets by the lowest bound with which each was reached: an open-addressing hash table.
template <int kWords>
class TranspositionTable {
 public:
  // Whether the state is better than the known one of the same set, and records it.
  bool improves(const SearchState<kWords>& s) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = find(s.done);
    if (slot.is_used && slot.bound <= s.bound) return false;
    size_ += slot.is_used ? 0 : 1;
    slot = {s.done, s.bound, true};
    return true;
  }
  bool is_best(const SearchState<kWords>& s) { return find(s.done).bound == s.bound; }

 private:
  struct Slot {
    ClusterSet<kWords> done;
    int64_t bound = 0;
    bool is_used = false;
  };

  Slot& find(const ClusterSet<kWords>& done) {
    size_t at = done.hash() & (slots_.size() - 1);
    while (slots_[at].is_used && !(slots_[at].done == done)) at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }
  void grow() {
    std::vector<Slot> old(std::max<size_t>(64, 2 * slots_.size()));
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.is_used) find(slot.done) = slot;
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

template <int kWords>
SearchResult Search<kWords>::best_first() {
  std::vector<State> states;
  const auto is_later = [&](int32_t a, int32_t b) {
    const State &x = states[size_t(a)], &y = states[size_t(b)];
    if (x.bound != y.bound) return x.bound > y.bound;
    if (x.n_done != y.n_done) return x.n_done < y.n_done;
    return x.live_bytes != y.live_bytes ? x.live_bytes > y.live_bytes : a > b;
  };
  std::priority_queue<int32_t, std::vector<int32_t>, decltype(is_later)> open(is_later);
  TranspositionTable<kWords> transpositions;
  const auto offer = [&](const State& s) {
    if (!transpositions.improves(s)) return;
    work_ += kCostOfState;
    states.push_back(s);
    open.push(int32_t(states.size()) - 1);
  };
  start(base_);
  if (base_.state.bound < limits_.upper_bound) offer(base_.state);
  // Bounds never fall along a path, so the first complete state that is popped is optimal.
  while (!open.empty()) {
    const State s = states[size_t(open.top())];
    open.pop();
    if (s.n_done == subproblem_.count()) return result_of(s, true);
    if (work_ > limits_.work || states.size() > kMaxStates || path_.size() > kMaxPathSteps)
      return {};
    if (transpositions.is_best(s)) expand(s, size_t(subproblem_.count()), offer);
  }
  return {{}, 0, true};  // exhausted: no order is below limits_.upper_bound
}

template <int kWords>
SearchResult Search<kWords>::beam(int width) {
  std::vector<std::vector<State>> kept(size_t(subproblem_.count()) + 1);
  const auto is_better = [](const State& x, const State& y) {
    return x.bound != y.bound ? x.bound < y.bound : x.live_bytes < y.live_bytes;
  };
  const auto offer = [&](const State& s) {
    std::vector<State>& row = kept[size_t(s.n_done)];
    const auto same =
        std::find_if(row.begin(), row.end(), [&](const State& o) { return o.done == s.done; });
    if (same != row.end()) {
      if (!is_better(s, *same)) return;
      row.erase(same);
    }
    row.insert(std::upper_bound(row.begin(), row.end(), s, is_better), s);
    if (row.size() > size_t(width)) row.pop_back();
  };
  start(base_);
  if (base_.state.bound < limits_.upper_bound) offer(base_.state);
  // A state may advance by several clusters in one move, so each cardinality has its own beam.
  for (size_t n = 0; n < size_t(subproblem_.count()); ++n) {
    for (const State& s : kept[n]) expand(s, std::max<size_t>(kMinBranching, size_t(width)), offer);
    std::vector<State>().swap(kept[n]);
  }
  return kept.back().empty() ? SearchResult{} : result_of(kept.back().front(), false);
}

template <class F>
SearchResult with_words(const Subproblem& subproblem, Limits limits, int64_t& work, F run) {
  const auto counted = [&](auto search) {
    SearchResult result = run(search);
    work += search.work();
    return result;
  };
  if (subproblem.count() <= 64) return counted(Search<1>(subproblem, limits));
  if (subproblem.count() <= 128) return counted(Search<2>(subproblem, limits));
  return counted(Search<4>(subproblem, limits));
}

}  // namespace

SearchResult best_first_search(const Subproblem& subproblem, Limits limits, int64_t& work) {
  return with_words(subproblem, limits, work, [](auto& search) { return search.best_first(); });
}

SearchResult beam_search(const Subproblem& subproblem, Limits limits, int width, int64_t& work) {
  return with_words(subproblem, limits, work, [&](auto& search) { return search.beam(width); });
}

}  // namespace sdx::ordering
