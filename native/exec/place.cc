#include "exec/place.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sdx {
namespace {

constexpr int64_t kMostPairs = 1 << 20;  // of lives at one time, beyond which none are listed
constexpr int kTries = 24;

// For each life, the others that overlap it in time.
class Neighbours {
 public:
  explicit Neighbours(const std::vector<Life>& lives) : first_(lives.size() + 1, 0) {
    std::vector<int32_t> by_start(lives.size()), alive;
    std::iota(by_start.begin(), by_start.end(), 0);
    std::stable_sort(by_start.begin(), by_start.end(), [&](int32_t a, int32_t b) {
      return lives[size_t(a)].start < lives[size_t(b)].start;
    });
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (const int32_t i : by_start) {
      std::erase_if(alive,
                    [&](int32_t j) { return lives[size_t(j)].end < lives[size_t(i)].start; });
      for (const int32_t j : alive) pairs.emplace_back(i, j);
      if (int64_t(pairs.size()) > kMostPairs) return;
      alive.push_back(i);
    }
    list(pairs);
  }

  bool is_complete() const { return complete_; }
  const int32_t* begin(int32_t life) const { return all_.data() + first_[size_t(life)]; }
  const int32_t* end(int32_t life) const { return all_.data() + first_[size_t(life) + 1]; }

 private:
  void list(const std::vector<std::pair<int32_t, int32_t>>& pairs) {
    for (const auto& [a, b] : pairs) ++first_[size_t(a) + 1], ++first_[size_t(b) + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    all_.resize(pairs.size() * 2);
    std::vector<int64_t> next(first_.begin(), first_.end() - 1);
    for (const auto& [a, b] : pairs) {
      all_[size_t(next[size_t(a)]++)] = b;
      all_[size_t(next[size_t(b)]++)] = a;
    }
    complete_ = true;
  }

  std::vector<int64_t> first_;
  std::vector<int32_t> all_;
  bool complete_ = false;
};

using Gap = std::pair<int64_t, int64_t>;  // begin and end of bytes that are taken

Layout place_ranked(const std::vector<Life>& lives, const Neighbours& near,
                    const std::vector<int32_t>& ranks) {
  Layout layout{std::vector<int64_t>(lives.size(), -1), 0};
  std::vector<Gap> taken;
  for (const int32_t i : ranks) {
    taken.clear();
    for (const int32_t* j = near.begin(i); j != near.end(i); ++j)
      if (const int64_t at = layout.offsets[size_t(*j)]; at >= 0)
        taken.emplace_back(at, at + lives[size_t(*j)].size);
    const int64_t size = lives[size_t(i)].size, offset = lowest_gap(taken, size);
    layout.offsets[size_t(i)] = offset;
    layout.bytes = std::max(layout.bytes, offset + size);
  }
  return layout;
}

std::vector<int32_t> ranked_by(size_t n, auto&& is_before) {
  std::vector<int32_t> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::stable_sort(ranks.begin(), ranks.end(), is_before);
  return ranks;
}

std::vector<int32_t> by_size(const std::vector<Life>& lives) {
  return ranked_by(lives.size(), [&](int32_t a, int32_t b) {
    const Life &x = lives[size_t(a)], &y = lives[size_t(b)];
    return x.size != y.size ? x.size > y.size : x.start < y.start;
  });
}

std::vector<int32_t> by_length(const std::vector<Life>& lives) {
  return ranked_by(lives.size(), [&](int32_t a, int32_t b) {
    const Life &x = lives[size_t(a)], &y = lives[size_t(b)];
    return x.end - x.start > y.end - y.start;
  });
}

std::vector<int32_t> by_start(const std::vector<Life>& lives) {
  return ranked_by(lives.size(), [&](int32_t a, int32_t b) {
    const Life &x = lives[size_t(a)], &y = lives[size_t(b)];
    return x.start != y.start ? x.start < y.start : x.size > y.size;
  });
}

// Lives that end at the top of a layout go first in the next try.
void raise_top(const std::vector<Life>& lives, const Layout& layout, std::vector<int32_t>& ranks) {
  std::stable_partition(ranks.begin(), ranks.end(), [&](int32_t i) {
    return layout.offsets[size_t(i)] + lives[size_t(i)].size == layout.bytes;
  });
}

// Without lists of neighbours: in order of time, with the bytes that are taken at each start.
Layout place_in_time(const std::vector<Life>& lives) {
  Layout layout{std::vector<int64_t>(lives.size(), 0), 0};
  std::vector<int32_t> alive;
  std::vector<Gap> taken;
  for (const int32_t i : by_start(lives)) {
    const Life& life = lives[size_t(i)];
    std::erase_if(alive, [&](int32_t j) { return lives[size_t(j)].end < life.start; });
    taken.clear();
    for (const int32_t j : alive)
      taken.emplace_back(layout.offsets[size_t(j)],
                         layout.offsets[size_t(j)] + lives[size_t(j)].size);
    layout.offsets[size_t(i)] = lowest_gap(taken, life.size);
    layout.bytes = std::max(layout.bytes, layout.offsets[size_t(i)] + life.size);
    alive.push_back(i);
  }
  return layout;
}

}  // namespace

int64_t lowest_gap(std::vector<Gap>& taken, int64_t size) {
  std::sort(taken.begin(), taken.end());
  int64_t offset = 0;
  for (const auto& [begin, end] : taken) {
    if (begin - offset >= size) break;
    offset = std::max(offset, end);
  }
  return offset;
}

Peak peak_of(const std::vector<Life>& lives) {
  int32_t last = -1;
  for (const Life& life : lives) last = std::max(last, life.end);
  std::vector<int64_t> change(size_t(last + 2), 0);
  for (const Life& life : lives) {
    change[size_t(life.start)] += life.size;
    change[size_t(life.end) + 1] -= life.size;
  }
  Peak peak;
  int64_t now = 0;
  for (int32_t i = 0; i <= last; ++i) {
    now += change[size_t(i)];
    if (now > peak.bytes) peak = {now, i};
  }
  return peak;
}

Layout place(const std::vector<Life>& lives, int64_t least, Ranks& ranks) {
  constexpr double kWorse = 1.02;
  const Neighbours near(lives);
  if (!near.is_complete()) return place_in_time(lives);
  if (ranks.order.size() == lives.size()) {
    Layout kept = place_ranked(lives, near, ranks.order);
    if (double(kept.bytes) <= double(least) * ranks.over * kWorse) return kept;
  }
  Layout best;
  for (auto* order : {by_size, by_length, by_start}) {
    if (!best.offsets.empty() && best.bytes <= least) break;
    std::vector<int32_t> next = order(lives);
    for (int i = 0; i < kTries && (best.offsets.empty() || best.bytes > least); ++i) {
      Layout made = place_ranked(lives, near, next);
      const bool is_better = best.offsets.empty() || made.bytes < best.bytes;
      if (is_better) ranks.order = next;
      raise_top(lives, made, next);
      if (is_better) best = std::move(made);
    }
  }
  ranks.over = least > 0 ? double(best.bytes) / double(least) : 1;
  return best;
}

}  // namespace sdx
