#include "exec/frame.h"

#include <algorithm>
#include <numeric>

#include "exec/order.h"

namespace sdx {
namespace {

constexpr int kMostToggled = 64;  // joins that are tried one by one
constexpr int64_t kGrown = 2;     // a frame so many times larger is worth another search
constexpr size_t kMostLenders = 8;

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

  // Whether two values are the same bytes once the buffers that they lie in are, and their step
  // touches nothing else there: it may need that after it has written.
  bool allow(const Share& share, const std::vector<int32_t>& touched) const {
    if (offset[size_t(share.from)] != offset[size_t(share.to)]) return false;
    return std::all_of(touched.begin(), touched.end(), [&](int32_t value) {
      const int32_t home = buffer[size_t(value)];
      const bool is_there = home == buffer[size_t(share.from)] || home == buffer[size_t(share.to)];
      return value == share.from || value == share.to || !is_there;
    });
  }
};

// Lives of buffers in an order: those that take over another's bytes are one with it. What a step
// of a round touches lives as long as the round, and is nobody else's meanwhile.
class Lives {
 public:
  std::vector<Life> lives;        // of owners, then scratch
  std::vector<int32_t> whose;     // owners, then n_values + steps
  std::vector<int32_t> owner;     // by value, of buffers: the first whose bytes it took over
  std::vector<int32_t> position;  // by step: the first of its round
  Peak peak;

  Lives(const Wiring& wiring, const Need& need, const Homes& homes,
        const std::vector<int32_t>& order, const Rounds& rounds)
      : owner(need.bytes.size()),
        position(order.size()),
        until_(order.size()),
        first_(need.bytes.size(), -1),
        last_(need.bytes.size(), -1) {
    std::iota(owner.begin(), owner.end(), 0);
    for (size_t at = 0; at < order.size(); ++at) {
      position[size_t(order[at])] = rounds.begin[at];
      until_[size_t(order[at])] = rounds.end[at];
      for (const int32_t value : wiring.touches[size_t(order[at])]) {
        const auto buffer = size_t(homes.buffer[size_t(value)]);
        if (first_[buffer] < 0) first_[buffer] = rounds.begin[at];
        last_[buffer] = rounds.end[at];
      }
    }
    share(wiring, need, homes);
    collect(need);
    peak = peak_of(lives);
  }

 private:
  void share(const Wiring& wiring, const Need& need, const Homes& homes) {
    std::vector<Share> shares = need.shares;
    std::stable_sort(shares.begin(), shares.end(), [&](const Share& a, const Share& b) {
      return position[size_t(a.step)] < position[size_t(b.step)];
    });
    std::vector<char> is_taken(owner.size(), 0), took(owner.size(), 0);
    for (const Share& pair : shares) {
      const auto from = size_t(homes.buffer[size_t(pair.from)]);
      const auto to = size_t(homes.buffer[size_t(pair.to)]);
      const int32_t at = position[size_t(pair.step)];
      if (until_[size_t(pair.step)] != at) continue;  // others of its round may read it
      if (from == to || last_[from] != at || first_[to] != at || is_taken[from] || took[to] ||
          need.bytes[from] != need.bytes[to] ||
          !homes.allow(pair, wiring.touches[size_t(pair.step)]))
        continue;
      is_taken[from] = took[to] = 1;
      owner[to] = owner[from];
    }
  }

  void collect(const Need& need) {
    std::vector<int32_t> end = last_;
    for (size_t i = 0; i < owner.size(); ++i)
      if (first_[i] >= 0) end[size_t(owner[i])] = std::max(end[size_t(owner[i])], last_[i]);
    for (size_t i = 0; i < owner.size(); ++i) {
      if (first_[i] < 0 || owner[i] != int32_t(i)) continue;
      lives.push_back({need.bytes[i], first_[i], end[i]});
      whose.push_back(int32_t(i));
    }
    for (size_t i = 0; i < need.scratch.size(); ++i) {
      if (need.scratch[i] == 0) continue;
      lives.push_back({need.scratch[i], position[i], until_[i]});
      whose.push_back(int32_t(owner.size() + i));
    }
  }

