#include "exec/execution_order/improve.h"

#include <algorithm>

#include "exec/execution_order/heuristics.h"
#include "exec/execution_order/search.h"

namespace sdx::ordering {
namespace {

constexpr int64_t kWorkPerTask = 80;    // cluster costs to compute per task, at effort 0
constexpr int64_t kBaseWorkTasks = 80;  // added to the tasks: small graphs can afford more work
constexpr int64_t kMaxBeamWidth = 256;
constexpr int kProbes = 6;         // targets of the final bisection
constexpr int64_t kWorkShare = 2;  // one range may use 1/kWorkShare of the remaining work
constexpr int32_t kWindow = 64;    // clusters searched together in a range that is too large
constexpr int32_t kNearest = 16;   // clusters on either side of the peak that are searched first

struct Range {
  int32_t begin, end;
  int64_t peak;
  bool is_optimal = false;  // proven: no order of its clusters has a lower peak
};

// Cuts the order where all clusters before a position precede all clusters after it in every
// topological order. That holds if each sink of the clusters before it (no successor before the
// position) has an edge to each source of those after it, i.e. if sinks * sources == edges between
// them. The three counts change at two positions per cluster or edge, so difference arrays and
// prefix sums give them for all positions in linear time.
std::vector<Range> ranges_of(const ClusterGraph& clusters, const MeasuredOrder& order) {
  const int32_t n = clusters.count();
  std::vector<int32_t> latest(size_t(n), -1), earliest(size_t(n), n);
  for (int32_t p = 0; p < n; ++p)
    for (const int32_t q : clusters.preds[p]) {
      latest[size_t(p)] = std::max(latest[size_t(p)], q);
      earliest[size_t(q)] = std::min(earliest[size_t(q)], p);
    }
  // By position: sinks before it, sources after it and edges between these, as differences.
  std::vector<int64_t> sinks(size_t(n) + 2), sources(sinks), edges(sinks);
  const auto count = [](std::vector<int64_t>& counts, int32_t after, int32_t until) {
    if (after >= until) return;
    ++counts[size_t(after) + 1];
    --counts[size_t(until) + 1];
  };
  for (int32_t p = 0; p < n; ++p) {
    count(sinks, p, earliest[size_t(p)]);
    count(sources, latest[size_t(p)], p);
    for (const int32_t q : clusters.preds[p]) count(edges, latest[size_t(p)], earliest[size_t(q)]);
  }
  std::vector<Range> ranges;
  int32_t begin = 0;
  for (int32_t at = 1; at <= n; ++at) {
    for (auto* counts : {&sinks, &sources, &edges})
      (*counts)[size_t(at)] += (*counts)[size_t(at) - 1];
    if (at < n && sinks[size_t(at)] * sources[size_t(at)] != edges[size_t(at)]) continue;
    ranges.push_back({begin, at, order.peak(begin, at), at == begin + 1});
    begin = at;
  }
  return ranges;
}

// Translates an order of a reversed subproblem back.
void reverse_order(SearchResult& found) {
  std::reverse(found.order.begin(), found.order.end());
  for (int32_t& p : found.order) p = int32_t(found.order.size()) - 1 - p;
}

// Searches one subproblem with increasing effort: a beam of width 1, branch and bound, a wide beam,
// branch and bound with more work, and at last beams that aim at targets. Beam searches also run on
// the reversed subproblem, where other choices come first.
class Solver {
 public:
  Solver(const Subproblem& subproblem, Limits limits)
      : subproblem_(subproblem),
        reversed_(subproblem.reversed()),
        limits_(limits),
        work_left_(limits.work) {}

  SearchResult run() {
    beams(1, limits_);
    unit_work_ = work() + 1;
    if (reached_lower_bound() || branch_and_bound(work_left_ / 4)) return std::move(best_);
    beams(width_of(work_left_ / 3), limits_);
    if (reached_lower_bound() || branch_and_bound(work_left_ * 2 / 3)) return std::move(best_);
    probe();
    return std::move(best_);
  }

