#include "exec/order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <string>

#include "exec/order/flow.h"
#include "exec/order/search.h"

namespace sdx {
namespace {

void need(bool is_so, const std::string& what) {
  if (!is_so) throw std::invalid_argument(what);
}

void check_in(int64_t number, size_t count, const std::string& what) {
  need(number >= 0 && size_t(number) < count,
       what + " " + std::to_string(number) + " is outside [0, " + std::to_string(count) + ")");
}

void check_task(const Tasks& tasks, size_t t, std::vector<size_t>& touched) {
  const Task& task = tasks.tasks[t];
  const std::string of = " of task " + std::to_string(t);
  for (const int32_t p : task.preds) check_in(p, tasks.tasks.size(), "predecessor" + of);
  for (const int32_t b : task.touches) {
    check_in(b, tasks.sizes.size(), "buffer" + of);
    touched[size_t(b)] = t;
  }
  for (const auto& [from, to] : task.shares)
    for (const int32_t b : {from, to}) {
      check_in(b, tasks.sizes.size(), "shared buffer" + of);
      need(touched[size_t(b)] == t && from != to, "pair (" + std::to_string(from) + ", " +
                                                      std::to_string(to) + ")" + of +
                                                      " is not of two buffers that it touches");
    }
  need(task.scratch >= 0, "scratch" + of + " is negative");
}

constexpr int64_t kCostsPerTask = 64;  // that are found, at no effort
constexpr int32_t kWindow = 64;  // pieces that are searched together in a part that is too large

struct Range {
  int32_t begin, end;
  int64_t peak;
};

// Places of a part that can only be searched piecewise, cut where little is alive.
void add_windows(const Line& line, int32_t begin, int32_t end, std::vector<Range>& ranges) {
  while (begin < end) {
    int32_t at = std::min(begin + kWindow, end);
    for (int32_t i = at; at < end && i > begin + kWindow / 2; --i)
      if (line.level(i) < line.level(at)) at = i;
    ranges.push_back({begin, at, line.peak(begin, at)});
    begin = at;
  }
}

// Ranges of the order that are independent of each other: a piece which all others come before, or
// after, in any order parts them.
std::vector<Range> ranges_of(const Pieces& pieces, const Line& line) {
  const int32_t n = pieces.count();
  std::vector<char> parts(size_t(n), 1);
  int32_t nearest = n;
  for (int32_t p = n - 1; p >= 0; --p) {
    parts[size_t(p)] = nearest >= p;
    int32_t latest = -1;
    for (const int32_t q : pieces.preds[p]) latest = std::max(latest, q);
    nearest = std::min(nearest, latest);
  }
  int32_t farthest = -1;
  for (int32_t p = 0; p < n; ++p) {
    parts[size_t(p)] = parts[size_t(p)] && farthest <= p;
    int32_t earliest = n;
    for (const int32_t q : pieces.succs[p]) earliest = std::min(earliest, q);
    farthest = std::max(farthest, earliest);
  }
  std::vector<Range> ranges;
  for (int32_t begin = 0; begin < n;) {
    int32_t end = begin + 1;
    while (!parts[size_t(begin)] && end < n && !parts[size_t(end)]) ++end;
    if (end - begin <= kMostPieces)
      ranges.push_back({begin, end, line.peak(begin, end)});
    else
      add_windows(line, begin, end, ranges);
    begin = end;
  }
  return ranges;
}

// A better order of a part, if one is found.
Found solve(const Part& part, Limits limits) {
  Found best;
  const Part back = part.reversed();
  int64_t left = limits.costs;
  const auto accept = [&](Found found, bool is_reversed) {
    if (found.order.empty()) return;
    best = std::move(found);
    limits.below = best.peak;
    if (!is_reversed) return;
    std::reverse(best.order.begin(), best.order.end());
    for (int32_t& p : best.order) p = part.count() - 1 - p;
  };
  for (const Part* way : {&part, &back}) {
    int64_t n_costs = 0;
    accept(search_best(*way, limits, 2, n_costs), way == &back);
    left -= n_costs;
    if (!best.order.empty() && best.peak <= limits.floor) return best;
  }
  limits.costs = std::max(left, limits.costs) / 2;
  Found all = search_all(part, limits);
  if (all.is_least) {
    accept(std::move(all), false);
    best.is_least = true;
    return best;
  }
  return best;
}

void improve(Line& line, std::vector<Range> ranges, const Pieces& pieces, int64_t floor,
             int64_t rate) {
  std::stable_sort(ranges.begin(), ranges.end(),
                   [](const Range& a, const Range& b) { return a.peak > b.peak; });
  for (const Range& range : ranges) {
    if (range.peak <= floor) break;
    if (range.end - range.begin > 1) {
      int64_t n_tasks = 0;
      for (int32_t at = range.begin; at < range.end; ++at)
        n_tasks += int64_t(pieces.members[line.order()[size_t(at)]].size());
      Found found = solve(line.part(range.begin, range.end), {floor, range.peak, rate * n_tasks});
      if (!found.order.empty()) {
        for (int32_t& p : found.order) p = line.order()[size_t(range.begin + p)];
        line.set(range.begin, found.order);
        floor = std::max(floor, found.peak);
        continue;
      }
    }
    floor = range.peak;
  }
  line.measure();
}

}  // namespace

void check(const Tasks& tasks, const std::vector<int32_t>& order) {
  const size_t n = tasks.tasks.size(), limit = size_t(std::numeric_limits<int32_t>::max());
  need(n < limit && tasks.sizes.size() < limit, "there are too many tasks or buffers");
  need(order.size() == n,
       "the order has " + std::to_string(order.size()) + " tasks of " + std::to_string(n));
  int64_t total = 0;
  for (const int64_t size : tasks.sizes)
    need(size >= 0 && !__builtin_add_overflow(total, size, &total),
         "sizes of buffers are negative, or their sum is too large");
  std::vector<size_t> touched(tasks.sizes.size(), n);
  for (size_t t = 0; t < n; ++t) {
    check_task(tasks, t, touched);
    int64_t with_scratch = 0;
    need(!__builtin_add_overflow(total, tasks.tasks[t].scratch, &with_scratch),
         "scratch of task " + std::to_string(t) + " is too large");
  }
  std::vector<char> is_done(n);
  for (const int32_t t : order) {
    check_in(t, n, "task of the order");
    for (const int32_t p : tasks.tasks[size_t(t)].preds)
      need(is_done[size_t(p)],
           "task " + std::to_string(t) + " comes before its predecessor " + std::to_string(p));
    need(!is_done[size_t(t)], "task " + std::to_string(t) + " comes twice");
    is_done[size_t(t)] = 1;
  }
}

int64_t peak_of(const Tasks& tasks, const std::vector<int32_t>& order) {
  const std::vector<int64_t>& sizes = tasks.sizes;
  std::vector<int32_t> first(sizes.size(), -1), last(first), taken(first), given(first);
  for (const int32_t t : order)
    for (const int32_t b : tasks.tasks[size_t(t)].touches) {
      if (first[size_t(b)] < 0) first[size_t(b)] = t;
      last[size_t(b)] = t;
    }
  std::vector<char> is_alive(sizes.size());
  int64_t level = 0, peak = 0;
  for (const int32_t t : order) {
    const Task& task = tasks.tasks[size_t(t)];
    for (const int32_t b : task.touches)
      if (!std::exchange(is_alive[size_t(b)], 1)) level += sizes[size_t(b)];
    int64_t shared = 0;
    for (const auto& [from, to] : task.shares) {
      if (last[size_t(from)] != t || first[size_t(to)] != t) continue;
      if (taken[size_t(from)] == t || given[size_t(to)] == t) continue;
      if (sizes[size_t(from)] != sizes[size_t(to)]) continue;
      taken[size_t(from)] = given[size_t(to)] = t;
      shared += sizes[size_t(to)];
    }
    peak = std::max(peak, level + task.scratch - shared);
    for (const int32_t b : task.touches)
      if (last[size_t(b)] == t && std::exchange(is_alive[size_t(b)], 0)) level -= sizes[size_t(b)];
  }
  return peak;
}

std::vector<int32_t> least_peak(const Tasks& tasks, const std::vector<int32_t>& given, int effort) {
  const int64_t peak = peak_of(tasks, given);
  const Flow flow(tasks, given);
  const int64_t floor = least_need(flow);
  if (peak <= floor) return given;
  const Pieces pieces = contract(flow);
  Line line(pieces);
  int64_t rate = kCostsPerTask;
  for (int i = 0; i < std::min(effort, kMaxEffort); ++i) rate *= 10;
  improve(line, ranges_of(pieces, line), pieces, floor, rate);
  std::vector<int32_t> order;
  order.reserve(given.size());
  for (const int32_t piece : line.order())
    for (const int32_t t : pieces.members[piece]) order.push_back(given[size_t(t)]);
  return peak_of(tasks, order) < peak ? order : given;
}

}  // namespace sdx
