#include "exec/order.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "exec/order/improve.h"

namespace sdx {
namespace {

void need(bool is_so, const std::string& what) {
  if (!is_so) throw std::invalid_argument(what);
}

void check_in(int64_t number, size_t count, const std::string& what) {
  need(number >= 0 && size_t(number) < count,
       what + " " + std::to_string(number) + " is outside [0, " + std::to_string(count) + ")");
}

constexpr int64_t kMostBytes = int64_t(1) << 61;  // sums of what tasks need stay below

// Adds a size or scratch to a sum of them.
void add(int64_t bytes, int64_t& total, const std::string& what) {
  need(bytes >= 0, what + " is negative: " + std::to_string(bytes));
  need(bytes < kMostBytes - total,
       what + " makes the tasks need too many bytes: " + std::to_string(bytes));
  total += bytes;
}

void check_task(const Tasks& tasks, size_t t, std::vector<size_t>& touched, int64_t& total) {
  const Task& task = tasks.tasks[t];
  const std::string of = " of task " + std::to_string(t);
  for (const int32_t p : task.preds) check_in(p, tasks.tasks.size(), "predecessor" + of);
  for (const int32_t b : task.touches) {
    check_in(b, tasks.sizes.size(), "buffer" + of);
    add(tasks.sizes[size_t(b)], total, "the size of buffer " + std::to_string(b));
    touched[size_t(b)] = t;
  }
  for (const auto& [from, to] : task.shares)
    for (const int32_t b : {from, to}) {
      check_in(b, tasks.sizes.size(), "buffer in a pair" + of);
      need(touched[size_t(b)] == t && from != to, "pair (" + std::to_string(from) + ", " +
                                                      std::to_string(to) + ")" + of +
                                                      " is not of two buffers that it touches");
    }
  add(task.scratch, total, "scratch" + of);
}

}  // namespace

void check(const Tasks& tasks, const std::vector<int32_t>& order) {
  const size_t n = tasks.tasks.size(), limit = size_t(std::numeric_limits<int32_t>::max());
  need(n < limit && tasks.sizes.size() < limit, "there are too many tasks or buffers");
  need(order.size() == n,
       "the order has " + std::to_string(order.size()) + " tasks of " + std::to_string(n));
  std::vector<size_t> touched(tasks.sizes.size(), n);
  int64_t total = 0;
  for (size_t t = 0; t < n; ++t) check_task(tasks, t, touched, total);
  std::vector<char> is_done(n);
  for (const int32_t t : order) {
    check_in(t, n, "task of the order");
    need(!is_done[size_t(t)], "task " + std::to_string(t) + " comes twice");
    for (const int32_t p : tasks.tasks[size_t(t)].preds)
      need(is_done[size_t(p)],
           "task " + std::to_string(t) + " comes before its predecessor " + std::to_string(p));
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

namespace {

std::vector<int32_t> improved(const Tasks& tasks, const std::vector<int32_t>& given, int effort) {
  const int64_t peak = peak_of(tasks, given);
  const ordering::Flow flow(tasks, given);
  const int64_t floor = ordering::least_need(flow);
  if (peak <= floor || ordering::is_forced(flow)) return given;
  const ordering::Pieces pieces = ordering::contract(flow);
  ordering::Line line(pieces);
  ordering::improve(line, pieces, floor, effort);
  std::vector<int32_t> order;
  order.reserve(given.size());
  for (const int32_t piece : line.order())
    for (const int32_t t : pieces.members[piece]) order.push_back(given[size_t(t)]);
  return peak_of(tasks, order) < peak ? order : given;
}

}  // namespace

std::vector<int32_t> least_peak(const Tasks& tasks, const std::vector<int32_t>& given, int effort) {
  std::vector<int32_t> order = given;
  // Each effort goes on from what the one below it found, so that more is never worse.
  for (int e = 0; e <= std::clamp(effort, 0, kMaxEffort); ++e) order = improved(tasks, order, e);
  return order;
}

}  // namespace sdx
