#include "exec/order/pieces.h"

#include <algorithm>

#include "exec/order/groups.h"

namespace sdx::ordering {
namespace {

// Turns groups of tasks into pieces.
class Builder {
 public:
  Builder(const Flow& flow, Groups groups)
      : flow_(flow),
        seen_(flow.sizes.size(), -1),
        last_task_(flow.sizes.size()),
        n_pieces_(flow.sizes.size()) {
    pieces_.sizes = flow.sizes;
    pieces_.members = std::move(groups.members);
    pieces_.preds = std::move(groups.preds);
  }

  Pieces run() {
    list_touches();
    for (int32_t p = 0; p < pieces_.count(); ++p) add_piece(p);
    stages_.open();
    pieces_.stages = std::move(stages_);
    pieces_.succs = inverse(pieces_.preds, pieces_.count());
    pieces_.touchers = inverse(pieces_.touches, flow_.n_buffers());
    return std::move(pieces_);
  }

 private:
  bool is_own(int32_t b) const { return n_pieces_[size_t(b)] == 1; }

  void list_touches();
  void add_piece(int32_t piece);
  void add_task(int32_t task);
  void add_pairs(int32_t task);
  void merge_stages();

  const Flow& flow_;
  Pieces pieces_;
  Stages stages_;
  std::vector<int32_t> seen_;       // the last piece that touched each buffer
  std::vector<int32_t> last_task_;  // of the piece, to touch each buffer
  std::vector<int32_t> n_pieces_;   // that touch each buffer
  std::vector<int32_t> begun_;      // the task in which each buffer was first seen
};

void Builder::list_touches() {
  for (int32_t p = 0; p < pieces_.count(); ++p)
    for (const int32_t t : pieces_.members[p])
      for (const int32_t b : flow_.touches[t])
        if (std::exchange(seen_[size_t(b)], p) != p) ++n_pieces_[size_t(b)];
  std::fill(seen_.begin(), seen_.end(), -1);
  for (int32_t p = 0; p < pieces_.count(); ++p) {
    for (const int32_t t : pieces_.members[p])
      for (const int32_t b : flow_.touches[t])
        if (std::exchange(seen_[size_t(b)], p) != p && !is_own(b))
          pieces_.touches.items.push_back(b);
    pieces_.touches.close();
  }
  std::fill(seen_.begin(), seen_.end(), -1);
  begun_.resize(flow_.sizes.size());
}

void Builder::add_piece(int32_t piece) {
  for (const int32_t t : pieces_.members[piece])
    for (const int32_t b : flow_.touches[t]) {
      if (std::exchange(seen_[size_t(b)], piece) != piece) begun_[size_t(b)] = t;
      last_task_[size_t(b)] = t;
    }
  for (const int32_t t : pieces_.members[piece]) {
    add_task(t);
    if (t != pieces_.members[piece].front()) merge_stages();
  }
  stages_.close_piece();
}

void Builder::add_pairs(int32_t task) {
  const auto number = [&](int32_t b) { return is_own(b) ? ~b : b; };
  for (const Share& share : flow_.shares_of(task))
    if (last_task_[size_t(share.from)] == task && begun_[size_t(share.to)] == task)
      stages_.pairs.push_back(
          {number(share.from), number(share.to), flow_.sizes[size_t(share.to)]});
  // A pair without rivals, of buffers that are the piece's own, depends on nothing.
  Stage& stage = stages_.stages.back();
  if (int32_t(stages_.pairs.size()) != stage.shares + 1) return;
  const Pair pair = stages_.pairs.back();
  if (pair.from >= 0 || pair.to >= 0) return;
  stage.rise -= pair.size;
  stages_.pairs.pop_back();
}

void Builder::add_task(int32_t task) {
  Stage& stage = stages_.open();
  stage.rise = flow_.scratch[size_t(task)];
  add_pairs(task);
  for (const int32_t b : flow_.touches[task]) {
    const int64_t size = flow_.sizes[size_t(b)];
    const bool starts = begun_[size_t(b)] == task, ends = last_task_[size_t(b)] == task;
    if (is_own(b)) {
      stage.rise += starts ? size : 0;
      stage.change += (starts ? size : 0) - (ends ? size : 0);
      continue;
    }
    if (starts) stages_.starts.push_back(b);
    if (ends) stages_.ends.push_back(b);
  }
}

// The last two stages are one if nothing between them depends on other pieces.
void Builder::merge_stages() {
  const Stage last = stages_.stages.back();
  Stage& before = stages_.stages[stages_.stages.size() - 2];
  const bool has_pairs = before.shares != int32_t(stages_.pairs.size());
  const bool has_starts = last.starts != int32_t(stages_.starts.size());
  if (has_pairs || has_starts || before.ends != last.ends) return;
  before.rise = std::max(before.rise, before.change + last.rise);
  before.change += last.change;
  stages_.stages.pop_back();
}

}  // namespace

Pieces contract(const Flow& flow) { return Builder(flow, merge(flow)).run(); }

}  // namespace sdx::ordering
