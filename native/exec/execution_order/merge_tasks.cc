#include "exec/execution_order/merge_tasks.h"

#include <algorithm>
#include <numeric>

namespace sdx::ordering {
namespace {

constexpr int kMaxRounds = 4;         // later rounds merge little
constexpr size_t kPredsLookedAt = 4;  // keeps `follows` constant-time for joins of many inputs

// A cover of the graph by paths, as a cheap approximation of reachability: tasks of one path follow
// each other. Paths prefer long chains (largest height, then largest depth), which are what
// residual blocks and decoders consist of. False negatives only cost merge_round.
class Paths {
 public:
  explicit Paths(const TaskGraph& graph) : graph_(graph) {
    const size_t n = size_t(graph.n_tasks());
    std::vector<int32_t> height(n), depth(n), next(n, -1), before(n, -1);
    for (int32_t t = int32_t(n) - 1; t >= 0; --t)
      for (const int32_t s : graph.succs[t]) {
        if (height[size_t(s)] < height[size_t(t)]) continue;
        height[size_t(t)] = height[size_t(s)] + 1;
        next[size_t(t)] = s;
      }
    for (int32_t t = 0; t < int32_t(n); ++t)
      for (const int32_t p : graph.preds[t]) {
        depth[size_t(t)] = std::max(depth[size_t(t)], depth[size_t(p)] + 1);
        int32_t& b = before[size_t(t)];
        if (next[size_t(p)] == t && (b < 0 || depth[size_t(b)] <= depth[size_t(p)])) b = p;
      }
    path_.resize(n);
    for (int32_t t = 0; t < int32_t(n); ++t)
      path_[size_t(t)] = before[size_t(t)] < 0 ? t : path_[size_t(before[size_t(t)])];
  }

  // Whether the later task is known to come after the earlier one in every topological order.
  bool follows(int32_t earlier, int32_t later) const {
    if (earlier >= later) return false;
    if (path_[size_t(earlier)] == path_[size_t(later)]) return true;
    const std::span<const int32_t> preds = graph_.preds[later], succs = graph_.succs[earlier];
    for (size_t i = 0; i < std::min(preds.size(), kPredsLookedAt); ++i)
      if (preds[i] > earlier && path_[size_t(preds[i])] == path_[size_t(earlier)]) return true;
    return std::binary_search(succs.begin(), succs.end(), later);
  }

 private:
  const TaskGraph& graph_;
  std::vector<int32_t> path_;  // by task: the first task of its path, which identifies it
};

// Bounds on the cost of a cluster over all sets of tasks that may have run before it; live bytes
// are relative to the one before the cluster.
struct CostBounds {
  int64_t min_peak_increase, max_peak_increase;  // bytes needed above the live bytes before it
  int64_t min_change, max_change;                // of the live bytes
  int64_t min_release_after_peak, max_release_after_peak;  // peak less live bytes after it

  // The bounds of this cluster followed by `b`.
  CostBounds then(const CostBounds& b) const {
    return {std::max(min_peak_increase, min_change + b.min_peak_increase),
            std::max(max_peak_increase, max_change + b.max_peak_increase),
            min_change + b.min_change,
            max_change + b.max_change,
            std::max(min_release_after_peak - b.max_change, b.min_release_after_peak),
            std::max(max_release_after_peak - b.min_change, b.max_release_after_peak)};
  }
};

// Whether a task is the first (or last) to touch a buffer: in every order, in none, or in some.
enum class Certainty : char { always, never, depends };

// Clusters are a union-find forest over tasks; the representative also holds the cluster's bounds
// and the ends of its task list.
class TaskMerger {
 public:
  explicit TaskMerger(const TaskGraph& graph)
      : graph_(graph), paths_(graph), n_(graph.n_tasks()), bounds_(size_t(n_)) {
    parent_.resize(size_t(n_));
    std::iota(parent_.begin(), parent_.end(), 0);
    head_ = tail_ = parent_;
    next_.assign(size_t(n_), -1);
    find_first_and_last();
    slot_.resize(size_t(graph.n_buffers()));
    for (int32_t t = 0; t < n_; ++t) bounds_[size_t(t)] = bounds_of(t);
    preds_ = transitive_reduction();
  }

  Clustering run() {
    for (int round = 0; round < kMaxRounds && merge_round(); ++round) continue;
    return renumbered();
  }