  int64_t work() const { return limits_.work - work_left_; }

 private:
  bool reached_lower_bound() const {
    return !best_.order.empty() && best_.peak <= limits_.lower_bound;
  }
  int width_of(int64_t work) const { return int(std::min(work / unit_work_, kMaxBeamWidth)); }
  bool beams(int width, Limits limits);
  bool branch_and_bound(int64_t work);
  void probe();

  const Subproblem& subproblem_;
  const Subproblem reversed_;
  Limits limits_;
  SearchResult best_;
  int64_t work_left_, unit_work_ = 1;  // work that is left; work of a beam search of width 1
};

// Beam searches in both directions; whether one finds a better order.
bool Solver::beams(int width, Limits limits) {
  bool is_better = false;
  for (const Subproblem* direction : {&subproblem_, &reversed_}) {
    if (width < 1 || limits.lower_bound >= limits.upper_bound) break;
    int64_t done = 0;
    SearchResult found = beam_search(*direction, limits, width, done);
    work_left_ -= done;
    if (found.order.empty()) continue;
    if (direction == &reversed_) reverse_order(found);
    limits_.upper_bound = limits.upper_bound = found.peak;
    best_ = std::move(found);
    is_better = true;
  }
  return is_better;
}

// Branch and bound; whether it ends within `work`: then the best order is proven optimal.
bool Solver::branch_and_bound(int64_t work) {
  int64_t done = 0;
  SearchResult found =
      best_first_search(subproblem_, {limits_.lower_bound, limits_.upper_bound, work}, done);
  work_left_ -= done;
  if (!found.order.empty()) best_ = std::move(found);
  best_.is_optimal = found.is_optimal;
  return found.is_optimal;
}

// Bisects the peak between the floor and the best: with a target as floor, every state below it is
// as good as any other, so a beam of the same width has less to decide.
void Solver::probe() {
  int64_t low = limits_.lower_bound;
  for (int probe = 0; low < limits_.upper_bound; ++probe) {
    const int width = width_of(work_left_ / std::max(1, kProbes - probe));
    if (width < 2) break;
    const int64_t target = low + (limits_.upper_bound - 1 - low) / 2;
    if (!beams(width, {target, target + 1, 0})) low = target + 1;
  }
}

class Improver {
 public:
  Improver(MeasuredOrder& order, const ClusterGraph& clusters, int64_t lower_bound, int64_t rate)
      : order_(order),
        clusters_(clusters),
        lower_bound_(lower_bound),
        base_work_(rate * kBaseWorkTasks),
        work_left_(base_work_ + rate * int64_t(clusters.members.items.size())) {}

  void run() {
    std::vector<Range> ranges = ranges_of(clusters_, order_);
    for (Range& range : ranges) {
      if (range.end - range.begin <= kWindow || range.peak <= lower_bound_) continue;
      apply_heuristics(range);
      if (range.end - range.begin <= kMaxClusters) continue;
      std::vector<Range> windows = windows_of(range);
      search(windows, false);
      range.peak = order_.peak(range.begin, range.end);
    }
    search(ranges, true);
    while (work_left_ > 0 && search_peak(ranges)) continue;
  }

 private:
  void search(std::vector<Range>& ranges, bool are_independent);
  void apply_heuristics(Range& range);
  std::vector<Range> windows_of(const Range& range) const;
  bool search_peak(const std::vector<Range>& ranges);
  bool improve(Range& range, int64_t lower_bound);

  MeasuredOrder& order_;
  const ClusterGraph& clusters_;
  int64_t lower_bound_;      // a proven lower bound of the peak
  const int64_t base_work_;  // work that any subproblem may use
  int64_t work_left_;
};

// Searches ranges, the one that needs most first, until one cannot be improved: no order of the
// others lowers the peak then.
void Improver::search(std::vector<Range>& ranges, bool are_independent) {
  std::vector<Range*> sorted;
  for (Range& range : ranges) sorted.push_back(&range);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Range* a, const Range* b) { return a->peak > b->peak; });
  int64_t lower_bound = lower_bound_;
  for (Range* range : sorted) {
    if (range->peak <= lower_bound) break;
    if (!range->is_optimal && range->end - range->begin <= kMaxClusters)
      improve(*range, lower_bound);
    lower_bound = std::max(lower_bound, range->peak);
    if (range->is_optimal && are_independent) lower_bound_ = lower_bound;
  }
  order_.measure();
}

