// Clusters: tasks that run one after another in some order of least peak, contracted to one node of
// the search. Contraction keeps an optimal order (merge_tasks.h), so the search loses nothing by
// it.
#pragma once

#include <algorithm>
#include <limits>

#include "exec/execution_order/task_graph.h"

namespace sdx::ordering {

// `peak_increase` is what a cluster needs above the bytes that are live before it, `change` the
// difference between the live bytes after and before it.
struct Cost {
  int64_t peak_increase, change;
};

// A run of a cluster's tasks between which other clusters' progress changes nothing.
// `peak_increase` and `change` are fixed costs; buffers in `starts` add to both if no cluster has
// touched them before, and buffers in `ends` are freed after the stage if no cluster has yet to
// touch them.
struct Stage {
  int64_t peak_increase = 0, change = 0;
  int32_t starts = 0, ends = 0,
          in_place = 0;  // list begins; each ends where the next stage's begins
};

// Buffers that may share bytes; ~b stands for a buffer b that no other cluster touches.
struct StagePair {
  int32_t from, to;
  int64_t size;
};

constexpr int32_t kMaxPairs = 64;  // per stage, one bit each in a uint64_t; more are ignored

// The stages of all clusters, as flat lists: `cost` is the inner loop of every search.
struct Stages {
  // Begins a stage. One more call after the last stage sets its list ends.
  Stage& open() {
    stages.push_back({0, 0, int32_t(starts.size()), int32_t(ends.size()), int32_t(pairs.size())});
    return stages.back();
  }
  void close_cluster() { begin.push_back(int32_t(stages.size())); }

  // The cost of a cluster, given which buffers it would be the first or the last to touch.
  template <class IsFirst, class IsLast>
  Cost cost(int32_t cluster, const std::vector<int64_t>& sizes, IsFirst is_first,
            IsLast is_last) const {
    int64_t live_bytes = 0, most = std::numeric_limits<int64_t>::min();
    const Stage* stage = stages.data() + begin[size_t(cluster)];
    for (const Stage* end = stages.data() + begin[size_t(cluster) + 1]; stage < end; ++stage) {
      for (int32_t i = stage[0].starts; i < stage[1].starts; ++i)
        if (const int32_t b = starts[size_t(i)]; is_first(b)) live_bytes += sizes[size_t(b)];
      const int64_t shared =
          stage[0].in_place == stage[1].in_place ? 0 : shared_in(*stage, is_first, is_last);
      most = std::max(most, live_bytes + stage->peak_increase - shared);
      live_bytes += stage->change;
      for (int32_t i = stage[0].ends; i < stage[1].ends; ++i)
        if (const int32_t b = ends[size_t(i)]; is_last(b)) live_bytes -= sizes[size_t(b)];
    }
    return {most, live_bytes};
  }

  std::vector<int32_t> begin{0};  // by cluster
  std::vector<Stage> stages;      // and a sentinel
  std::vector<int32_t> starts, ends;
  std::vector<StagePair> pairs;

 private:
  // Greedy in listed order, as peak_of_order does it: each buffer once on either side.
  template <class IsFirst, class IsLast>
  int64_t shared_in(const Stage& stage, IsFirst is_first, IsLast is_last) const {
    int64_t bytes = 0;
    uint64_t taken = 0;
    const StagePair* pair = pairs.data() + stage.in_place;
    const int32_t n = std::min((&stage)[1].in_place - stage.in_place, kMaxPairs);
    for (int32_t i = 0; i < n; ++i) {
      const auto [from, to, size] = pair[i];
      bool is_taken = (from < 0 || is_last(from)) && (to < 0 || is_first(to));
      for (int32_t j = 0; is_taken && j < i; ++j)
        is_taken = !(taken >> j & 1) || (pair[j].from != from && pair[j].to != to);
      if (!is_taken) continue;
      taken |= uint64_t(1) << i;
      bytes += size;
    }
    return bytes;
  }
};

struct ClusterGraph {
  int32_t count() const { return members.count(); }

  std::vector<int64_t> sizes;  // of buffers
  ListOfLists members;         // tasks, in execution order
  ListOfLists preds, succs;    // of clusters; edges implied by others may be missing
  ListOfLists touches, users;  // only buffers that at least two clusters touch
  Stages stages;
};

// Clusters such that some order of least peak is an order of clusters. They are numbered in a
// topological order whose peak is no higher than that of the task graph's own numbering.
ClusterGraph contract(const TaskGraph& graph);

}  // namespace sdx::ordering
