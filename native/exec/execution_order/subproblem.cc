#include "exec/execution_order/subproblem.h"

#include <algorithm>
#include <numeric>

namespace sdx::ordering {

Subproblem Subproblem::reversed() const {
  Subproblem made;
  const int32_t n = count();
  made.live_bytes = end_live_bytes;
  made.end_live_bytes = live_bytes;
  made.sizes = sizes;
  const auto mirror = [n](const ListOfLists& lists, ListOfLists& into) {
    for (int32_t i = n - 1; i >= 0; --i) {
      for (const int32_t j : lists[i]) into.items.push_back(n - 1 - j);
      into.close();
    }
  };
  mirror(succs, made.preds);
  mirror(preds, made.succs);
  made.users = users;
  for (int32_t& p : made.users.items) p = n - 1 - p;
  for (int32_t p = n - 1; p >= 0; --p) {
    const size_t begin = size_t(stages.begin[size_t(p)]);
    // Backwards, a stage starts with the live bytes at its old end: its peak increase is measured
    // from there.
    for (size_t s = size_t(stages.begin[size_t(p) + 1]); s-- > begin;) {
      const Stage &stage = stages.stages[s], &next = stages.stages[s + 1];
      Stage& back = made.stages.open();
      back.peak_increase = stage.peak_increase - stage.change;
      back.change = -stage.change;
      made.stages.starts.insert(made.stages.starts.end(), stages.ends.begin() + stage.ends,
                                stages.ends.begin() + next.ends);
      made.stages.ends.insert(made.stages.ends.end(), stages.starts.begin() + stage.starts,
                              stages.starts.begin() + next.starts);
      for (int32_t i = stage.in_place; i < next.in_place; ++i) {
        const auto [from, to, size] = stages.pairs[size_t(i)];
        made.stages.pairs.push_back({to, from, size});
      }
    }
    made.stages.close_cluster();
  }
  made.stages.open();
  return made;
}

MeasuredOrder::MeasuredOrder(const ClusterGraph& clusters)
    : clusters_(clusters),
      order_(size_t(clusters.count())),
      position_(order_.size()),
      first_(clusters.sizes.size()),
      last_(clusters.sizes.size()),
      needs_(order_.size()),
      live_bytes_(order_.size() + 1),
      number_(clusters.sizes.size(), -1) {
  std::iota(order_.begin(), order_.end(), 0);
  position_ = order_;
  measure();
}

void MeasuredOrder::set(int32_t begin, std::span<const int32_t> order) {
  for (const int32_t cluster : order) {
    position_[size_t(cluster)] = begin;
    order_[size_t(begin++)] = cluster;
  }
}

// Linear in the touches of all clusters.
void MeasuredOrder::measure() {
  for (int32_t b = 0; b < clusters_.users.count(); ++b) {
    int32_t first = int32_t(order_.size()), last = -1;
    for (const int32_t cluster : clusters_.users[b]) {
      first = std::min(first, position_[size_t(cluster)]);
      last = std::max(last, position_[size_t(cluster)]);
    }
    first_[size_t(b)] = first;
    last_[size_t(b)] = last;
  }
  int64_t live_bytes = 0;
  for (int32_t at = 0; at < int32_t(order_.size()); ++at) {
    const Cost cost = clusters_.stages.cost(
        order_[size_t(at)], clusters_.sizes, [&](int32_t b) { return first_[size_t(b)] == at; },
        [&](int32_t b) { return last_[size_t(b)] == at; });
    live_bytes_[size_t(at)] = live_bytes;
    needs_[size_t(at)] = live_bytes + cost.peak_increase;
    live_bytes += cost.change;
  }
  live_bytes_.back() = live_bytes;
}

int64_t MeasuredOrder::peak(int32_t begin, int32_t end) const {
  return begin == end ? 0 : *std::max_element(needs_.begin() + begin, needs_.begin() + end);
}

int32_t MeasuredOrder::peak_position() const {
  return int32_t(std::max_element(needs_.begin(), needs_.end()) - needs_.begin());
}

Subproblem MeasuredOrder::subproblem(int32_t begin, int32_t end) {
  Subproblem made;
  made.live_bytes = live_bytes(begin);
  made.end_live_bytes = live_bytes(end);
  number_buffers(made, {begin, end});
  for (int32_t at = begin; at < end; ++at) {
    const int32_t cluster = order_[size_t(at)];
    for (const int32_t p : clusters_.preds[cluster])
      if (position_[size_t(p)] >= begin) made.preds.items.push_back(position_[size_t(p)] - begin);
    made.preds.close();
    const size_t last = size_t(clusters_.stages.begin[size_t(cluster) + 1]);
    for (size_t s = size_t(clusters_.stages.begin[size_t(cluster)]); s < last; ++s)
      add_stage(made, {begin, end}, clusters_.stages.stages[s]);
    made.stages.close_cluster();
  }
  made.stages.open();
  made.succs = inverse(made.preds, end - begin);
  // Reset for the next call: touching only these buffers keeps a call linear in its range.
  for (int32_t at = begin; at < end; ++at)
    for (const int32_t b : clusters_.touches[order_[size_t(at)]]) number_[size_t(b)] = -1;
  return made;
}

// Numbers the buffers that two clusters of the range touch and whose start or end the order within
// the range decides: those alive both before and after the range are a constant.
void MeasuredOrder::number_buffers(Subproblem& subproblem, Range range) {
  constexpr int32_t kSeenOnce = -2;
  ListOfLists touches;
  for (int32_t at = range.begin; at < range.end; ++at)
    for (const int32_t b : clusters_.touches[order_[size_t(at)]]) {
      int32_t& number = number_[size_t(b)];
      const bool is_alive = first_[size_t(b)] < range.begin,
                 is_kept = last_[size_t(b)] >= range.end;
      if (number >= 0 || (is_alive && is_kept)) continue;
      if (number == -1) {
        number = kSeenOnce;
        continue;
      }
      number = int32_t(subproblem.sizes.size());
      subproblem.sizes.push_back(clusters_.sizes[size_t(b)]);
    }
  for (int32_t at = range.begin; at < range.end; ++at) {
    for (const int32_t b : clusters_.touches[order_[size_t(at)]])
      if (number_[size_t(b)] >= 0) touches.items.push_back(number_[size_t(b)]);
    touches.close();
  }
  subproblem.users = inverse(touches, int32_t(subproblem.sizes.size()));
}

// Copies a stage; starts and ends that the range decides alone become part of its fixed costs.
void MeasuredOrder::add_stage(Subproblem& subproblem, Range range, const Stage& stage) const {
  const Stages& all = clusters_.stages;
  const Stage& next = (&stage)[1];
  Stage& made = subproblem.stages.open();
  made.peak_increase = stage.peak_increase;
  made.change = stage.change;
  const auto starts = [&](int32_t b) { return first_[size_t(b)] >= range.begin; };
  const auto ends = [&](int32_t b) { return last_[size_t(b)] < range.end; };
  for (int32_t i = stage.starts; i < next.starts; ++i) {
    const int32_t b = all.starts[size_t(i)], number = number_[size_t(b)];
    if (!starts(b)) continue;
    if (number >= 0) {
      subproblem.stages.starts.push_back(number);
    } else {
      made.peak_increase += clusters_.sizes[size_t(b)];
      made.change += clusters_.sizes[size_t(b)];
    }
  }
  for (int32_t i = stage.ends; i < next.ends; ++i) {
    const int32_t b = all.ends[size_t(i)], number = number_[size_t(b)];
    if (!ends(b)) continue;
    if (number >= 0)
      subproblem.stages.ends.push_back(number);
    else
      made.change -= clusters_.sizes[size_t(b)];
  }
  for (int32_t i = stage.in_place; i < next.in_place; ++i) {
    const auto [from, to, size] = all.pairs[size_t(i)];
    // A pair whose input is alive after the range, or whose output is alive before it, never
    // shares.
    if ((from >= 0 && !ends(from)) || (to >= 0 && !starts(to))) continue;
    const auto renumbered = [&](int32_t b) {
      return b < 0 ? b : number_[size_t(b)] < 0 ? ~b : number_[size_t(b)];
    };
    subproblem.stages.pairs.push_back({renumbered(from), renumbered(to), size});
  }
}

}  // namespace sdx::ordering
