#include "exec/order/improve.h"

#include <algorithm>

#include "exec/order/search.h"
#include "exec/order/simple.h"

namespace sdx::ordering {
namespace {

constexpr int64_t kWorkPerTask = 80;  // costs of pieces that are found, at no effort
constexpr int64_t kFreeTasks = 80;    // for which work is allowed beyond those that there are
constexpr int64_t kMostWidth = 256;
constexpr int kProbes = 6;
constexpr int64_t kShare = 2;     // of the work that is left goes into one part
constexpr int32_t kWindow = 64;   // pieces searched together in a part that is too large
constexpr int32_t kNearest = 16;  // pieces on either side of a peak that are searched first

struct Range {
  int32_t begin, end;
  int64_t peak;
  bool is_least = false;  // no order of its pieces has a lower peak
};

// Ranges of the order that are independent of each other: where all pieces before a place come
// before all those after it in any order. That is so if each piece that no other before the place
// follows has an edge to each that follows no other after it.
std::vector<Range> ranges_of(const Pieces& pieces, const Line& line) {
  const int32_t n = pieces.count();
  std::vector<int32_t> latest(size_t(n), -1), earliest(size_t(n), n);
  for (int32_t p = 0; p < n; ++p)
    for (const int32_t q : pieces.preds[p]) {
      latest[size_t(p)] = std::max(latest[size_t(p)], q);
      earliest[size_t(q)] = std::min(earliest[size_t(q)], p);
    }
  // By place: how many such pieces and edges there are, as differences to the place before.
  std::vector<int64_t> ends(size_t(n) + 2), starts(ends), edges(ends);
  const auto count = [](std::vector<int64_t>& counts, int32_t after, int32_t until) {
    if (after >= until) return;
    ++counts[size_t(after) + 1];
    --counts[size_t(until) + 1];
  };
  for (int32_t p = 0; p < n; ++p) {
    count(ends, p, earliest[size_t(p)]);
    count(starts, latest[size_t(p)], p);
    for (const int32_t q : pieces.preds[p]) count(edges, latest[size_t(p)], earliest[size_t(q)]);
  }
  std::vector<Range> ranges;
  int32_t begin = 0;
  for (int32_t at = 1; at <= n; ++at) {
    for (auto* counts : {&ends, &starts, &edges})
      (*counts)[size_t(at)] += (*counts)[size_t(at) - 1];
    if (at < n && ends[size_t(at)] * starts[size_t(at)] != edges[size_t(at)]) continue;
    ranges.push_back({begin, at, line.peak(begin, at), at == begin + 1});
    begin = at;
  }
  return ranges;
}

// Turns an order of a reversed part around.
void turn(Found& found) {
  std::reverse(found.order.begin(), found.order.end());
  for (int32_t& p : found.order) p = int32_t(found.order.size()) - 1 - p;
}

// The search for an order of one part. The problem is the same backwards, where other choices come
// first, so narrow searches go both ways.
class Solver {
 public:
  Solver(const Part& part, Limits limits)
      : part_(part), back_(part.reversed()), limits_(limits), left_(limits.work) {}

  Found run() {
    narrow(1, limits_);
    once_ = work() + 1;
    if (is_good() || tries_all(left_ / 4)) return std::move(best_);
    narrow(width_of(left_ / 3), limits_);
    if (is_good() || tries_all(left_ * 2 / 3)) return std::move(best_);
    probe();
    return std::move(best_);
  }

  int64_t work() const { return limits_.work - left_; }

 private:
  bool is_good() const { return !best_.order.empty() && best_.peak <= limits_.floor; }
  int width_of(int64_t work) const { return int(std::min(work / once_, kMostWidth)); }
  bool narrow(int width, Limits limits);
  bool tries_all(int64_t work);
  void probe();

  const Part& part_;
  const Part back_;
  Limits limits_;
  Found best_;
  int64_t left_, once_ = 1;  // work: what is left, and what the narrowest searches take
};

// Whether a narrow search finds something better.
bool Solver::narrow(int width, Limits limits) {
  bool is_better = false;
  for (const Part* way : {&part_, &back_}) {
    if (width < 1 || limits.floor >= limits.below) break;
    int64_t done = 0;
    Found found = search_best(*way, limits, width, done);
    left_ -= done;
    if (found.order.empty()) continue;
    if (way == &back_) turn(found);
    limits_.below = limits.below = found.peak;
    best_ = std::move(found);
    is_better = true;
  }
  return is_better;
}

// Whether a search over all sets comes to its end: what it found, or what was known, is the least.
bool Solver::tries_all(int64_t work) {
  int64_t done = 0;
  Found found = search_all(part_, {limits_.floor, limits_.below, work}, done);
  left_ -= done;
  if (!found.order.empty()) best_ = std::move(found);
  best_.is_least = found.is_least;
  return found.is_least;
}

// Aims at targets between the floor and the best: towards one, all that needs no more is as good,
// and less has to be decided.
void Solver::probe() {
  int64_t low = limits_.floor;
  for (int probe = 0; low < limits_.below; ++probe) {
    const int width = width_of(left_ / std::max(1, kProbes - probe));
    if (width < 2) break;
    const int64_t target = low + (limits_.below - 1 - low) / 2;
    if (!narrow(width, {target, target + 1, 0})) low = target + 1;
  }
}

class Improver {
 public:
  Improver(Line& line, const Pieces& pieces, int64_t floor, int64_t rate)
      : line_(line),
        pieces_(pieces),
        floor_(floor),
        free_(rate * kFreeTasks),
        pool_(free_ + rate * int64_t(pieces.members.items.size())) {}