  std::vector<int32_t> until_;         // by step: the last of its round
  std::vector<int32_t> first_, last_;  // by value, of buffers: positions; -1: none
};

// Where an owner lies in the block of a value that is made later.
struct Loan {
  int32_t slot = -1;
  int64_t offset = 0;
};

// Moves lives into the blocks of values that leave, those at the peak first: they take no bytes of
// the arena then.
class Loans {
 public:
  std::vector<Loan> loans;  // by value, of owners

  Loans(const Need& need, Lives& found) : loans(found.owner.size()) {
    std::vector<Lender> lenders = need.lenders;
    std::stable_sort(lenders.begin(), lenders.end(),
                     [](const Lender& a, const Lender& b) { return a.bytes > b.bytes; });
    if (lenders.size() > kMostLenders) lenders.resize(kMostLenders);
    for (const Lender& lender : lenders)
      if (lender.bytes >= kAlign) fill(lender, found);
  }

 private:
  void fill(const Lender& lender, Lives& found) {
    int32_t until = INT32_MAX;
    for (const int32_t step : lender.steps) until = std::min(until, found.position[size_t(step)]);
    std::vector<size_t> fit;
    for (size_t i = 0; i < found.lives.size(); ++i)
      if (size_t(found.whose[i]) < loans.size() && found.lives[i].end < until &&
          found.lives[i].size > 0 && found.lives[i].size <= lender.bytes)
        fit.push_back(i);
    const auto rank = [&](size_t i) {
      const Life& life = found.lives[i];
      const bool is_at_peak = life.start <= found.peak.at && found.peak.at <= life.end;
      return std::pair(!is_at_peak, -life.size);
    };
    std::stable_sort(fit.begin(), fit.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
    std::vector<size_t> lent;
    for (const size_t i : fit)
      if (place(lender, found, i, lent)) lent.push_back(i);
    if (lent.empty()) return;
    std::vector<char> is_gone(found.lives.size(), 0);
    for (const size_t i : lent) is_gone[i] = 1;
    size_t kept = 0;
    for (size_t i = 0; i < found.lives.size(); ++i) {
      if (is_gone[i]) continue;
      found.lives[kept] = found.lives[i];
      found.whose[kept++] = found.whose[i];
    }
    found.lives.resize(kept);
    found.whose.resize(kept);
    found.peak = peak_of(found.lives);
  }

  // Whether a life has room in the block beside those lent to it before.
  bool place(const Lender& lender, const Lives& found, size_t i, const std::vector<size_t>& lent) {
    const Life& life = found.lives[i];
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (const size_t j : lent) {
      const Life& other = found.lives[j];
      if (other.end < life.start || life.end < other.start) continue;
      const int64_t at = loans[size_t(found.whose[j])].offset;
      taken.emplace_back(at, at + other.size);
    }
    const int64_t offset = lowest_gap(taken, life.size);
    if (offset + life.size > lender.bytes) return false;
    loans[size_t(found.whose[i])] = {lender.slot, offset};
    return true;
  }
};

// The steps as tasks over buffers. With `outputs`, what leaves the segment counts too, from the
// step that makes it to the end: as it does where its block is lent before.
Tasks tasks_of(const Wiring& wiring, const Need& need, const Homes& homes, bool outputs) {
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
    if (from != to && homes.allow(share, wiring.touches[size_t(share.step)]))
      made.tasks[size_t(share.step)].shares.emplace_back(from, to);
  }
  if (!outputs) return made;
  Task end;
  end.preds.resize(made.tasks.size());
  std::iota(end.preds.begin(), end.preds.end(), 0);
  for (const Lender& lender : need.lenders) {
    const auto buffer = int32_t(made.sizes.size());
    made.sizes.push_back(lender.bytes);
    for (const int32_t step : lender.steps) made.tasks[size_t(step)].touches.push_back(buffer);
    end.touches.push_back(buffer);
  }
  made.tasks.push_back(std::move(end));
  return made;
}

// Joins pay unless a part waits long for the others: the whole is there from the first part on.
void choose_joins(const Wiring& wiring, const Need& need, Choice& choice) {
  const Rounds rounds = make_rounds(wiring, need.costs, choice.order);
  const auto peak = [&] {
    return Lives(wiring, need, Homes(need, choice.is_joined), choice.order, rounds).peak.bytes;
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

// Where each value lies, once its buffer's owner has a place.
void locate(const Homes& homes, const Lives& found, const std::vector<Loan>& loans,
            const Layout& layout, Frame& frame) {
  const size_t n = homes.buffer.size();
  std::vector<int64_t> at(n, 0);  // of owners
  for (size_t i = 0; i < found.whose.size(); ++i) {
    const auto whose = size_t(found.whose[i]);
    (whose < n ? at[whose] : frame.scratch[whose - n]) = layout.offsets[i];
  }
  for (size_t i = 0; i < n; ++i) {
    const auto owner = size_t(found.owner[size_t(homes.buffer[i])]);
    const Loan& loan = loans[owner];
    frame.lent[i] = loan.slot;
    frame.offsets[i] = (loan.slot >= 0 ? loan.offset : at[owner]) + homes.offset[i];
  }
}

// The frame that a choice leads to; its ranks are found, or found anew.
Frame lay_out(const Wiring& wiring, const Need& need, Choice& choice) {
  const Homes homes(need, choice.is_joined);
  Rounds rounds = make_rounds(wiring, need.costs, choice.order);
  Lives found(wiring, need, homes, choice.order, rounds);
  const int64_t alive_bytes = found.peak.bytes;
  const Loans lent(need, found);
  const Layout layout = place(found.lives, found.peak.bytes, choice.ranks);
  Frame frame{choice.order,
              std::move(rounds),
              std::vector<int64_t>(need.bytes.size(), 0),
              std::vector<int32_t>(need.bytes.size(), -1),
              std::vector<int64_t>(need.scratch.size(), 0),
              layout.bytes,
              alive_bytes,
              found.peak};
  locate(homes, found, lent.loans, layout, frame);
  return frame;
}

// The given order, or one that leads to a smaller frame.
Frame search(const Wiring& wiring, const Need& need, int effort, Choice& choice) {
  const size_t n = wiring.preds.size();
  std::vector<int32_t> given(n + 1);
  std::iota(given.begin(), given.end(), 0);
  choice = Choice{{given.begin(), given.end() - 1}, {}, {}, -1};
  choose_joins(wiring, need, choice);
  Frame best = lay_out(wiring, need, choice);
  const bool can_lend = !need.lenders.empty();
  for (const bool outputs : {false, true}) {
    if (effort < 0 || best.bytes == 0 || (outputs && !can_lend)) break;
    const Tasks tasks = tasks_of(wiring, need, Homes(need, choice.is_joined), outputs);
    std::vector<int32_t> order =
        least_peak(tasks, {given.begin(), given.begin() + long(tasks.tasks.size())}, effort);
    order.resize(n);  // without the end, which comes last
    if (order == choice.order) continue;
    Choice other{std::move(order), {}, {}, -1};
    choose_joins(wiring, need, other);
    Frame made = lay_out(wiring, need, other);
    if (made.bytes >= best.bytes) continue;
    best = std::move(made);
    choice = std::move(other);
  }
  choice.searched_bytes = best.alive_bytes;
  return best;
}

}  // namespace

Frame make_frame(const Wiring& wiring, const Need& need, int effort, Choice& choice) {
  if (choice.searched_bytes < 0) return search(wiring, need, effort, choice);
  Frame frame = lay_out(wiring, need, choice);
  if (frame.alive_bytes <= kGrown * choice.searched_bytes) return frame;
  return search(wiring, need, effort, choice);
}

std::vector<Span> spans_of(const Wiring& wiring, const Need& need, const Frame& frame) {
  std::vector<Span> spans(need.bytes.size(), Span{-1, 0, 0, 0, 0, -1});
  for (size_t at = 0; at < frame.order.size(); ++at)
    for (const int32_t value : wiring.touches[size_t(frame.order[at])]) {
      Span& span = spans[size_t(value)];
      if (span.value < 0)
        span = {value, need.bytes[size_t(value)], frame.offsets[size_t(value)], int32_t(at),
                0,     frame.lent[size_t(value)]};
      span.end = int32_t(at);
    }
  std::erase_if(spans, [](const Span& span) { return span.value < 0; });
  return spans;
}

}  // namespace sdx
