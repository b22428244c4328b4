// Runs the steps of one specialization: allocates the arena and the outputs, then calls each
// kernel's phases, on all threads of the session or, within a parallel group, one chain per thread.
// If the segment consumes its inputs, outputs and own blocks are allocated, and inputs and own
// blocks released, between the steps.
//
// A Runner belongs to one run and its calling thread. Chains of a parallel group call `run_step`
// from several threads concurrently; `timing_mutex_` guards the profile then.
#pragma once

#include <mutex>
#include <vector>

#include "exec/specialization.h"

namespace sdx {

class Runner {
 public:
  // `grown` are the slots of the segment's growths as plan_growths left them.
  Runner(const Specialization& specialization, RunState& state, int number, std::vector<Slot> grown,
         ResolveCaches caches)
      : specialization_(specialization),
        state_(state),
        number_(number),
        grown_(std::move(grown)),
        caches_(std::move(caches)) {}

  Outcome run();

 private:
  struct GroupRun;

  int add_profiled_run() const;

  Fault allocate(int64_t& requested);
  Fault allocate_blocks(size_t position);
  void release_blocks(size_t position);
  bool takes_new_block(const ExportedValue& exported) const;
  const OutputBuffer* output_buffer_for(const ExportedValue& exported) const;
  std::shared_ptr<std::byte> new_block(const ExportedValue& exported) const;
  void set_slot(const ExportedValue& exported);
  void set_growing_slot(const ExportedValue& exported, Slot& slot);
  std::byte* address_of(const Location& location) const;

  Status run_group(size_t first, int& failed_step);
  static Status run_chain(const void* args, const Data& data, int64_t begin, int64_t end);
  Status run_step(const PlannedStep& step, std::byte* local);
  Status run_phases(const PlannedStep& step, std::byte* local);

  const Specialization& specialization_;
  RunState& state_;
  int number_;  // of the segment
  std::vector<Slot> grown_;
  ResolveCaches caches_;
  BlockPool::Arena arena_;
  std::vector<BlockPool::Arena> own_blocks_;  // those that are in use
  std::byte* local_ = nullptr;                // thread-local areas of kernels, after the arena
  size_t next_export_ = 0;                    // the first that is not allocated yet
  size_t next_own_ = 0;                       // the first own block that is not allocated yet
  size_t next_release_ = 0;  // the first input that is not released yet, of last_reads
  size_t next_own_end_ = 0;  // the first own block that is not released yet, of own_ends
  int run_ = 0;              // index into the profile
  std::mutex timing_mutex_;
};

}  // namespace sdx
