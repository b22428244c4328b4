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
  Found solve(const Part& part, Limits limits);
  void probe(const Part& part, const Part& back, Limits limits, int64_t once, Found& best);

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
  Found found = solve(line_.part(range.begin, range.end),
                      {floor, range.peak, std::max(pool_ / kShare, std::min(pool_, free_))});
  range.is_least = found.is_least;
  if (found.order.empty()) return false;
  for (int32_t& p : found.order) p = line_.order()[size_t(range.begin + p)];
  line_.set(range.begin, found.order);
  range.peak = found.peak;
  return true;
}

// The problem is the same backwards, where other choices come first, so narrow searches go both
// ways.
Found Improver::solve(const Part& part, Limits limits) {
  const Part back = part.reversed();
  int64_t work = 0;
  Found best = search_best(part, limits, 1, work);
  if (best.order.empty() || best.peak > limits.floor) {
    if (!best.order.empty()) limits.below = best.peak;
    Found other = search_best(back, limits, 1, work);
    if (!other.order.empty()) best = std::move(other), turn(best), limits.below = best.peak;
  }
  const int64_t once = work + 1;
  if (best.order.empty() || best.peak > limits.floor) {
    Found all = search_all(part, limits, work);
    if (all.is_least && all.order.empty()) best.is_least = true;
    if (!all.order.empty()) best = std::move(all);
  } else {
    best.is_least = best.peak <= floor_;
  }
  pool_ -= work;
  limits.work -= work;
  if (!best.is_least && (best.order.empty() || best.peak > limits.floor))
    probe(part, back, limits, once, best);
  return best;
}

// Aims at targets between the floor and the best: towards one, all that needs no more is as good,
// and less has to be decided.
void Improver::probe(const Part& part, const Part& back, Limits limits, int64_t once, Found& best) {
  int64_t low = limits.floor;
  for (int probe = 0; low < limits.below; ++probe) {
    const int64_t width = limits.work / once / std::max(1, kProbes - probe);
    if (width < 2) break;
    const int64_t target = low + (limits.below - 1 - low) / 2;
    const Limits aim{target, target + 1, 0};
    int64_t work = 0;
    Found found = search_best(part, aim, int(std::min(width, kMostWidth)), work);
    if (found.order.empty()) {
      found = search_best(back, aim, int(std::min(width, kMostWidth)), work);
      turn(found);
    }
    pool_ -= work;
    limits.work -= work;
    if (found.order.empty()) {
      low = target + 1;
    } else {
      best = std::move(found);
      limits.below = best.peak;
    }
  }
}

}  // namespace

void improve(Line& line, const Pieces& pieces, int64_t floor, int effort) {
  int64_t rate = kWorkPerTask;
  for (int i = 0; i < std::min(effort, kMaxEffort); ++i) rate *= 10;
  Improver(line, pieces, floor, rate).run();
}

}  // namespace sdx::ordering