 private:
  void find_first_and_last();
  CostBounds bounds_of(int32_t task);
  std::pair<int64_t, int64_t> shared_by(int32_t task);
  ListOfLists transitive_reduction() const;
  ListOfLists cluster_preds() const;
  bool is_mergeable(int32_t a, int32_t b) const;
  bool can_wait(int32_t a, int32_t b) const;
  int32_t merge_into(int32_t a, int32_t b);
  bool merge_round();
  Clustering renumbered() const;

  int32_t find(int32_t t) const {
    while (parent_[size_t(t)] != t) t = parent_[size_t(t)] = parent_[size_t(parent_[size_t(t)])];
    return t;
  }
  // The cluster listed for `g`, which may have been merged since; -1: none.
  int32_t find_in(const std::vector<int32_t>& clusters, int32_t g) const {
    return g < 0 || clusters[size_t(g)] < 0 ? -1 : find(clusters[size_t(g)]);
  }

  const TaskGraph& graph_;
  const Paths paths_;
  const int32_t n_;
  std::vector<Certainty> first_, last_;         // by index into graph.touches.items
  std::vector<int32_t> slot_;                   // by buffer: that index, for the current task
  mutable std::vector<int32_t> parent_;         // union-find parents, with path halving
  std::vector<int32_t> head_, tail_, next_;     // linked lists of each cluster's tasks
  std::vector<CostBounds> bounds_;              // of clusters
  ListOfLists preds_;                           // of tasks
  std::vector<int32_t> only_pred_, only_succ_;  // of clusters; -1: none, or several
};

void TaskMerger::find_first_and_last() {
  const ListOfLists &touches = graph_.touches, &users = graph_.users;
  first_.assign(touches.items.size(), Certainty::depends);
  last_ = first_;
  std::vector<int32_t> slots(touches.items.size());  // in touches, of each toucher
  std::vector<int32_t> next(users.begin.begin(), users.begin.end() - 1);
  for (size_t i = 0; i < slots.size(); ++i)
    slots[size_t(next[size_t(touches.items[i])]++)] = int32_t(i);
  // `end` is the first (last) toucher in the given order. A toucher known to follow (precede) it is
  // never the first (last); if that holds for all others, `end` always is.
  const auto decide = [&](std::vector<Certainty>& certainty, int32_t b, int32_t end) {
    bool is_sure = true;
    int32_t own = 0;
    for (int32_t i = users.begin[size_t(b)]; i < users.begin[size_t(b) + 1]; ++i) {
      const int32_t t = users.items[size_t(i)];
      if (t == end)
        own = slots[size_t(i)];
      else if (paths_.follows(std::min(t, end), std::max(t, end)))
        certainty[size_t(slots[size_t(i)])] = Certainty::never;
      else
        is_sure = false;
    }
    if (is_sure) certainty[size_t(own)] = Certainty::always;
  };
  for (int32_t b = 0; b < graph_.n_buffers(); ++b) {
    if (users[b].empty()) continue;
    decide(first_, b, users[b].front());
    decide(last_, b, users[b].back());
  }
}

CostBounds TaskMerger::bounds_of(int32_t task) {
  const size_t begin = size_t(graph_.touches.begin[size_t(task)]);
  const std::span<const int32_t> touches = graph_.touches[task];
  // Bytes allocated and freed here in every order, and those for which it depends on the order.
  int64_t made = 0, open_made = 0, freed = 0, open_freed = 0;
  int64_t open_made_and_freed = 0;  // those of open_made that may be freed here
  for (size_t i = 0; i < touches.size(); ++i) {
    const int64_t size = graph_.sizes[size_t(touches[i])];
    const Certainty first = first_[begin + i], last = last_[begin + i];
    if (first == Certainty::always) made += size;
    if (first == Certainty::depends) open_made += size;
    if (first == Certainty::depends && last != Certainty::never) open_made_and_freed += size;
    if (last == Certainty::always) freed += size;
    if (last == Certainty::depends) open_freed += size;
  }
  const auto [shared, open_shared] = shared_by(task);
  const int64_t peak_increase = made + graph_.scratch[size_t(task)] - shared, change = made - freed;
  return {peak_increase - open_shared,
          peak_increase + open_made,
          change - open_freed,
          change + open_made,
          peak_increase - open_shared - change,
          peak_increase + open_made_and_freed - (change - open_freed)};
}

// Bytes that a task writes in place in every order, and those that it writes in place in some.
std::pair<int64_t, int64_t> TaskMerger::shared_by(int32_t task) {
  const std::span<const InPlacePair> in_place = graph_.in_place_of(task);
  if (in_place.empty()) return {0, 0};
  for (int32_t i = graph_.touches.begin[size_t(task)]; i < graph_.touches.begin[size_t(task) + 1];
       ++i)
    slot_[size_t(graph_.touches.items[size_t(i)])] = i;
  int64_t open = 0;
  for (const InPlacePair& pair : in_place) {
    const Certainty last = last_[size_t(slot_[size_t(pair.from)])];
    const Certainty first = first_[size_t(slot_[size_t(pair.to)])];
    if (last == Certainty::never || first == Certainty::never) continue;
    const int64_t size = graph_.sizes[size_t(pair.to)];
    if (in_place.size() == 1 && last == Certainty::always && first == Certainty::always)
      return {size, 0};
    open += size;
  }
  return {0, open};
}

// An approximate transitive reduction: drops predecessors that the latest two are known to follow.
// Fewer edges leave more clusters with a single predecessor or successor.
ListOfLists TaskMerger::transitive_reduction() const {
  ListOfLists made;
  for (int32_t t = 0; t < n_; ++t) {
    const std::span<const int32_t> all = graph_.preds[t];
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

// The predecessors of each cluster, by representative; empty for other tasks.
ListOfLists TaskMerger::cluster_preds() const {
  std::vector<int32_t> seen(size_t(n_), -1);
  ListOfLists made;
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

bool TaskMerger::is_mergeable(int32_t a, int32_t b) const {
  const CostBounds &before = bounds_[size_t(a)], &after = bounds_[size_t(b)];
  // Either argument of merge_tasks.h: a waits for b, or b follows a immediately.
  return can_wait(a, b) || (find_in(only_pred_, b) == a && after.max_change <= 0 &&
                            after.max_peak_increase <= before.min_release_after_peak);
}

// Whether cluster a may be delayed until right before its only successor b.
bool TaskMerger::can_wait(int32_t a, int32_t b) const {
  const CostBounds &before = bounds_[size_t(a)], &after = bounds_[size_t(b)];
  return find_in(only_succ_, a) == b && before.min_change >= 0 &&
         before.max_release_after_peak <= after.min_peak_increase;
}

// Merges cluster b, which then runs right after cluster a. The representative is the one whose
// position in the given order is legal for both: b's if a was delayed, else a's.
int32_t TaskMerger::merge_into(int32_t a, int32_t b) {
  const int32_t into = can_wait(a, b) ? b : a;
  const int32_t succ = find_in(only_succ_, a) == b ? only_succ_[size_t(b)] : -1;
  const int32_t pred = find_in(only_pred_, b) == a ? only_pred_[size_t(a)] : -1;
  next_[size_t(tail_[size_t(a)])] = head_[size_t(b)];
  head_[size_t(into)] = head_[size_t(a)];
  tail_[size_t(into)] = tail_[size_t(b)];
  bounds_[size_t(into)] = bounds_[size_t(a)].then(bounds_[size_t(b)]);
  only_succ_[size_t(into)] = succ;
  only_pred_[size_t(into)] = pred;
  parent_[size_t(a + b - into)] = into;
  return into;
}

// One round over all clusters: chains are followed backwards by the first argument, then clusters
// are delayed by the second. Returns whether any were merged.
bool TaskMerger::merge_round() {
  const ListOfLists preds = cluster_preds();
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
      b = merge_into(a, b);
      any = true;
    }
  }
  for (int32_t g = n_ - 1; g >= 0; --g) {
    const int32_t b = find(g) == g ? find_in(only_succ_, g) : -1;
    if (b < 0 || !can_wait(g, b)) continue;
    merge_into(g, b);
    any = true;
  }
  return any;
}

Clustering TaskMerger::renumbered() const {
  Clustering made;
  const ListOfLists preds = cluster_preds();
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

Clustering merge(const TaskGraph& graph) { return TaskMerger(graph).run(); }

}  // namespace sdx::ordering
