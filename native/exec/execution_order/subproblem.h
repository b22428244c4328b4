// A measured order of all clusters, and stretches of it as subproblems that are searched alone.
#pragma once

#include "exec/execution_order/cluster_graph.h"

namespace sdx::ordering {

// The clusters of a stretch, numbered by their position in it. Only buffers that two of them touch
// are listed, and only starts and ends that the order within the stretch decides; everything else
// is a fixed cost of a stage.
struct Subproblem {
  int32_t count() const { return preds.count(); }

  // The same problem backwards in time: allocations become frees and the other way round. An order
  // and its reverse have equal peaks, but a search meets other choices first.
  Subproblem reversed() const;

  int64_t level = 0, end_level = 0;  // before and after the stretch
  ListOfLists preds, succs;
  std::vector<int64_t> sizes;  // of buffers
  ListOfLists touchers;        // of buffers
  Stages stages;
};

// An order of clusters with the level before each position and the bytes needed at it.
class MeasuredOrder {
 public:
  explicit MeasuredOrder(const ClusterGraph& clusters);

  // Replaces the order from position `begin` on. Call `measure` before reading levels again.
  void set(int32_t begin, std::span<const int32_t> order);
  void measure();

  std::span<const int32_t> order() const { return order_; }
  int64_t level(int32_t at) const { return levels_[size_t(at)]; }  // before a position
  int64_t peak(int32_t begin, int32_t end) const;                  // of positions [begin, end)
  int64_t peak() const { return peak(0, int32_t(order_.size())); }
  int32_t peak_position() const;  // the first position that needs most

  Subproblem subproblem(int32_t begin, int32_t end);

 private:
  struct Range {
    int32_t begin, end;
  };
  void number_buffers(Subproblem& subproblem, Range range);
  void add_stage(Subproblem& subproblem, Range range, const Stage& stage) const;

  const ClusterGraph& clusters_;
  std::vector<int32_t> order_, position_;  // clusters, and the position of each
  std::vector<int32_t> first_, last_;      // positions at which each buffer is touched
  std::vector<int64_t> needs_, levels_;    // by position; one more level, after the last
  std::vector<int32_t> number_;  // of buffers in the subproblem under construction; -1: none
};

}  // namespace sdx::ordering
