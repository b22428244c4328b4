// Parallel groups, for sessions with ORT_PARALLEL: consecutive steps of an execution order that are
// too small to be split over threads run concurrently, as chains without dependencies on each
// other, each chain on one thread. Larger steps are split over all threads, one step after the
// other.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/dependencies.h"

namespace sdx {

struct StepCosts {
  static constexpr int64_t kNotParallel = -1;  // `work` of a step that runs in no group
  std::vector<int64_t> work;   // by step: ns on one thread; empty: there are no groups
  std::vector<int64_t> bytes;  // by step: written, scratch included
  int threads = 1;
};

// By position in the execution order; a step outside of all groups is a group of its own.
struct ParallelGroups {
  std::vector<int32_t> begin, end;  // the first and the last position of its group
  std::vector<int32_t> chain;       // the number of its chain in the group, the longest first
};

ParallelGroups find_parallel_groups(const Dependencies& dependencies, const StepCosts& costs,
                                    const std::vector<int32_t>& order);

}  // namespace sdx
