// The state of one run: its slots, its dims, the memory and threads it may use, and how it ended.
//
// A RunState belongs to one run and its calling thread; segments and control flow of the run share
// it. Only `Capacity` is shared between runs, and synchronizes itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "exec/block_pool.h"
#include "exec/string_arena.h"
#include "exec/thread_pool.h"
#include "kernels/kernel.h"

namespace sdx {

// The reserved rows of a block whose tensor may grow (exec/cache_growth.h). A run that appends rows
// claims them first: of two runs that continue from the same rows, one gets them and the other
// copies.
struct Capacity {
  int64_t rows = 0;  // that fit into the block
  std::atomic<int64_t> used{0};

  // Claims rows [from, to) for the caller alone; false if they are claimed already or do not fit.
  // A compare-and-swap suffices: rows are only ever appended, so `used` never returns to a value.
  bool claim(int64_t from, int64_t to) {
    return to <= rows && used.compare_exchange_strong(from, to);
  }
};

// A tensor between segments, with shared ownership of its bytes. It is contiguous except for the
// gap that spare capacity leaves after its rows.
struct Slot {
  View view;
  std::byte* data = nullptr;
  std::shared_ptr<std::byte> block;    // null for memory that the caller owns
  std::shared_ptr<Capacity> capacity;  // null for a tensor that cannot grow
};

// What ended a run early.
enum class Fault : uint8_t {
  none,
  guard,    // a guard does not hold: `index` is the guard
  size,     // a size is negative or exceeds what memory can hold
  step,     // a kernel refused its data: `index` is the step, `status` the sentence
  memory,   // the system has no memory of `bytes`
  stopped,  // RunOptions.terminate or a signal
  name,     // an input's dim contradicts its name or fixed size: `index` is the slot
  limit,    // `bytes` exceed the session's memory limit
};

// How a run ended, in numbers: Python turns them into an error that names the node.
struct Outcome {
  Fault fault = Fault::none;
  int segment = 0;
  int index = 0;
  Status status;
  std::vector<int64_t> dim_sizes;  // of all named dims
  int64_t bytes = 0;               // requested, for faults of memory and limit
};

// When a step ran, in which execution of its segment (`run`), and in which parallel chain.
struct StepTiming {
  int segment, step, run, chain;
  int64_t begin_ns, end_ns;
};

// What a profiled run collects.
struct Profile {
  std::vector<StepTiming> steps;
  std::vector<std::vector<int64_t>> dim_sizes;  // of named dims, by `run`; a body has its own
};

// The caller's memory for an output (IOBinding). It is used if the output has this shape and takes
// a block of its own. It overlaps nothing that the run reads, but may be a cache that the output
// extends (exec/cache_growth.h).
struct OutputBuffer {
  int32_t slot;
  View view;
  std::byte* data;

  bool fits(const View& output) const {
    return view.rank == output.rank && std::equal(view.dims, view.dims + view.rank, output.dims);
  }
  std::shared_ptr<std::byte> block() const {
    return {data, [](std::byte*) {}};
  }
};

struct RunState {
  std::vector<Slot> slots;
  std::vector<int64_t> dim_sizes;  // of named (symbolic) dims; -1: not known yet
  ThreadOptions threads;
  BlockPool* pool = nullptr;
  StringArena* strings = nullptr;
  int64_t limit_bytes = INT64_MAX;  // of all that is live simultaneously, arena and outputs
  const RunState* outer = nullptr;  // of the run whose control flow runs this one as a body
  int64_t collected_bytes = 0;      // of scan outputs that a loop of this run holds in no slot yet
  bool grows_in_place = true;
  bool (*should_stop)(void*) = nullptr;  // called between steps
  void* stop_context = nullptr;
  // Called after the last reader of an input slot, in segments that consume their inputs; null: the
  // caller keeps its inputs.
  void (*release_input)(void*, int32_t slot) = nullptr;
  void* release_context = nullptr;
  Profile* profile = nullptr;  // null: not profiled
  std::vector<OutputBuffer> output_buffers;
};

// `bytes` plus what this run and the runs around it hold already, each block counted once. Returns
// `bytes` alone where there is no limit to compare with.
int64_t with_live_bytes(const RunState& state, int64_t bytes);

}  // namespace sdx
