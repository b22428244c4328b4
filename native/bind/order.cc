// The search for an order of tasks, in Python.
#include "exec/order.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "bind/gil.h"
#include "bind/parts.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;
using Ints = std::vector<int32_t>;
using Longs = std::vector<int64_t>;
using TaskTuple = std::tuple<Ints, Ints, std::vector<std::pair<int32_t, int32_t>>, int64_t>;

Tasks make_tasks(Longs sizes, std::vector<TaskTuple>& given) {
  Tasks tasks{std::move(sizes), {}};
  tasks.tasks.reserve(given.size());
  for (auto& [preds, touches, shares, scratch] : given)
    tasks.tasks.push_back({std::move(preds), std::move(touches), std::move(shares), scratch});
  return tasks;
}

Ints least_peak_order(Longs sizes, std::vector<TaskTuple> given, const Ints& order, int effort) {
  GilRelease nogil;
  const Tasks tasks = make_tasks(std::move(sizes), given);
  check(tasks, order);
  if (effort < 0 || effort > kMaxEffort)
    throw std::invalid_argument("effort " + std::to_string(effort) + " is outside [0, " +
                                std::to_string(kMaxEffort) + "]");
  return least_peak(tasks, order, effort);
}

int64_t peak_of_order(Longs sizes, std::vector<TaskTuple> given, const Ints& order) {
  GilRelease nogil;
  const Tasks tasks = make_tasks(std::move(sizes), given);
  check(tasks, order);
  return peak_of(tasks, order);
}

}  // namespace

void bind_order(nb::module_& m) {
  m.def("least_peak", least_peak_order, "sizes"_a, "tasks"_a, "given"_a, "effort"_a = 0,
        "The order with the least peak that a search finds, never above that of the order given. "
        "A task is (preds, touches, pairs that may share, scratch bytes).");
  m.def("peak_of", peak_of_order, "sizes"_a, "tasks"_a, "order"_a,
        "The most bytes that are alive in a step of an order.");
}

}  // namespace sdx
