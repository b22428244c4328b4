#include "exec/order/search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>

namespace sdx {
namespace {

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

  Search(const Part& part, Limits limits) : part_(part), limits_(limits) {
    preds_.resize(size_t(part.count()));
    touchers_.resize(part.sizes.size());
    for (int32_t p = 0; p < part.count(); ++p)
      for (const int32_t q : part.preds[p]) preds_[size_t(p)].add(q);
    for (int32_t b = 0; b < part.touchers.count(); ++b)
      for (const int32_t p : part.touchers[b]) touchers_[size_t(b)].add(p);
  }

  Found all();
  Found best(int width);
  int64_t n_costs() const { return n_costs_; }

 private:
  struct Step {
    int32_t before, piece;
  };

  State start();
  Cost cost(const State& s, int32_t p);
  void take(State& s, int32_t p, Cost c);
  void settle(State& s);
  bool falls(const State& s, State& child);
  template <class F>
  void expand(const State& s, F offer);
  Found found(const State& s, bool is_least) const;

  const Part& part_;
  const Limits limits_;
  std::vector<Mask<kWords>> preds_, touchers_;
  std::vector<Step> trail_;
  int64_t n_costs_ = 0;
};

template <int kWords>
Node<kWords> Search<kWords>::start() {
  State s{{}, {}, part_.level, part_.level, 0, 0, -1};
  for (int32_t p = 0; p < part_.count(); ++p)
    if (part_.preds[p].empty()) s.ready.add(p);
  settle(s);
  return s;
}

template <int kWords>
Cost Search<kWords>::cost(const State& s, int32_t p) {
  ++n_costs_;
  return part_.stages.cost(
      p, part_.sizes, [&](int32_t b) { return !touchers_[size_t(b)].meets(s.done); },
      [&](int32_t b) { return touchers_[size_t(b)].is_in(s.done, p); });
}

template <int kWords>
void Search<kWords>::take(State& s, int32_t p, Cost c) {
  s.peak = std::max(s.peak, s.level + c.rise);
  s.level += c.change;
  s.done.add(p);
  s.ready.drop(p);
  ++s.n_done;
  for (const int32_t q : part_.succs[p])
    if (preds_[size_t(q)].is_in(s.done, p)) s.ready.add(q);
  trail_.push_back({s.trail, p});
  s.trail = int32_t(trail_.size()) - 1;
}

// Does the pieces that are ready, raise no level and need no more than some piece has to: costs
// only fall while others are done, so no order is the worse for it.
template <int kWords>
void Search<kWords>::settle(State& s) {
  s.bound = std::max({s.bound, s.peak, limits_.floor});
  for (bool again = s.n_done < part_.count(); again;) {
    again = false;
    int64_t least = std::numeric_limits<int64_t>::max();
    s.ready.each([&](int32_t p) {
      const Cost c = cost(s, p);
      least = std::min(least, s.level + c.rise);
      if (c.change > 0 || s.level + c.rise > s.bound) return;
      take(s, p, c);
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
bool Search<kWords>::falls(const State& s, State& child) {
  if (child.peak > s.bound) return false;
  for (bool again = child.level > s.level; again;) {
    again = false;
    child.ready.each([&](int32_t p) {
      if (s.ready.has(p)) return;
      const Cost c = cost(child, p);
      if (c.change > 0 || child.level + c.rise > s.bound) return;
      take(child, p, c);
      again = true;
    });
  }
  return child.level <= s.level;
}

template <int kWords>
template <class F>
void Search<kWords>::expand(const State& s, F offer) {
  std::vector<State> children;
  bool is_decided = false;
  s.ready.each([&](int32_t p) {
    if (is_decided) return;
    const Cost c = cost(s, p);
    if (s.level + c.rise >= limits_.below) return;
    State child = s;
    take(child, p, c);
    if (falls(s, child)) {
      is_decided = true;
      children.clear();
    }
    children.push_back(child);
  });
  for (State& child : children) {
    settle(child);
    if (child.bound < limits_.below) offer(child);
  }
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
    states.push_back(s);
    open.push(int32_t(states.size()) - 1);
  };
  const State first = start();
  if (first.bound < limits_.below) offer(first);
  while (!open.empty()) {
    const State s = states[size_t(open.top())];
    open.pop();
    if (s.n_done == part_.count()) return found(s, true);
    if (n_costs_ > limits_.costs) return {};
    if (table.is_best(s)) expand(s, offer);
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
  const State first = start();
  if (first.bound < limits_.below) offer(first);
  for (size_t n = 0; n < size_t(part_.count()); ++n) {
    for (const State& s : kept[n]) expand(s, offer);
    std::vector<State>().swap(kept[n]);
  }
  return kept.back().empty() ? Found{} : found(kept.back().front(), false);
}

}  // namespace

Found search_all(const Part& part, Limits limits) {
  return part.count() <= 64 ? Search<1>(part, limits).all() : Search<4>(part, limits).all();
}

Found search_best(const Part& part, Limits limits, int width, int64_t& n_costs) {
  const auto run = [&](auto search) {
    Found found = search.best(width);
    n_costs = search.n_costs();
    return found;
  };
  return part.count() <= 64 ? run(Search<1>(part, limits)) : run(Search<4>(part, limits));
}

}  // namespace sdx
