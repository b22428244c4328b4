#include "exec/order/groups.h"

#include <algorithm>
#include <numeric>

namespace sdx::ordering {
namespace {

constexpr int kRounds = 4;
constexpr size_t kLooked = 4;  // predecessors that are looked at, where all would be too many

// Paths that cover the tasks: a cheap way to see that a task comes after another.
class Paths {
 public:
  explicit Paths(const Flow& flow) : flow_(flow) {
    const size_t n = size_t(flow.n_tasks());
    std::vector<int32_t> height(n), depth(n), next(n, -1), before(n, -1);
    for (int32_t t = int32_t(n) - 1; t >= 0; --t)
      for (const int32_t s : flow.succs[t]) {
        if (height[size_t(s)] < height[size_t(t)]) continue;
        height[size_t(t)] = height[size_t(s)] + 1;
        next[size_t(t)] = s;
      }
    for (int32_t t = 0; t < int32_t(n); ++t)
      for (const int32_t p : flow.preds[t]) {
        depth[size_t(t)] = std::max(depth[size_t(t)], depth[size_t(p)] + 1);
        int32_t& b = before[size_t(t)];
        if (next[size_t(p)] == t && (b < 0 || depth[size_t(b)] <= depth[size_t(p)])) b = p;
      }
    path_.resize(n);
    for (int32_t t = 0; t < int32_t(n); ++t)
      path_[size_t(t)] = before[size_t(t)] < 0 ? t : path_[size_t(before[size_t(t)])];
  }

  // Whether the later task is known to come after the earlier one in every order.
  bool follows(int32_t earlier, int32_t later) const {
    if (earlier >= later) return false;
    if (path_[size_t(earlier)] == path_[size_t(later)]) return true;
    const std::span<const int32_t> preds = flow_.preds[later], succs = flow_.succs[earlier];
    for (size_t i = 0; i < std::min(preds.size(), kLooked); ++i)
      if (preds[i] > earlier && path_[size_t(preds[i])] == path_[size_t(earlier)]) return true;
    return std::binary_search(succs.begin(), succs.end(), later);
  }

 private:
  const Flow& flow_;
  std::vector<int32_t> path_;  // the first task of each task's path
};

// What a group needs and changes, whatever was done before it: from the least to the most, where it
// depends on that. Both are counted from the level before the group.
struct Bounds {
  int64_t rise_least, rise_most;      // bytes that it needs
  int64_t change_least, change_most;  // by which it changes the level
  int64_t fall;  // the least by which the level after it lies below what it needs
  int64_t lift;  // the most by which what it needs lies above the level after it

  Bounds then(const Bounds& b) const {
    return {std::max(rise_least, change_least + b.rise_least),
            std::max(rise_most, change_most + b.rise_most),
            change_least + b.change_least,
            change_most + b.change_most,
            std::max(fall - b.change_most, b.fall),
            std::max(lift - b.change_least, b.lift)};
  }
};

enum class Turn : char { always, never, open };  // to be the first, or the last, to touch a buffer

class Merging {
 public:
  explicit Merging(const Flow& flow)
      : flow_(flow), paths_(flow), n_(flow.n_tasks()), bounds_(size_t(n_)) {
    group_.resize(size_t(n_));
    std::iota(group_.begin(), group_.end(), 0);
    head_ = tail_ = group_;
    next_.assign(size_t(n_), -1);
    find_turns();
    slot_.resize(size_t(flow.n_buffers()));
    for (int32_t t = 0; t < n_; ++t) bounds_[size_t(t)] = bounds_of(t);
    preds_ = reduced();
  }

  Groups run() {
    for (int round = 0; round < kRounds && merges(); ++round) continue;
    return numbered();
  }

 private:
  void find_turns();
  Bounds bounds_of(int32_t task);
  std::pair<int64_t, int64_t> shared_by(int32_t task);
  Lists reduced() const;
  Lists regrouped() const;
  bool is_mergeable(int32_t a, int32_t b) const;
  bool waits(int32_t a, int32_t b) const;
  int32_t join(int32_t a, int32_t b);
  bool merges();
  Groups numbered() const;

  int32_t find(int32_t t) const {
    while (group_[size_t(t)] != t) t = group_[size_t(t)] = group_[size_t(group_[size_t(t)])];
    return t;
  }
  int32_t find_in(const std::vector<int32_t>& groups, int32_t g) const {
    return g < 0 || groups[size_t(g)] < 0 ? -1 : find(groups[size_t(g)]);
  }

