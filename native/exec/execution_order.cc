#include "exec/execution_order.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "exec/execution_order/improve.h"

namespace sdx {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

void check_index(int64_t index, size_t count, const std::string& what) {
  require(index >= 0 && size_t(index) < count,
          what + " " + std::to_string(index) + " is outside [0, " + std::to_string(count) + ")");
}

// Sums of everything that tasks need stay below this, so that live bytes cannot overflow.
constexpr int64_t kMaxTotalBytes = int64_t(1) << 61;

void add_to_total(int64_t bytes, int64_t& total, const std::string& what) {
  require(bytes >= 0, what + " is negative: " + std::to_string(bytes));
  require(bytes < kMaxTotalBytes - total,
          what + " makes the tasks need too many bytes: " + std::to_string(bytes));
  total += bytes;
}

void check_task(const Tasks& tasks, size_t t, std::vector<size_t>& touched, int64_t& total) {
  const Task& task = tasks.tasks[t];
  const std::string of = " of task " + std::to_string(t);
  for (const int32_t p : task.preds) check_index(p, tasks.tasks.size(), "predecessor" + of);
  for (const int32_t b : task.touches) {
    check_index(b, tasks.sizes.size(), "buffer" + of);
    add_to_total(tasks.sizes[size_t(b)], total, "the size of buffer " + std::to_string(b));
    touched[size_t(b)] = t;
  }
  for (const auto& [from, to] : task.in_place)
    for (const int32_t b : {from, to}) {
      check_index(b, tasks.sizes.size(), "buffer in a pair" + of);
      require(touched[size_t(b)] == t && from != to, "pair (" + std::to_string(from) + ", " +
                                                         std::to_string(to) + ")" + of +
                                                         " is not of two buffers that it touches");
    }
  add_to_total(task.scratch, total, "scratch" + of);
}

}  // namespace

void check(const Tasks& tasks, const std::vector<int32_t>& order) {
  const size_t n = tasks.tasks.size(), limit = size_t(std::numeric_limits<int32_t>::max());
  require(n < limit && tasks.sizes.size() < limit, "there are too many tasks or buffers");
  require(order.size() == n,
          "the order has " + std::to_string(order.size()) + " tasks of " + std::to_string(n));
  std::vector<size_t> touched(tasks.sizes.size(), n);
  int64_t total = 0;
  for (size_t t = 0; t < n; ++t) check_task(tasks, t, touched, total);
  std::vector<char> is_done(n);
  for (const int32_t t : order) {
    check_index(t, n, "task of the order");
    require(!is_done[size_t(t)], "task " + std::to_string(t) + " comes twice");
    for (const int32_t p : tasks.tasks[size_t(t)].preds)
      require(is_done[size_t(p)],
              "task " + std::to_string(t) + " comes before its predecessor " + std::to_string(p));
    is_done[size_t(t)] = 1;
  }
}

int64_t peak_of_order(const Tasks& tasks, const std::vector<int32_t>& order) {
  const std::vector<int64_t>& sizes = tasks.sizes;
  // By buffer: the first and last task that touch it, and the task that used it in a pair.
  std::vector<int32_t> first(sizes.size(), -1), last(first), used_as_input(first),
      used_as_output(first);
  for (const int32_t t : order)
    for (const int32_t b : tasks.tasks[size_t(t)].touches) {
      if (first[size_t(b)] < 0) first[size_t(b)] = t;
      last[size_t(b)] = t;
    }
  std::vector<char> is_alive(sizes.size());
  int64_t live_bytes = 0, peak = 0;
  for (const int32_t t : order) {
    const Task& task = tasks.tasks[size_t(t)];
    for (const int32_t b : task.touches)
      if (!std::exchange(is_alive[size_t(b)], 1)) live_bytes += sizes[size_t(b)];
    int64_t shared = 0;
    for (const auto& [from, to] : task.in_place) {
      if (last[size_t(from)] != t || first[size_t(to)] != t) continue;
      if (used_as_input[size_t(from)] == t || used_as_output[size_t(to)] == t) continue;
      if (sizes[size_t(from)] != sizes[size_t(to)]) continue;
      used_as_input[size_t(from)] = used_as_output[size_t(to)] = t;
      shared += sizes[size_t(to)];
    }
    peak = std::max(peak, live_bytes + task.scratch - shared);
    for (const int32_t b : task.touches)
      if (last[size_t(b)] == t && std::exchange(is_alive[size_t(b)], 0))
        live_bytes -= sizes[size_t(b)];
  }
  return peak;
}

namespace {

std::vector<int32_t> improve_once(const Tasks& tasks, const std::vector<int32_t>& given,
                                  int effort) {
  const int64_t peak = peak_of_order(tasks, given);
  const ordering::TaskGraph graph(tasks, given);
  // Most segments end here: a chain has one order, and a single large task is a lower bound.
  const int64_t lower_bound = ordering::largest_task_need(graph);
  if (peak <= lower_bound || ordering::has_single_order(graph)) return given;
  const ordering::ClusterGraph clusters = ordering::contract(graph);
  ordering::MeasuredOrder measured(clusters);
  ordering::improve(measured, clusters, lower_bound, effort);
  std::vector<int32_t> order;
  order.reserve(given.size());
  for (const int32_t cluster : measured.order())
    for (const int32_t t : clusters.members[cluster]) order.push_back(given[size_t(t)]);
  return peak_of_order(tasks, order) < peak ? order : given;
}

}  // namespace

std::vector<int32_t> least_peak_order(const Tasks& tasks, const std::vector<int32_t>& given,
                                      int effort) {
  std::vector<int32_t> order = given;
  // Each effort starts from the result of the one below it, so that more effort is never worse.
  for (int e = 0; e <= std::clamp(effort, 0, kMaxEffort); ++e)
    order = improve_once(tasks, order, e);
  return order;
}

}  // namespace sdx
