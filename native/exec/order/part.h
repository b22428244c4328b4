// A stretch of an order, to be searched alone.
#pragma once

#include "exec/order/pieces.h"

namespace sdx::ordering {

// The pieces of a stretch, numbered as they stand in the order. Only buffers that two of them touch
// are listed, and only starts and ends that the order within the part decides.
struct Part {
  int32_t count() const { return preds.count(); }

  // The same, run backwards: what is made is freed, and the other way round.
  Part reversed() const;

  int64_t level = 0, end_level = 0;  // before and after
  Lists preds, succs;
  std::vector<int64_t> sizes;  // of buffers
  Lists touchers;              // of buffers
  Stages stages;
};

// An order of pieces and what it needs.
class Line {
 public:
  explicit Line(const Pieces& pieces);

  // Puts pieces in another order, from a place on.
  void set(int32_t begin, std::span<const int32_t> order);
  // Finds needs and levels of the whole order.
  void measure();

  std::span<const int32_t> order() const { return order_; }
  int64_t level(int32_t at) const { return levels_[size_t(at)]; }  // before a place
  int64_t peak(int32_t begin, int32_t end) const;                  // of places [begin, end)
  int64_t peak() const { return peak(0, int32_t(order_.size())); }
  int32_t peak_place() const;  // the first place that needs most

  Part part(int32_t begin, int32_t end);

 private:
  struct Range {
    int32_t begin, end;
  };
  void number_buffers(Part& part, Range range);
  void add_stage(Part& part, Range range, const Stage& stage) const;

  const Pieces& pieces_;
  std::vector<int32_t> order_, place_;  // pieces, and where each stands
  std::vector<int32_t> first_, last_;   // places at which each buffer is touched
  std::vector<int64_t> needs_, levels_;
  std::vector<int32_t> number_;  // of buffers in the part that is being made; -1: none
};

}  // namespace sdx::ordering
