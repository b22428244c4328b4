#include "exec/order/search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>
#include <tuple>

namespace sdx::ordering {
namespace {

constexpr size_t kFewest = 4;     // pieces that a narrow search tries next
constexpr int64_t kTouched = 8;   // buffers of a piece that count as one
constexpr int64_t kKept = 6;      // what keeping a state counts
constexpr int64_t kScanned = 16;  // costs that are looked at in the time in which one is found
constexpr int64_t kCopied = 6;    // costs that are copied to try a piece, in that time

// Bounds on the bytes that a search takes, whatever the work that is allowed.
constexpr size_t kMostStates = size_t(1) << 20, kMostSteps = size_t(1) << 24;

// A set of pieces.
template <int kWords>
struct Mask {
  std::array<uint64_t, kWords> words{};

  bool operator==(const Mask&) const = default;
  bool has(int32_t i) const { return words[size_t(i) / 64] >> (i % 64) & 1; }
  void add(int32_t i) { words[size_t(i) / 64] |= uint64_t(1) << (i % 64); }
  void drop(int32_t i) { words[size_t(i) / 64] &= ~(uint64_t(1) << (i % 64)); }
  bool meets(const Mask& m) const {
    uint64_t both = 0;
    for (size_t w = 0; w < kWords; ++w) both |= words[w] & m.words[w];
    return both != 0;
  }
  // Whether nothing but i is in this and not in m.
  bool is_in(const Mask& m, int32_t i) const {
    uint64_t rest = 0;
    for (size_t w = 0; w < kWords; ++w)
      rest |= words[w] & ~m.words[w] & ~(w == size_t(i) / 64 ? uint64_t(1) << (i % 64) : 0);
    return rest == 0;
  }
  void add_all(const Mask& m) {
    for (size_t w = 0; w < kWords; ++w) words[w] |= m.words[w];
  }
  void keep(const Mask& m) {
    for (size_t w = 0; w < kWords; ++w) words[w] &= m.words[w];
  }
  int count_without(const Mask& m) const {
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

// Some of the pieces done, in the order that `trail` leads back through.
template <int kWords>
struct Node {
  Mask<kWords> done, ready;
  int64_t level, peak;
  int64_t bound;  // no way on has a lower peak
  int32_t n_done, trail;
};

template <int kWords>
class Search {
 public:
  using State = Node<kWords>;

  Search(const Part& part, Limits limits)
      : part_(part), limits_(limits), touches_(inverse(part.touchers, part.count())) {
    for (int32_t p = 0; p < part.count(); ++p)
      weights_.push_back(1 + int64_t(touches_[p].size()) / kTouched);
    preds_.resize(size_t(part.count()));
    touchers_.resize(part.sizes.size());
    for (int32_t p = 0; p < part.count(); ++p)
      for (const int32_t q : part.preds[p]) preds_[size_t(p)].add(q);
    for (int32_t b = 0; b < part.touchers.count(); ++b)
      for (const int32_t p : part.touchers[b]) touchers_[size_t(b)].add(p);
  }

  Found all();
  Found best(int width);
  int64_t work() const { return work_; }

 private:
  struct Step {
    int32_t before, piece;
  };
  // A state, with the costs of the pieces that are ready.
  struct Bench {
    State state;
    std::array<Cost, size_t(kWords) * 64> costs;

    void copy(const Bench& other) {
      state = other.state;
      state.ready.each([&](int32_t p) { costs[size_t(p)] = other.costs[size_t(p)]; });
    }
  };

  void start(Bench& at);
  void find_cost(Bench& at, int32_t p);
  void take(Bench& at, int32_t p);
  void settle(Bench& at);
  bool falls(const State& from, Bench& at);
  Mask<kWords> chosen(const Bench& at, size_t most);
  template <class F>
  void expand(const State& s, size_t most, F offer);
  Found found(const State& s, bool is_least) const;

  const Part& part_;
  const Limits limits_;
  const Lists touches_;
  std::vector<int64_t> weights_;  // work to find the cost of each piece
  std::vector<Mask<kWords>> preds_, touchers_;
  std::vector<Step> trail_;
  Bench base_, child_;
  std::vector<State> children_;
  std::vector<std::tuple<int64_t, int64_t, int32_t>> ranks_;  // what is needed, the change, a piece
  int64_t work_ = 0;
};

template <int kWords>
void Search<kWords>::start(Bench& at) {
  at.state = {{}, {}, part_.level, part_.level, 0, 0, -1};
  for (int32_t p = 0; p < part_.count(); ++p)
    if (part_.preds[p].empty()) {
      at.state.ready.add(p);
      find_cost(at, p);
    }
  settle(at);
}

template <int kWords>
void Search<kWords>::find_cost(Bench& at, int32_t p) {
  work_ += weights_[size_t(p)];
  at.costs[size_t(p)] = part_.stages.cost(
      p, part_.sizes, [&](int32_t b) { return !touchers_[size_t(b)].meets(at.state.done); },
      [&](int32_t b) { return touchers_[size_t(b)].is_in(at.state.done, p); });
}

// Does a piece, and finds the costs that this changes: those of pieces that are no longer the first
// to touch a buffer, or are now the last.
template <int kWords>
void Search<kWords>::take(Bench& at, int32_t p) {
  State& s = at.state;
  const Cost c = at.costs[size_t(p)];
  s.peak = std::max(s.peak, s.level + c.rise);
  s.level += c.change;
  s.ready.drop(p);
  ++s.n_done;
  Mask<kWords> changed;
  for (const int32_t b : touches_[p]) {
    const Mask<kWords>& all = touchers_[size_t(b)];
    if (!all.meets(s.done) || all.count_without(s.done) == 2) changed.add_all(all);
  }
  s.done.add(p);
  changed.keep(s.ready);
  for (const int32_t q : part_.succs[p])
    if (preds_[size_t(q)].is_in(s.done, p)) {
      s.ready.add(q);
      changed.add(q);
    }
  changed.each([&](int32_t q) { find_cost(at, q); });
  trail_.push_back({s.trail, p});
  s.trail = int32_t(trail_.size()) - 1;
}

// Does the pieces that are ready, raise no level and need no more than some piece has to: costs
// only fall while others are done, so no order is the worse for it.
template <int kWords>
void Search<kWords>::settle(Bench& at) {
  State& s = at.state;
  s.bound = std::max({s.bound, s.peak, limits_.floor});
  for (bool again = s.n_done < part_.count(); again;) {
    again = false;
    work_ += s.ready.count_without({}) / kScanned;
    int64_t least = std::numeric_limits<int64_t>::max();
    s.ready.each([&](int32_t p) {
      const Cost c = at.costs[size_t(p)];
      least = std::min(least, s.level + c.rise);
      if (c.change > 0 || s.level + c.rise > s.bound) return;
      take(at, p);
      again = true;
    });
    if (again || s.n_done == part_.count() || least <= s.bound) continue;
    s.bound = least;
    again = true;
  }
}

// Whether what a piece makes possible brings the level back to where it was, without a new peak.
// As with a single piece, this can then be done at once.
template <int kWords>
bool Search<kWords>::falls(const State& from, Bench& at) {
  State& s = at.state;
  if (s.peak > from.bound) return false;
  for (bool again = s.level > from.level; again;) {
    again = false;
    s.ready.each([&](int32_t p) {
      const Cost c = at.costs[size_t(p)];
      if (from.ready.has(p) || c.change > 0 || s.level + c.rise > from.bound) return;
      take(at, p);
      again = true;
    });
  }
  return s.level <= from.level;
}

// The pieces that look best, of those that are ready.
template <int kWords>
Mask<kWords> Search<kWords>::chosen(const Bench& at, size_t most) {
  const State& s = at.state;
  Mask<kWords> made = s.ready;
  if (size_t(made.count_without({})) <= most) return made;
  ranks_.clear();
  made.each([&](int32_t p) {
    const Cost c = at.costs[size_t(p)];
    ranks_.push_back({std::max(s.bound, s.level + c.rise), c.change, p});
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
  s.ready.each([&](int32_t p) { find_cost(base_, p); });
  children_.clear();
  bool is_decided = false;
  chosen(base_, most).each([&](int32_t p) {
    if (is_decided || s.level + base_.costs[size_t(p)].rise >= limits_.below) return;
    work_ += 1 + s.ready.count_without({}) / kCopied;
    child_.copy(base_);
    take(child_, p);
    is_decided = falls(s, child_);
    if (is_decided) children_.clear();
    settle(child_);
    if (child_.state.bound < limits_.below) children_.push_back(child_.state);
  });
  for (const State& child : children_) offer(child);
}

template <int kWords>
Found Search<kWords>::found(const State& s, bool is_least) const {
  Found made;
  for (int32_t at = s.trail; at >= 0; at = trail_[size_t(at)].before)
    made.order.push_back(trail_[size_t(at)].piece);
  std::reverse(made.order.begin(), made.order.end());
  made.peak = s.peak;
  made.is_least = is_least;
  return made;
}

// Sets of pieces by what is done, with the lowest bound that each was reached with.
template <int kWords>
class Table {
 public:
  // Whether the state is better than the one that is known of its set.
  bool improves(const Node<kWords>& s) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = find(s.done);
    if (slot.is_used && slot.bound <= s.bound) return false;
    size_ += slot.is_used ? 0 : 1;
    slot = {s.done, s.bound, true};
    return true;
  }
  bool is_best(const Node<kWords>& s) { return find(s.done).bound == s.bound; }

 private:
  struct Slot {
    Mask<kWords> done;
    int64_t bound = 0;
    bool is_used = false;
  };

  Slot& find(const Mask<kWords>& done) {
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
Found Search<kWords>::all() {
  std::vector<State> states;
  const auto is_later = [&](int32_t a, int32_t b) {
    const State &x = states[size_t(a)], &y = states[size_t(b)];
    if (x.bound != y.bound) return x.bound > y.bound;
    if (x.n_done != y.n_done) return x.n_done < y.n_done;
    return x.level != y.level ? x.level > y.level : a > b;
  };
  std::priority_queue<int32_t, std::vector<int32_t>, decltype(is_later)> open(is_later);
  Table<kWords> table;
  const auto offer = [&](const State& s) {
    if (!table.improves(s)) return;
    work_ += kKept;
    states.push_back(s);
    open.push(int32_t(states.size()) - 1);
  };
  start(base_);
  if (base_.state.bound < limits_.below) offer(base_.state);
  while (!open.empty()) {
    const State s = states[size_t(open.top())];
    open.pop();
    if (s.n_done == part_.count()) return found(s, true);
    if (work_ > limits_.work || states.size() > kMostStates || trail_.size() > kMostSteps)
      return {};
    if (table.is_best(s)) expand(s, size_t(part_.count()), offer);
  }
  return {{}, 0, true};
}

template <int kWords>
Found Search<kWords>::best(int width) {
  std::vector<std::vector<State>> kept(size_t(part_.count()) + 1);
  const auto is_better = [](const State& x, const State& y) {
    return x.bound != y.bound ? x.bound < y.bound : x.level < y.level;
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
  if (base_.state.bound < limits_.below) offer(base_.state);
  for (size_t n = 0; n < size_t(part_.count()); ++n) {
    for (const State& s : kept[n]) expand(s, std::max<size_t>(kFewest, size_t(width)), offer);
    std::vector<State>().swap(kept[n]);
  }
  return kept.back().empty() ? Found{} : found(kept.back().front(), false);
}

template <class F>
Found with_words(const Part& part, Limits limits, int64_t& work, F run) {
  const auto counted = [&](auto search) {
    Found found = run(search);
    work += search.work();
    return found;
  };
  if (part.count() <= 64) return counted(Search<1>(part, limits));
  if (part.count() <= 128) return counted(Search<2>(part, limits));
  return counted(Search<4>(part, limits));
}

}  // namespace

Found search_all(const Part& part, Limits limits, int64_t& work) {
  return with_words(part, limits, work, [](auto& search) { return search.all(); });
}

Found search_best(const Part& part, Limits limits, int width, int64_t& work) {
  return with_words(part, limits, work, [&](auto& search) { return search.best(width); });
}

}  // namespace sdx::ordering
