// The search for an execution order of least peak memory, for orders of steps that run in Python.
#include "exec/execution_order.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "bind/gil.h"
#include "bind/register.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;
using Ints = std::vector<int32_t>;
using Longs = std::vector<int64_t>;
using TaskTuple = std::tuple<Ints, Ints, std::vector<std::pair<int32_t, int32_t>>, int64_t>;

Tasks make_tasks(Longs sizes, std::vector<TaskTuple>& tuples) {
  Tasks tasks{std::move(sizes), {}};
  tasks.tasks.reserve(tuples.size());
  for (auto& [preds, touches, in_place, scratch] : tuples)
    tasks.tasks.push_back({std::move(preds), std::move(touches), std::move(in_place), scratch});
  return tasks;
}

// Arguments are copied from Python lists, so the search can run without the GIL.
Ints least_peak(Longs sizes, std::vector<TaskTuple> tuples, const Ints& order, int effort) {
  GilRelease nogil;
  const Tasks tasks = make_tasks(std::move(sizes), tuples);
  check(tasks, order);
  if (effort < 0 || effort > kMaxEffort)
    throw std::invalid_argument("effort " + std::to_string(effort) + " is outside [0, " +
                                std::to_string(kMaxEffort) + "]");
  return least_peak_order(tasks, order, effort);
}

int64_t order_peak(Longs sizes, std::vector<TaskTuple> tuples, const Ints& order) {
  GilRelease nogil;
  const Tasks tasks = make_tasks(std::move(sizes), tuples);
  check(tasks, order);
  return peak_of_order(tasks, order);
}

}  // namespace

void bind_execution_order(nb::module_& m) {
  m.def(
      "least_peak", least_peak, "sizes"_a, "tasks"_a, "given"_a, "effort"_a = 0,
      "The execution order of least peak memory that a search finds, never above that of `given`. "
      "A task is (preds, touches, (input, output) pairs in place, scratch bytes).");
  m.def("order_peak", order_peak, "sizes"_a, "tasks"_a, "order"_a,
        "The most bytes alive in any step of an order.");
}

}  // namespace sdx
