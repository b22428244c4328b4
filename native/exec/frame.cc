#include "exec/frame.h"

#include <algorithm>
#include <numeric>

#include "exec/order.h"

namespace sdx {
namespace {

constexpr int kMostToggled = 64;  // joins that are tried one by one
constexpr int64_t kGrown = 2;     // a frame so many times larger is worth another search

// Where values lie under given joins: in which buffer, how far from its beginning.
struct Homes {
  std::vector<int32_t> buffer;  // by value: the arena value that holds its bytes
  std::vector<int64_t> offset;

  Homes(const Need& need, const std::vector<char>& is_joined)
      : buffer(need.bytes.size()), offset(need.bytes.size(), 0) {
    std::iota(buffer.begin(), buffer.end(), 0);
    for (size_t i = 0; i < need.joins.size(); ++i) {
      if (!is_joined[i]) continue;
      for (const Part& part : need.joins[i]) {
        if (buffer[size_t(part.value)] != part.value) continue;  // it lies in another already
        buffer[size_t(part.value)] = part.whole;
        offset[size_t(part.value)] = part.offset;
      }
    }
    for (size_t i = 0; i < buffer.size(); ++i) {  // a whole may be part of the next
      while (buffer[size_t(buffer[i])] != buffer[i]) {
        offset[i] += offset[size_t(buffer[i])];
        buffer[i] = buffer[size_t(buffer[i])];
      }
    }
  }
};

// Lives of buffers in an order: those that take over another's bytes are one with it.
struct Lives {
  std::vector<int32_t> first, last;  // by value, of buffers; -1: none
  std::vector<int32_t> owner;        // by value, of buffers: the first whose bytes it took over
  std::vector<Life> lives;           // of owners, then scratch
  std::vector<int32_t> whose;        // owners, then n_values + steps
  Peak peak;
};

Lives live(const Wiring& wiring, const Need& need, const Homes& homes,
           const std::vector<int32_t>& order) {
  const size_t n = need.bytes.size();
  Lives found{std::vector<int32_t>(n, -1),
              std::vector<int32_t>(n, -1),
              std::vector<int32_t>(n),
              {},
              {},
              {}};
  std::iota(found.owner.begin(), found.owner.end(), 0);
  std::vector<int32_t> position(order.size());
  for (size_t at = 0; at < order.size(); ++at) {
    position[size_t(order[at])] = int32_t(at);
    for (const int32_t value : wiring.touches[size_t(order[at])]) {
      const auto buffer = size_t(homes.buffer[size_t(value)]);
      if (found.first[buffer] < 0) found.first[buffer] = int32_t(at);
      found.last[buffer] = int32_t(at);
    }
  }
  std::vector<Share> shares = need.shares;
  std::stable_sort(shares.begin(), shares.end(), [&](const Share& a, const Share& b) {
    return position[size_t(a.step)] < position[size_t(b.step)];
  });
  std::vector<char> is_taken(n, 0), took(n, 0);
  for (const Share& share : shares) {
    const auto from = size_t(homes.buffer[size_t(share.from)]);
    const auto to = size_t(homes.buffer[size_t(share.to)]);
    const int32_t at = position[size_t(share.step)];
    if (from == to || found.last[from] != at || found.first[to] != at || is_taken[from] ||
        took[to] || need.bytes[from] != need.bytes[to])
      continue;
    is_taken[from] = took[to] = 1;
    found.owner[to] = found.owner[from];
  }
  std::vector<int32_t> end = found.last;
  for (size_t i = 0; i < n; ++i)
    if (found.first[i] >= 0)
      end[size_t(found.owner[i])] = std::max(end[size_t(found.owner[i])], found.last[i]);
  for (size_t i = 0; i < n; ++i) {
    if (found.first[i] < 0 || found.owner[i] != int32_t(i)) continue;
    found.lives.push_back({need.bytes[i], found.first[i], end[i]});
    found.whose.push_back(int32_t(i));
  }
  for (size_t i = 0; i < need.scratch.size(); ++i) {
    if (need.scratch[i] == 0) continue;
    found.lives.push_back({need.scratch[i], position[i], position[i]});
    found.whose.push_back(int32_t(n + i));
  }
  found.peak = peak_of(found.lives);
  return found;
}

Tasks tasks_of(const Wiring& wiring, const Need& need, const Homes& homes) {
  Tasks made;
  made.sizes = need.bytes;
  made.tasks.resize(wiring.preds.size());
  for (size_t i = 0; i < made.tasks.size(); ++i) {
    Task& task = made.tasks[i];
    task.preds = wiring.preds[i];
    for (const int32_t value : wiring.touches[i])
      task.touches.push_back(homes.buffer[size_t(value)]);
    std::sort(task.touches.begin(), task.touches.end());
    task.touches.erase(std::unique(task.touches.begin(), task.touches.end()), task.touches.end());
    task.scratch = need.scratch[i];
  }
  for (const Share& share : need.shares) {
    const int32_t from = homes.buffer[size_t(share.from)], to = homes.buffer[size_t(share.to)];
    if (from != to) made.tasks[size_t(share.step)].shares.emplace_back(from, to);
  }
  return made;
}

// Joins pay unless a part waits long for the others: the whole is there from the first part on.
void choose_joins(const Wiring& wiring, const Need& need, Choice& choice) {
  const auto peak = [&] {
    return live(wiring, need, Homes(need, choice.is_joined), choice.order).peak.bytes;
  };
  const size_t n = need.joins.size();
  choice.is_joined.assign(n, 0);
  if (n == 0) return;
  int64_t best = peak();
  choice.is_joined.assign(n, 1);
  if (const int64_t all = peak(); all <= best)
    best = all;
  else
    choice.is_joined.assign(n, 0);
  for (size_t i = 0; i < n && i < kMostToggled; ++i) {
    choice.is_joined[i] ^= 1;
    const int64_t other = peak();
    if (other < best || (other == best && choice.is_joined[i]))
      best = other;
    else
      choice.is_joined[i] ^= 1;
  }
}

// A better order than the given one, if there is one, and the joins that go with it.
void search(const Wiring& wiring, const Need& need, int effort, Choice& choice) {
  choice.order.resize(wiring.preds.size());
  std::iota(choice.order.begin(), choice.order.end(), 0);
  choose_joins(wiring, need, choice);
  if (effort < 0) return;
  const Homes homes(need, choice.is_joined);
  choice.order = least_peak(tasks_of(wiring, need, homes), choice.order, effort);
  choose_joins(wiring, need, choice);
}

// Where each value lies, once its buffer's owner has a place.
void locate(const Homes& homes, const Lives& found, const Layout& layout, Frame& frame) {
  const size_t n = homes.buffer.size();
  std::vector<int64_t> at(n, 0);  // of owners
  for (size_t i = 0; i < found.whose.size(); ++i) {
    const auto whose = size_t(found.whose[i]);
    (whose < n ? at[whose] : frame.scratch[whose - n]) = layout.offsets[i];
  }
  for (size_t i = 0; i < n; ++i) {
    const int32_t owner = found.owner[size_t(homes.buffer[i])];
    frame.offsets[i] = at[size_t(owner)] + homes.offset[i];
  }
}

}  // namespace

Frame make_frame(const Wiring& wiring, const Need& need, int effort, Choice& choice) {
  const auto lives = [&] {
    return live(wiring, need, Homes(need, choice.is_joined), choice.order);
  };
  if (choice.searched_bytes < 0) search(wiring, need, effort, choice);
  Lives found = lives();
  if (choice.searched_bytes >= 0 && found.peak.bytes > kGrown * choice.searched_bytes) {
    search(wiring, need, effort, choice);
    found = lives();
    choice.searched_bytes = -1;
  }
  if (choice.searched_bytes < 0) choice.searched_bytes = found.peak.bytes;
  const Layout layout = place(found.lives, found.peak.bytes, choice.ranks);
  Frame frame{choice.order, std::vector<int64_t>(need.bytes.size(), 0),
              std::vector<int64_t>(need.scratch.size(), 0), layout.bytes, found.peak};
  locate(Homes(need, choice.is_joined), found, layout, frame);
  return frame;
}

std::vector<Span> spans_of(const Wiring& wiring, const Need& need, const Frame& frame) {
  std::vector<Span> spans(need.bytes.size(), Span{-1, 0, 0, 0, 0});
  for (size_t at = 0; at < frame.order.size(); ++at)
    for (const int32_t value : wiring.touches[size_t(frame.order[at])]) {
      Span& span = spans[size_t(value)];
      if (span.value < 0)
        span = {value, need.bytes[size_t(value)], frame.offsets[size_t(value)], int32_t(at), 0};
      span.end = int32_t(at);
    }
  std::erase_if(spans, [](const Span& span) { return span.value < 0; });
  return spans;
}

}  // namespace sdx
