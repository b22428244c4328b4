// A measured order of all clusters, and ranges of it as subproblems that are searched alone.
#pragma once

#include "exec/execution_order/cluster_graph.h"

namespace sdx::ordering {

// The clusters of a range, numbered by their position in it. Only buffers that two of them touch
// are listed, and only starts and ends that the order within the range decides; everything else
// is a fixed cost of a stage.
struct Subproblem {
  int32_t count() const { return preds.count(); }

  // The same problem backwards in time: allocations become frees and the other way round. An order
  // and its reverse have equal peaks, but a search meets other choices first.
  Subproblem reversed() const;

  int64_t live_bytes = 0, end_live_bytes = 0;  // before and after the range
  ListOfLists preds, succs;
  std::vector<int64_t> sizes;  // of buffers
  ListOfLists users;           // of buffers
  Stages stages;
};

// An order of clusters with the live bytes before each position and the bytes needed at it.
class MeasuredOrder {
 public:
  explicit MeasuredOrder(const ClusterGraph& clusters);

  // Replaces the order from position `begin` on. Call `measure` before reading live bytes again.
  void set(int32_t begin, std::span<const int32_t> order);
  void measure();

  std::span<const int32_t> order() const { return order_; }
  int64_t live_bytes(int32_t at) const { return live_bytes_[size_t(at)]; }  // before a position
  int64_t peak(int32_t begin, int32_t end) const;  // of positions [begin, end)
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
  std::vector<int64_t> needs_,
      live_bytes_;               // by position; live_bytes_ has one more, after the last
  std::vector<int32_t> number_;  // of buffers in the subproblem under construction; -1: none
};

}  // namespace sdx::ordering