// Replaces the order of a range by the best heuristic one, if that is better.
void Improver::apply_heuristics(Range& range) {
  const Subproblem subproblem = order_.subproblem(range.begin, range.end),
                   back = subproblem.reversed();
  SearchResult found[] = {greedy_order(subproblem), oldest_value_first(subproblem),
                          greedy_order(back), oldest_value_first(back)};
  reverse_order(found[2]);
  reverse_order(found[3]);
  SearchResult& best = *std::min_element(
      std::begin(found), std::end(found),
      [](const SearchResult& a, const SearchResult& b) { return a.peak < b.peak; });
  if (best.peak >= range.peak) return;
  for (int32_t& p : best.order) p = order_.order()[size_t(range.begin + p)];
  order_.set(range.begin, best.order);
  order_.measure();
  range.peak = order_.peak(range.begin, range.end);
}

// Cuts a range into windows at positions with few live bytes: few buffers connect two windows then.
std::vector<Range> Improver::windows_of(const Range& range) const {
  std::vector<Range> windows;
  for (int32_t begin = range.begin; begin < range.end;) {
    int32_t end = std::min(begin + kWindow, range.end);
    for (int32_t at = end; end < range.end && at > begin + kWindow / 2; --at)
      if (order_.live_bytes(at) < order_.live_bytes(end)) end = at;
    windows.push_back({begin, end, order_.peak(begin, end)});
    begin = end;
  }
  return windows;
}

// Searches windows of growing width around the peak position; whether the peak is lower then. A
// window need not get below the peak of the rest.
bool Improver::search_peak(const std::vector<Range>& ranges) {
  const int32_t at = order_.peak_position();
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), at,
                                      [](int32_t a, const Range& r) { return a < r.begin; });
  const Range& range = after[-1];
  if (range.is_optimal || order_.peak() <= lower_bound_) return false;
  work_left_ -= int64_t(clusters_.touches.items.size()) + clusters_.count();
  for (int32_t half = kNearest; 2 * half <= kMaxClusters && work_left_ > 0; half *= 2) {
    Range window{std::max(range.begin, at - half), std::min(range.end, at + half), order_.peak()};
    const int64_t rest = std::max(order_.peak(0, window.begin),
                                  order_.peak(window.end, int32_t(order_.order().size())));
    if (!improve(window, std::max(lower_bound_, std::min(rest, window.peak - 1)))) continue;
    order_.measure();
    return true;
  }
  return false;
}

// Replaces the order of a range by a better one, if one is found within a share of the remaining
// work.
bool Improver::improve(Range& range, int64_t lower_bound) {
  const Subproblem subproblem = order_.subproblem(range.begin, range.end);
  Solver solver(subproblem, {lower_bound, range.peak,
                             std::max(work_left_ / kWorkShare, std::min(work_left_, base_work_))});
  SearchResult found = solver.run();
  work_left_ -= solver.work();
  range.is_optimal = found.is_optimal;
  if (found.order.empty()) return false;
  for (int32_t& p : found.order) p = order_.order()[size_t(range.begin + p)];
  order_.set(range.begin, found.order);
  range.peak = found.peak;
  return true;
}

}  // namespace

void improve(MeasuredOrder& order, const ClusterGraph& clusters, int64_t lower_bound, int effort) {
  int64_t rate = kWorkPerTask;
  for (int i = 0; i < std::min(effort, kMaxEffort); ++i) rate *= 10;
  Improver(order, clusters, lower_bound, rate).run();
}

}  // namespace sdx::ordering
