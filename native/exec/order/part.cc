#include "exec/order/part.h"

#include <algorithm>
#include <numeric>

namespace sdx::ordering {

Part Part::reversed() const {
  Part made;
  const int32_t n = count();
  made.level = end_level;
  made.end_level = level;
  made.sizes = sizes;
  const auto turn = [n](const Lists& lists, Lists& into) {
    for (int32_t i = n - 1; i >= 0; --i) {
      for (const int32_t j : lists[i]) into.items.push_back(n - 1 - j);
      into.close();
    }
  };
  turn(succs, made.preds);
  turn(preds, made.succs);
  made.touchers = touchers;
  for (int32_t& p : made.touchers.items) p = n - 1 - p;
  for (int32_t p = n - 1; p >= 0; --p) {
    const size_t begin = size_t(stages.begin[size_t(p)]);
    for (size_t s = size_t(stages.begin[size_t(p) + 1]); s-- > begin;) {
      const Stage &stage = stages.stages[s], &next = stages.stages[s + 1];
      Stage& back = made.stages.open();
      back.rise = stage.rise - stage.change;
      back.change = -stage.change;
      made.stages.starts.insert(made.stages.starts.end(), stages.ends.begin() + stage.ends,
                                stages.ends.begin() + next.ends);
      made.stages.ends.insert(made.stages.ends.end(), stages.starts.begin() + stage.starts,
                              stages.starts.begin() + next.starts);
      for (int32_t i = stage.shares; i < next.shares; ++i) {
        const auto [from, to, size] = stages.pairs[size_t(i)];
        made.stages.pairs.push_back({to, from, size});
      }
    }
    made.stages.close_piece();
  }
  made.stages.open();
  return made;
}

Line::Line(const Pieces& pieces)
    : pieces_(pieces),
      order_(size_t(pieces.count())),
      place_(order_.size()),
      first_(pieces.sizes.size()),
      last_(pieces.sizes.size()),
      needs_(order_.size()),
      levels_(order_.size() + 1),
      number_(pieces.sizes.size(), -1) {
  std::iota(order_.begin(), order_.end(), 0);
  place_ = order_;
  measure();
}

void Line::set(int32_t begin, std::span<const int32_t> order) {
  for (const int32_t piece : order) {
    place_[size_t(piece)] = begin;
    order_[size_t(begin++)] = piece;
  }
}

void Line::measure() {
  for (int32_t b = 0; b < pieces_.touchers.count(); ++b) {
    int32_t first = int32_t(order_.size()), last = -1;
    for (const int32_t piece : pieces_.touchers[b]) {
      first = std::min(first, place_[size_t(piece)]);
      last = std::max(last, place_[size_t(piece)]);
    }
    first_[size_t(b)] = first;
    last_[size_t(b)] = last;
  }
  int64_t level = 0;
  for (int32_t at = 0; at < int32_t(order_.size()); ++at) {
    const Cost cost = pieces_.stages.cost(
        order_[size_t(at)], pieces_.sizes, [&](int32_t b) { return first_[size_t(b)] == at; },
        [&](int32_t b) { return last_[size_t(b)] == at; });
    levels_[size_t(at)] = level;
    needs_[size_t(at)] = level + cost.rise;
    level += cost.change;
  }
  levels_.back() = level;
}

int64_t Line::peak(int32_t begin, int32_t end) const {
  return begin == end ? 0 : *std::max_element(needs_.begin() + begin, needs_.begin() + end);
}

int32_t Line::peak_place() const {
  return int32_t(std::max_element(needs_.begin(), needs_.end()) - needs_.begin());
}

Part Line::part(int32_t begin, int32_t end) {
  Part made;
  made.level = level(begin);
  made.end_level = level(end);
  number_buffers(made, {begin, end});
  for (int32_t at = begin; at < end; ++at) {
    const int32_t piece = order_[size_t(at)];
    for (const int32_t p : pieces_.preds[piece])
      if (place_[size_t(p)] >= begin) made.preds.items.push_back(place_[size_t(p)] - begin);
    made.preds.close();
    const size_t last = size_t(pieces_.stages.begin[size_t(piece) + 1]);
    for (size_t s = size_t(pieces_.stages.begin[size_t(piece)]); s < last; ++s)
      add_stage(made, {begin, end}, pieces_.stages.stages[s]);
    made.stages.close_piece();
  }
  made.stages.open();
  made.succs = inverse(made.preds, end - begin);
  for (int32_t at = begin; at < end; ++at)
    for (const int32_t b : pieces_.touches[order_[size_t(at)]]) number_[size_t(b)] = -1;
  return made;
}

// Numbers the buffers that two pieces of the range touch, and of which the order decides anything.
void Line::number_buffers(Part& part, Range range) {
  constexpr int32_t kOnce = -2;
  Lists touches;
  for (int32_t at = range.begin; at < range.end; ++at)
    for (const int32_t b : pieces_.touches[order_[size_t(at)]]) {
      int32_t& number = number_[size_t(b)];
      const bool is_alive = first_[size_t(b)] < range.begin,
                 is_kept = last_[size_t(b)] >= range.end;
      if (number >= 0 || (is_alive && is_kept)) continue;
      if (number == -1) {
        number = kOnce;
        continue;
      }
      number = int32_t(part.sizes.size());
      part.sizes.push_back(pieces_.sizes[size_t(b)]);
    }
  for (int32_t at = range.begin; at < range.end; ++at) {
    for (const int32_t b : pieces_.touches[order_[size_t(at)]])
      if (number_[size_t(b)] >= 0) touches.items.push_back(number_[size_t(b)]);
    touches.close();
  }
  part.touchers = inverse(touches, int32_t(part.sizes.size()));
}

void Line::add_stage(Part& part, Range range, const Stage& stage) const {
  const Stages& all = pieces_.stages;
  const Stage& next = (&stage)[1];
  Stage& made = part.stages.open();
  made.rise = stage.rise;
  made.change = stage.change;
  const auto starts = [&](int32_t b) { return first_[size_t(b)] >= range.begin; };
  const auto ends = [&](int32_t b) { return last_[size_t(b)] < range.end; };
  for (int32_t i = stage.starts; i < next.starts; ++i) {
    const int32_t b = all.starts[size_t(i)], number = number_[size_t(b)];
    if (!starts(b)) continue;
    if (number >= 0) {
      part.stages.starts.push_back(number);
    } else {
      made.rise += pieces_.sizes[size_t(b)];
      made.change += pieces_.sizes[size_t(b)];
    }
  }
  for (int32_t i = stage.ends; i < next.ends; ++i) {
    const int32_t b = all.ends[size_t(i)], number = number_[size_t(b)];
    if (!ends(b)) continue;
    if (number >= 0)
      part.stages.ends.push_back(number);
    else
      made.change -= pieces_.sizes[size_t(b)];
  }
  for (int32_t i = stage.shares; i < next.shares; ++i) {
    const auto [from, to, size] = all.pairs[size_t(i)];
    if ((from >= 0 && !ends(from)) || (to >= 0 && !starts(to))) continue;
    const auto renumbered = [&](int32_t b) {
      return b < 0 ? b : number_[size_t(b)] < 0 ? ~b : number_[size_t(b)];
    };
    part.stages.pairs.push_back({renumbered(from), renumbered(to), size});
  }
}

}  // namespace sdx::ordering