  const Flow& flow_;
  const Paths paths_;
  const int32_t n_;
  std::vector<Turn> first_, last_;      // by place in flow.touches
  std::vector<int32_t> slot_;           // places of the buffers of the task that is looked at
  mutable std::vector<int32_t> group_;  // towards the task that stands for the group
  std::vector<int32_t> head_, tail_, next_;
  std::vector<Bounds> bounds_;                  // of groups
  Lists preds_;                                 // of tasks
  std::vector<int32_t> only_pred_, only_succ_;  // of groups; -1: none, or several
};

void Merging::find_turns() {
  const Lists &touches = flow_.touches, &touchers = flow_.touchers;
  first_.assign(touches.items.size(), Turn::open);
  last_ = first_;
  std::vector<int32_t> slots(touches.items.size());  // in touches, of each toucher
  std::vector<int32_t> next(touchers.begin.begin(), touchers.begin.end() - 1);
  for (size_t i = 0; i < slots.size(); ++i)
    slots[size_t(next[size_t(touches.items[i])]++)] = int32_t(i);
  // Those that come after the first, or before the last, cannot be it; if that are all, it is.
  const auto decide = [&](std::vector<Turn>& turns, int32_t b, int32_t end) {
    bool is_sure = true;
    int32_t own = 0;
    for (int32_t i = touchers.begin[size_t(b)]; i < touchers.begin[size_t(b) + 1]; ++i) {
      const int32_t t = touchers.items[size_t(i)];
      if (t == end)
        own = slots[size_t(i)];
      else if (paths_.follows(std::min(t, end), std::max(t, end)))
        turns[size_t(slots[size_t(i)])] = Turn::never;
      else
        is_sure = false;
    }
    if (is_sure) turns[size_t(own)] = Turn::always;
  };
  for (int32_t b = 0; b < flow_.n_buffers(); ++b) {
    if (touchers[b].empty()) continue;
    decide(first_, b, touchers[b].front());
    decide(last_, b, touchers[b].back());
  }
}

Bounds Merging::bounds_of(int32_t task) {
  const size_t begin = size_t(flow_.touches.begin[size_t(task)]);
  const std::span<const int32_t> touches = flow_.touches[task];
  int64_t made = 0, open_made = 0, held = 0, freed = 0, open_freed = 0;
  for (size_t i = 0; i < touches.size(); ++i) {
    const int64_t size = flow_.sizes[size_t(touches[i])];
    const Turn first = first_[begin + i], last = last_[begin + i];
    if (first == Turn::always) made += size;
    if (first == Turn::open) open_made += size;
    if (first == Turn::open && last != Turn::never) held += size;
    if (last == Turn::always) freed += size;
    if (last == Turn::open) open_freed += size;
  }
  const auto [shared, open_shared] = shared_by(task);
  const int64_t rise = made + flow_.scratch[size_t(task)] - shared, change = made - freed;
  return {rise - open_shared,          rise + open_made,
          change - open_freed,         change + open_made,
          rise - open_shared - change, rise + held - (change - open_freed)};
}

// Bytes that a task shares in any order, and those that it may share.
std::pair<int64_t, int64_t> Merging::shared_by(int32_t task) {
  const std::span<const Share> shares = flow_.shares_of(task);
  if (shares.empty()) return {0, 0};
  for (int32_t i = flow_.touches.begin[size_t(task)]; i < flow_.touches.begin[size_t(task) + 1];
       ++i)
    slot_[size_t(flow_.touches.items[size_t(i)])] = i;
  int64_t open = 0;
  for (const Share& share : shares) {
    const Turn last = last_[size_t(slot_[size_t(share.from)])];
    const Turn first = first_[size_t(slot_[size_t(share.to)])];
    if (last == Turn::never || first == Turn::never) continue;
    const int64_t size = flow_.sizes[size_t(share.to)];
    if (shares.size() == 1 && last == Turn::always && first == Turn::always) return {size, 0};
    open += size;
  }
  return {0, open};
}

// Without the predecessors that others come after.
Lists Merging::reduced() const {
  Lists made;
  for (int32_t t = 0; t < n_; ++t) {
    const std::span<const int32_t> all = flow_.preds[t];
    int32_t latest = -1, second = -1;
    for (const int32_t p : all) {
      second = std::max(second, std::min(p, latest));
      latest = std::max(latest, p);
    }
    for (const int32_t p : all)
      if (!paths_.follows(p, latest) && !paths_.follows(p, second)) made.items.push_back(p);
    made.close();
  }
  return made;
}

// The predecessors of each group, by the tasks that stand for them; none for other tasks.
Lists Merging::regrouped() const {
  std::vector<int32_t> seen(size_t(n_), -1);
  Lists made;
  for (int32_t g = 0; g < n_; ++g) {
    seen[size_t(g)] = g;
    for (int32_t t = find(g) == g ? head_[size_t(g)] : -1; t >= 0; t = next_[size_t(t)])
      for (const int32_t p : preds_[t])
        if (const int32_t q = find(p); std::exchange(seen[size_t(q)], g) != g)
          made.items.push_back(q);
    made.close();
  }
  return made;
}

bool Merging::is_mergeable(int32_t a, int32_t b) const {
  const Bounds &before = bounds_[size_t(a)], &after = bounds_[size_t(b)];
  return waits(a, b) ||
         (find_in(only_pred_, b) == a && after.change_most <= 0 && after.rise_most <= before.fall);
}

// Whether group a may be delayed until its only successor b.
bool Merging::waits(int32_t a, int32_t b) const {
  const Bounds &before = bounds_[size_t(a)], &after = bounds_[size_t(b)];
  return find_in(only_succ_, a) == b && before.change_least >= 0 && before.lift <= after.rise_least;
}

// Group b runs right after group a; a number of the two, the one whose place in the order is legal
// for both, stands for them.
int32_t Merging::join(int32_t a, int32_t b) {
  const int32_t into = waits(a, b) ? b : a;
  const int32_t succ = find_in(only_succ_, a) == b ? only_succ_[size_t(b)] : -1;
  const int32_t pred = find_in(only_pred_, b) == a ? only_pred_[size_t(a)] : -1;
  next_[size_t(tail_[size_t(a)])] = head_[size_t(b)];
  head_[size_t(into)] = head_[size_t(a)];
  tail_[size_t(into)] = tail_[size_t(b)];
  bounds_[size_t(into)] = bounds_[size_t(a)].then(bounds_[size_t(b)]);
  only_succ_[size_t(into)] = succ;
  only_pred_[size_t(into)] = pred;
  group_[size_t(a + b - into)] = into;
  return into;
}

// One round over all groups; whether any were merged.
bool Merging::merges() {
  const Lists preds = regrouped();
  only_pred_.assign(size_t(n_), -1);
  only_succ_.assign(size_t(n_), -1);
  std::vector<int32_t> n_succs(size_t(n_), 0);
  for (int32_t g = 0; g < n_; ++g) {
    if (preds[g].size() == 1) only_pred_[size_t(g)] = preds[g][0];
    for (const int32_t p : preds[g]) only_succ_[size_t(p)] = n_succs[size_t(p)]++ == 0 ? g : -1;
  }
  bool any = false;
  for (int32_t g = 0; g < n_; ++g) {
    int32_t b = find(g) == g ? g : -1;
    for (int32_t a = find_in(only_pred_, b); a >= 0; a = find_in(only_pred_, b)) {
      if (!is_mergeable(a, b)) break;
      b = join(a, b);
      any = true;
    }
  }
  for (int32_t g = n_ - 1; g >= 0; --g) {
    const int32_t b = find(g) == g ? find_in(only_succ_, g) : -1;
    if (b < 0 || !waits(g, b)) continue;
    join(g, b);
    any = true;
  }
  return any;
}

Groups Merging::numbered() const {
  Groups made;
  const Lists preds = regrouped();
  std::vector<int32_t> number(size_t(n_), -1);
  for (int32_t g = 0; g < n_; ++g) {
    if (find(g) != g) continue;
    number[size_t(g)] = made.members.count();
    for (int32_t t = head_[size_t(g)]; t >= 0; t = next_[size_t(t)])
      made.members.items.push_back(t);
    made.members.close();
    for (const int32_t p : preds[g]) made.preds.items.push_back(number[size_t(p)]);
    made.preds.close();
  }
  return made;
}

}  // namespace

Groups merge(const Flow& flow) { return Merging(flow).run(); }

}  // namespace sdx::ordering
