#include "exec/order.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <stdexcept>
#include <string>

#include "exec/flow.h"

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

// The order that takes the task which changes the level most to the good, the first of equals.
std::vector<int32_t> greedy(const Flow& flow) {
  Walk walk(flow);
  using Entry = std::pair<int64_t, int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  std::vector<char> is_done(size_t(flow.n_tasks()));
  const auto offer = [&](int32_t t) {
    if (walk.is_ready(t) && !is_done[size_t(t)]) ready.push({walk.cost(t).change, t});
  };
  for (int32_t t = 0; t < flow.n_tasks(); ++t) offer(t);
  std::vector<int32_t> order;
  while (!ready.empty()) {
    const auto [change, t] = ready.top();
    ready.pop();
    if (is_done[size_t(t)] || walk.cost(t).change != change) continue;
    is_done[size_t(t)] = 1;
    const std::vector<int32_t> changed = walk.take(t);
    order.push_back(t);
    for (const int32_t s : flow.succs[t]) offer(s);
    for (const int32_t s : changed) offer(s);
  }
  return order;
}

int64_t peak_of(const Flow& flow, const std::vector<int32_t>& order) {
  Walk walk(flow);
  int64_t peak = 0;
  for (const int32_t t : order) {
    peak = std::max(peak, walk.level() + walk.cost(t).rise);
    walk.take(t);
  }
  return peak;
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
  const Flow flow(tasks, order);
  Walk walk(flow);
  int64_t peak = 0;
  for (int32_t t = 0; t < flow.n_tasks(); ++t) {
    peak = std::max(peak, walk.level() + walk.cost(t).rise);
    walk.take(t);
  }
  return peak;
}

std::vector<int32_t> least_peak(const Tasks& tasks, const std::vector<int32_t>& given, int) {
  const Flow flow(tasks, given);
  std::vector<int32_t> order = greedy(flow);
  if (peak_of(flow, order) >= peak_of(tasks, given)) return given;
  for (int32_t& t : order) t = given[size_t(t)];
  return order;
}

}  // namespace sdx
