// Runnable: a native program with what only Python needs of it (names, numpy types, owners).
//
// Thread-safe: several Python threads may run one Runnable concurrently. Runs release the GIL; all
// access to Python objects happens before and after that with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "bind/tensor_exchange.h"
#include "exec/program.h"

namespace sdx {

// A flag that any thread may raise to end runs (RunOptions.terminate).
struct Stop {
  std::atomic<bool> raised{false};
};

// Whether a run should stop: the flag is raised, or a signal such as Ctrl-C arrived. Signals are
// Python's, so looking for them takes the GIL; that happens once per kPeriod at most.
class StopCheck {
 public:
  explicit StopCheck(const Stop* stop) : stop_(stop), next_(Clock::now() + kPeriod) {}

  // RunState::should_stop.
  static bool should_stop(void* self) { return static_cast<StopCheck*>(self)->check(); }
  bool was_interrupted() const { return interrupted_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kPeriod = std::chrono::milliseconds(50);

  bool check();

  const Stop* stop_;
  Clock::time_point next_;
  bool interrupted_ = false;
};

// Owns the arrays that a run was fed, and drops those that it releases. A reference is Python's, so
// dropping one takes the GIL; arrays are collected until they are worth that.
class FedArrays {
 public:
  FedArrays(const ProgramSpec& spec, const RunState& state) : spec_(spec), state_(state) {}

  void add(PyObject* array) { arrays_.push_back(nanobind::borrow(array)); }
  // Puts what was not released back into the feed.
  void restore(nanobind::dict& feed, const nanobind::list& names) const;
  // RunState::release_input.
  static void release_input(void* self, int32_t slot) {
    static_cast<FedArrays*>(self)->release(slot);
  }

 private:
  static constexpr int64_t kWorthDropping = 1 << 18;  // bytes

  void release(int32_t slot);

  const ProgramSpec& spec_;
  const RunState& state_;
  std::vector<nanobind::object> arrays_;  // by input
  std::vector<nanobind::object> released_;
  int64_t released_bytes_ = 0;
};

// The result of a run on the checked path.
struct RunResult {
  nanobind::list outputs;
  std::vector<int64_t> dim_sizes;  // of all named dims
  nanobind::list spans;            // if profiled: (segment, step, begin, end, run, chain)
  std::vector<std::vector<int64_t>> dim_sizes_by_run;  // if profiled
};

// Names and numpy types of a program's inputs and outputs.
struct Interface {
  nanobind::list input_names, input_types, output_types;
  std::vector<int32_t> output_dtypes;
};

// How runs use the machine.
struct Settings {
  ThreadOptions threads;
  bool grows_in_place;
  int64_t limit_bytes;
};

class Runnable {
 public:
  // `keep_alive` owns the constants whose addresses the program has.
  Runnable(ProgramSpec spec, Interface interface, Settings settings,
           std::shared_ptr<BlockPool> pool, nanobind::object keep_alive);

  // The fast path: the outputs as a list; an Outcome if a step or a guard failed; None, before
  // anything has run, if the feed is unusual in any way and needs the checked path. A program that
  // consumes its inputs clears the feed, and drops each array after its last use.
  nanobind::object run_fast(nanobind::dict feed) const;

  // The same with memory for outputs: an array or None for each. The feed stays as it is: its
  // arrays are bound to several runs.
  nanobind::object run_fast_into(nanobind::dict feed, nanobind::object arrays) const;

  // The fast path of a feed of tensors; the outputs are tensors, too.
  nanobind::object run_fast_tensors(nanobind::dict feed, const TensorExchange& exchange) const;

  // The checked path, for values that Python has validated: a RunResult, or an Outcome if something
  // failed.
  nanobind::object run(const std::vector<int64_t>& names, nanobind::list inputs, const Stop* stop,
                       bool profiles, nanobind::object arrays) const;

  // The memory that runs with these sizes take, by segment; segments with unknown sizes are left
  // out.
  nanobind::list memory(const std::vector<int64_t>& names) const;

  // The same for one segment, of this program or of a body; `names` are the sizes of the named dims
  // of the program that contains it. None if sizes are unknown.
  nanobind::object memory_of(int number, const std::vector<int64_t>& names) const;

 private:
  // The three fast paths. With an exchange, inputs and outputs are tensors, else arrays.
  nanobind::object run_feed(nanobind::dict feed, nanobind::object arrays, bool consumes,
                            const TensorExchange* exchange) const;

  RunState new_state() const;
  Outcome run_in(RunState& state, StopCheck& stop_check) const;

  bool set_inputs(const nanobind::dict& feed, RunState& state, FedArrays& fed,
                  const TensorExchange* exchange) const;
  bool set_input(PyObject* array, size_t input, RunState& state) const;
  nanobind::object set_tensor(PyObject* tensor, size_t input, RunState& state,
                              const TensorExchange& exchange) const;
  void offer_output_buffers(RunState& state, nanobind::list arrays) const;

  bool is_numeric(size_t output) const;
  nanobind::list outputs(const RunState& state, nanobind::object arrays) const;
  nanobind::list output_tensors(const RunState& state, const TensorExchange& exchange) const;
  Slot unshared(size_t output, const RunState& state) const;

  nanobind::object keep_alive_;
  std::shared_ptr<const Program> program_;
  bool consumes_inputs_;
  std::vector<char> is_updated_;          // by input: steps write to it
  std::vector<int32_t> extended_inputs_;  // by output: the slot of the cache that it extends, or -1
  nanobind::list input_names_, input_types_, output_types_;
  std::vector<int32_t> output_dtypes_;
  ThreadOptions threads_;
  bool grows_in_place_;
  std::shared_ptr<BlockPool> pool_;
  int64_t limit_bytes_;
};

}  // namespace sdx