  void run() {
    std::vector<Range> ranges = ranges_of(pieces_, line_);
    for (Range& range : ranges) {
      if (range.end - range.begin <= kWindow || range.peak <= floor_) continue;
      simplify(range);
      if (range.end - range.begin <= kMostPieces) continue;
      std::vector<Range> windows = windows_of(range);
      search(windows, false);
      range.peak = line_.peak(range.begin, range.end);
    }
    search(ranges, true);
    while (pool_ > 0 && search_peak(ranges)) continue;
  }

 private:
  void search(std::vector<Range>& ranges, bool are_independent);
  void simplify(Range& range);
  std::vector<Range> windows_of(const Range& range) const;
  bool search_peak(const std::vector<Range>& ranges);
  bool improve(Range& range, int64_t floor);

  Line& line_;
  const Pieces& pieces_;
  int64_t floor_;       // no order has a lower peak
  const int64_t free_;  // work that any part may take
  int64_t pool_;        // work that is left
};

// Searches ranges, the one that needs most first, until one cannot be improved: no order of the
// others lowers the peak then.
void Improver::search(std::vector<Range>& ranges, bool are_independent) {
  std::vector<Range*> sorted;
  for (Range& range : ranges) sorted.push_back(&range);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Range* a, const Range* b) { return a->peak > b->peak; });
  int64_t floor = floor_;
  for (Range* range : sorted) {
    if (range->peak <= floor) break;
    if (!range->is_least && range->end - range->begin <= kMostPieces) improve(*range, floor);
    floor = std::max(floor, range->peak);
    if (range->is_least && are_independent) floor_ = floor;
  }
  line_.measure();
}

// Puts a range into the best of some simple orders, if that is better.
void Improver::simplify(Range& range) {
  const Part part = line_.part(range.begin, range.end), back = part.reversed();
  Found found[] = {greedy(part), oldest_first(part), greedy(back), oldest_first(back)};
  turn(found[2]);
  turn(found[3]);
  Found& best = *std::min_element(std::begin(found), std::end(found),
                                  [](const Found& a, const Found& b) { return a.peak < b.peak; });
  if (best.peak >= range.peak) return;
  for (int32_t& p : best.order) p = line_.order()[size_t(range.begin + p)];
  line_.set(range.begin, best.order);
  line_.measure();
  range.peak = line_.peak(range.begin, range.end);
}

// Cuts a range where little is alive.
std::vector<Range> Improver::windows_of(const Range& range) const {
  std::vector<Range> windows;
  for (int32_t begin = range.begin; begin < range.end;) {
    int32_t end = std::min(begin + kWindow, range.end);
    for (int32_t at = end; end < range.end && at > begin + kWindow / 2; --at)
      if (line_.level(at) < line_.level(end)) end = at;
    windows.push_back({begin, end, line_.peak(begin, end)});
    begin = end;
  }
  return windows;
}

// Searches around the piece that needs most, in wider and wider windows; whether the peak is lower.
bool Improver::search_peak(const std::vector<Range>& ranges) {
  const int32_t at = line_.peak_place();
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), at,
                                      [](int32_t a, const Range& r) { return a < r.begin; });
  const Range& range = after[-1];
  if (range.is_least || line_.peak() <= floor_) return false;
  pool_ -= int64_t(pieces_.touches.items.size()) + pieces_.count();
  for (int32_t half = kNearest; 2 * half <= kMostPieces && pool_ > 0; half *= 2) {
    Range window{std::max(range.begin, at - half), std::min(range.end, at + half), line_.peak()};
    const int64_t rest = std::max(line_.peak(0, window.begin),
                                  line_.peak(window.end, int32_t(line_.order().size())));
    if (!improve(window, std::max(floor_, std::min(rest, window.peak - 1)))) continue;
    line_.measure();
    return true;
  }
  return false;
}

// Puts a range into a better order, if one is found with a share of the work that is left.
bool Improver::improve(Range& range, int64_t floor) {
  const Part part = line_.part(range.begin, range.end);
  Solver solver(part, {floor, range.peak, std::max(pool_ / kShare, std::min(pool_, free_))});
  Found found = solver.run();
  pool_ -= solver.work();
  range.is_least = found.is_least;
  if (found.order.empty()) return false;
  for (int32_t& p : found.order) p = line_.order()[size_t(range.begin + p)];
  line_.set(range.begin, found.order);
  range.peak = found.peak;
  return true;
}

}  // namespace

void improve(Line& line, const Pieces& pieces, int64_t floor, int effort) {
  int64_t rate = kWorkPerTask;
  for (int i = 0; i < std::min(effort, kMaxEffort); ++i) rate *= 10;
  Improver(line, pieces, floor, rate).run();
}

}  // namespace sdx::ordering
