// Tasks that belong together in some best order, as one piece each.
#pragma once

#include <algorithm>
#include <limits>

#include "exec/order/flow.h"

namespace sdx::ordering {

// Bytes that a piece needs above the level before it, and those by which it changes the level.
struct Cost {
  int64_t rise, change;
};

// A stretch of a piece. `rise` and `change` are what it costs whatever other pieces did; to both
// are added buffers that start here and that no piece has touched before. It then frees those that
// end here and that no piece has yet to touch.
struct Stage {
  int64_t rise = 0, change = 0;
  int32_t starts = 0, ends = 0, shares = 0;  // where its lists begin; the next stage's are the ends
};

// Buffers that may share bytes; ~b stands for a buffer b that no other piece touches.
struct Pair {
  int32_t from, to;
  int64_t size;
};

constexpr int32_t kMostPairs = 64;  // of a stage; more are not looked at

// What pieces do with buffers.
struct Stages {
  // Begins a stage, or ends the last.
  Stage& open() {
    stages.push_back({0, 0, int32_t(starts.size()), int32_t(ends.size()), int32_t(pairs.size())});
    return stages.back();
  }
  void close_piece() { begin.push_back(int32_t(stages.size())); }

  // The cost of a piece; both functions take the number of a buffer.
  template <class IsFirst, class IsLast>
  Cost cost(int32_t piece, const std::vector<int64_t>& sizes, IsFirst is_first,
            IsLast is_last) const {
    int64_t level = 0, most = std::numeric_limits<int64_t>::min();
    const Stage* stage = stages.data() + begin[size_t(piece)];
    for (const Stage* end = stages.data() + begin[size_t(piece) + 1]; stage < end; ++stage) {
      for (int32_t i = stage[0].starts; i < stage[1].starts; ++i)
        if (const int32_t b = starts[size_t(i)]; is_first(b)) level += sizes[size_t(b)];
      const int64_t shared =
          stage[0].shares == stage[1].shares ? 0 : shared_in(*stage, is_first, is_last);
      most = std::max(most, level + stage->rise - shared);
      level += stage->change;
      for (int32_t i = stage[0].ends; i < stage[1].ends; ++i)
        if (const int32_t b = ends[size_t(i)]; is_last(b)) level -= sizes[size_t(b)];
    }
    return {most, level};
  }

  std::vector<int32_t> begin{0};  // by piece
  std::vector<Stage> stages;      // one more than there are
  std::vector<int32_t> starts, ends;
  std::vector<Pair> pairs;

 private:
  // Pairs are taken in order, each buffer once on either side.
  template <class IsFirst, class IsLast>
  int64_t shared_in(const Stage& stage, IsFirst is_first, IsLast is_last) const {
    int64_t bytes = 0;
    uint64_t taken = 0;
    const Pair* pair = pairs.data() + stage.shares;
    const int32_t n = std::min((&stage)[1].shares - stage.shares, kMostPairs);
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

struct Pieces {
  int32_t count() const { return members.count(); }

  std::vector<int64_t> sizes;  // of buffers
  Lists members;               // tasks, in the order in which they run
  Lists preds, succs;          // of pieces; what follows from others may be left out
  Lists touches, touchers;     // of pieces, of buffers: those that two pieces touch, or more
  Stages stages;
};

// Pieces such that an order of least peak exists among the orders of pieces, numbered in a legal
// order whose peak is no higher than that of the tasks as they are numbered.
Pieces contract(const Flow& flow);

}  // namespace sdx::ordering
