#include "exec/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "exec/execution_order.h"

namespace sdx {
namespace {

constexpr int kMaxToggled = 64;           // Concats that are tried one by one, each a linear pass
constexpr int64_t kGrown = 2;             // a plan this many times larger justifies another search
constexpr size_t kMaxOutputBlocks = 8;    // the largest ones are filled; small ones gain little
constexpr int64_t kOwnBlock = 256 << 10;  // bytes from which whole pages waste little

// Where each allocation of BufferLifetimes is: the owners, then the scratch of the steps.
using Placements = std::vector<Placement>;

// Moves lifetimes into the blocks of the largest outputs, so that they need no bytes of the arena.
class OutputBlockReuse {
 public:
  OutputBlockReuse(const MemoryNeeds& needs, BufferLifetimes& arena, Placements& placements)
      : placements_(placements) {
    std::vector<SlotBlock> blocks = needs.output_blocks;
    std::stable_sort(blocks.begin(), blocks.end(),
                     [](const SlotBlock& a, const SlotBlock& b) { return a.bytes > b.bytes; });
    if (blocks.size() > kMaxOutputBlocks) blocks.resize(kMaxOutputBlocks);
    for (const SlotBlock& block : blocks)
      if (block.bytes >= kAlign) fill(block, arena);
  }

 private:
  // Fills one block: lifetimes at the arena's peak first, then the largest.
  void fill(const SlotBlock& block, BufferLifetimes& arena) {
    const std::vector<Lifetime>& lifetimes = arena.lifetimes;
    int32_t first_write = INT32_MAX;
    for (const int32_t step : block.steps)
      first_write = std::min(first_write, arena.position[size_t(step)]);
    std::vector<size_t> candidates;  // no scratch
    for (size_t i = 0; i < lifetimes.size(); ++i)
      if (size_t(arena.allocation[i]) < arena.owner.size() && lifetimes[i].end < first_write &&
          lifetimes[i].size > 0 && lifetimes[i].size <= block.bytes)
        candidates.push_back(i);
    const auto rank = [&](size_t i) {
      const bool is_at_peak =
          lifetimes[i].start <= arena.peak.at && arena.peak.at <= lifetimes[i].end;
      return std::pair(!is_at_peak, -lifetimes[i].size);
    };
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](size_t a, size_t b) { return rank(a) < rank(b); });
    std::vector<size_t> moved;
    for (const size_t i : candidates)
      if (move_into(block, arena, i, moved)) moved.push_back(i);
    if (!moved.empty()) arena.remove(moved);
  }

  // Whether a lifetime fits into the block next to those moved there before, by first fit.
  bool move_into(const SlotBlock& block, const BufferLifetimes& arena, size_t i,
                 const std::vector<size_t>& moved) {
    const Lifetime& lifetime = arena.lifetimes[i];
    std::vector<std::pair<int64_t, int64_t>> used;
    for (const size_t j : moved) {
      const Lifetime& other = arena.lifetimes[j];
      if (other.end < lifetime.start || lifetime.end < other.start) continue;
      const int64_t at = placements_[size_t(arena.allocation[j])].offset;
      used.emplace_back(at, at + other.size);
    }
    const int64_t offset = first_fit_offset(used, lifetime.size);
    if (offset + lifetime.size > block.bytes) return false;
    placements_[size_t(arena.allocation[i])] = {offset, block.slot, -1};
    return true;
  }

  Placements& placements_;
};

// Moves large lifetimes out of the arena, each into a block of its own.
std::vector<OwnBlock> own_blocks(BufferLifetimes& arena, Placements& placements) {
  std::vector<size_t> moved;
  for (size_t i = 0; i < arena.lifetimes.size(); ++i)
    if (arena.lifetimes[i].size >= kOwnBlock) moved.push_back(i);
  std::stable_sort(moved.begin(), moved.end(), [&](size_t a, size_t b) {
    return arena.lifetimes[a].start < arena.lifetimes[b].start;
  });
  std::vector<OwnBlock> blocks;
  for (const size_t i : moved) {
    placements[size_t(arena.allocation[i])] = {0, -1, int32_t(blocks.size())};
    const Lifetime& lifetime = arena.lifetimes[i];
    blocks.push_back({lifetime.size, lifetime.start, lifetime.end});
  }
  if (!moved.empty()) arena.remove(moved);
  return blocks;
}

// Adds blocks as buffers that the given task touches too.
void add_blocks(const std::vector<SlotBlock>& blocks, Task& boundary, Tasks& made) {
  for (const SlotBlock& block : blocks) {
    const auto buffer = int32_t(made.sizes.size());
    made.sizes.push_back(block.bytes);
    for (const int32_t step : block.steps) made.tasks[size_t(step)].touches.push_back(buffer);
    boundary.touches.push_back(buffer);
  }
}

// Adds two tasks, the begin and the end of the segment, and the blocks of inputs and outputs:
// consumed inputs are alive from the begin to their last reader, outputs from their first writer to
// the end. With output block reuse, arena and output blocks act as one memory.
void add_boundaries(const MemoryNeeds& needs, Tasks& made) {
  const size_t n = made.tasks.size();
  Task begin, end;
  end.preds.resize(n);
  std::iota(end.preds.begin(), end.preds.end(), 0);
  add_blocks(needs.input_blocks, begin, made);
  add_blocks(needs.output_blocks, end, made);
  for (size_t i = 0; i < n; ++i) made.tasks[i].preds.push_back(int32_t(n) + 1);
  made.tasks.push_back(std::move(end));
  made.tasks.push_back(std::move(begin));
}

// An order of the steps as one of the tasks of `add_boundaries`, and back.
std::vector<int32_t> with_boundaries(const std::vector<int32_t>& order) {
  const auto n = int32_t(order.size());
  std::vector<int32_t> made{n + 1};
  made.insert(made.end(), order.begin(), order.end());
  made.push_back(n);
  return made;
}

std::vector<int32_t> without_boundaries(const std::vector<int32_t>& order) {
  return {order.begin() + 1, order.end() - 1};
}

// The most bytes outside of the arena that are live simultaneously and depend on the plan: those of
// own blocks, inputs and outputs if inputs are consumed. Otherwise all of them always are.
int64_t blocks_peak(const MemoryNeeds& needs, const MemoryPlan& plan) {
  if (!needs.consumes_inputs) return 0;
  const auto n = int32_t(plan.order.size());
  std::vector<int32_t> begin(plan.order.size()), end(plan.order.size());  // positions, by step
  for (size_t at = 0; at < plan.order.size(); ++at) {
    begin[size_t(plan.order[at])] = plan.groups.begin[at];
    end[size_t(plan.order[at])] = plan.groups.end[at];
  }
  std::vector<Lifetime> lifetimes;
  for (const SlotBlock& block : needs.input_blocks) {
    int32_t last = 0;
    for (const int32_t step : block.steps) last = std::max(last, end[size_t(step)]);
    lifetimes.push_back({block.bytes, 0, last});
  }
  for (const SlotBlock& block : needs.output_blocks) {
    int32_t first = n - 1;
    for (const int32_t step : block.steps) first = std::min(first, begin[size_t(step)]);
    lifetimes.push_back({block.bytes, first, n - 1});
  }
  for (const OwnBlock& block : plan.own_blocks)
    lifetimes.push_back({block.bytes, block.first, block.last});
  return peak_of_lifetimes(lifetimes).bytes;
}

// The steps as tasks over buffers, for least_peak_order.
Tasks tasks_of(const Dependencies& dependencies, const MemoryNeeds& needs, const BufferMap& buffers,
               bool with_slots) {
  Tasks made;
  made.sizes = needs.bytes;
  made.tasks.resize(dependencies.preds.size());
  for (size_t i = 0; i < made.tasks.size(); ++i) {
    Task& task = made.tasks[i];
    task.preds = dependencies.preds[i];
    for (const int32_t value : dependencies.touches[i])
      task.touches.push_back(buffers.buffer[size_t(value)]);
    std::sort(task.touches.begin(), task.touches.end());
    task.touches.erase(std::unique(task.touches.begin(), task.touches.end()), task.touches.end());
    task.scratch = needs.scratch[i];
  }
  for (const InPlaceStep& pair : needs.in_place) {
    const int32_t from = buffers.buffer[size_t(pair.from)], to = buffers.buffer[size_t(pair.to)];
    if (from != to && buffers.allows(pair, dependencies.touches[size_t(pair.step)]))
      made.tasks[size_t(pair.step)].in_place.emplace_back(from, to);
  }
  if (with_slots) add_boundaries(needs, made);
  return made;
}

// Chooses which Concats to elide. Elision saves a copy, and pays unless an input waits long for the
// others: the whole output is alive from its first input on. Tries none, all, then toggles one at a
// time.
void choose_elided_concats(const Dependencies& dependencies, const MemoryNeeds& needs,
                           PlanChoice& choice) {
  const ParallelGroups groups = find_parallel_groups(dependencies, needs.costs, choice.order);
  const auto peak = [&] {
    const BufferMap buffers(needs, choice.is_elided);
    return BufferLifetimes(dependencies, needs, buffers, choice.order, groups).peak.bytes;
  };
  const size_t n = needs.concats.size();
  choice.is_elided.assign(n, 0);
  if (n == 0) return;
  int64_t best = peak();
  choice.is_elided.assign(n, 1);
  if (const int64_t all = peak(); all <= best)
    best = all;
  else
    choice.is_elided.assign(n, 0);
  for (size_t i = 0; i < n && i < kMaxToggled; ++i) {
    choice.is_elided[i] ^= 1;
    const int64_t toggled = peak();
    if (toggled < best || (toggled == best && choice.is_elided[i]))
      best = toggled;
    else
      choice.is_elided[i] ^= 1;
  }
}

// The plan that a choice leads to. Its allocation order is set, or replaced if it fits badly.
MemoryPlan plan_for(const Dependencies& dependencies, const MemoryNeeds& needs,
                    PlanChoice& choice) {
  const BufferMap buffers(needs, choice.is_elided);
  MemoryPlan plan;
  plan.order = choice.order;
  plan.groups = find_parallel_groups(dependencies, needs.costs, choice.order);
  BufferLifetimes arena(dependencies, needs, buffers, choice.order, plan.groups);
  plan.live_bytes = arena.peak.bytes;
  const size_t n = needs.bytes.size();
  Placements placements(n + needs.scratch.size());
  if (needs.consumes_inputs)
    plan.own_blocks = own_blocks(arena, placements);
  else
    OutputBlockReuse(needs, arena, placements);
  const ArenaLayout layout =
      assign_offsets(arena.lifetimes, arena.peak.bytes, choice.allocation_order);
  for (size_t i = 0; i < arena.allocation.size(); ++i)
    placements[size_t(arena.allocation[i])].offset = layout.offsets[i];
  for (size_t i = 0; i < n; ++i) {
    Placement placement = placements[size_t(arena.owner[size_t(buffers.buffer[i])])];
    placement.offset += buffers.offset[i];
    plan.values.push_back(placement);
  }
  plan.scratch.assign(placements.begin() + int64_t(n), placements.end());
  plan.bytes = layout.bytes;
  plan.peak = arena.peak;
  return plan;
}

// A plan, and the bytes that depend on it: the arena and what `blocks_peak` counts.
struct CountedPlan {
  MemoryPlan plan;
  int64_t bytes;
};

// The plan for the order of a choice, whose other decisions are made here.
CountedPlan plan_for_order(const Dependencies& dependencies, const MemoryNeeds& needs,
                           PlanChoice& choice) {
  choose_elided_concats(dependencies, needs, choice);
  MemoryPlan plan = plan_for(dependencies, needs, choice);
  const int64_t bytes = plan.bytes + blocks_peak(needs, plan);
  return {std::move(plan), bytes};
}

// Plans the listed order and up to two searched ones, and keeps the one of least memory. One search
// leaves inputs and outputs out, as if their blocks cost nothing; the other counts them, as is
// right where values are stored in outputs before they are written, and where inputs are consumed.
MemoryPlan search(const Dependencies& dependencies, const MemoryNeeds& needs, int effort,
                  PlanChoice& choice) {
  const size_t n = dependencies.preds.size();
  std::vector<int32_t> listed(n);
  std::iota(listed.begin(), listed.end(), 0);
  choice = PlanChoice{listed, {}, {}};
  auto [best, best_bytes] = plan_for_order(dependencies, needs, choice);
  const bool has_slots = !needs.output_blocks.empty() || !needs.input_blocks.empty();
  for (const bool with_slots : {false, true}) {
    if (effort < 0 || best_bytes == 0 || (with_slots && !has_slots)) break;
    const BufferMap buffers(needs, choice.is_elided);
    const Tasks tasks = tasks_of(dependencies, needs, buffers, with_slots);
    std::vector<int32_t> order =
        with_slots ? without_boundaries(least_peak_order(tasks, with_boundaries(listed), effort))
                   : least_peak_order(tasks, listed, effort);
    if (order == choice.order) continue;
    PlanChoice other{std::move(order), {}, {}};
    auto [made, bytes] = plan_for_order(dependencies, needs, other);
    if (bytes >= best_bytes) continue;
    best = std::move(made);
    best_bytes = bytes;
    choice = std::move(other);
  }
  choice.searched_bytes = best.live_bytes;
  return best;
}

}  // namespace

MemoryPlan make_memory_plan(const Dependencies& dependencies, const MemoryNeeds& needs, int effort,
                            PlanChoice& choice) {
  if (choice.searched_bytes < 0) return search(dependencies, needs, effort, choice);
  MemoryPlan plan = plan_for(dependencies, needs, choice);
  if (plan.live_bytes <= kGrown * choice.searched_bytes) return plan;
  return search(dependencies, needs, effort, choice);
}

std::vector<ValueSpan> spans_of(const Dependencies& dependencies, const MemoryNeeds& needs,
                                const MemoryPlan& plan) {
  std::vector<ValueSpan> spans(needs.bytes.size(), ValueSpan{-1, 0, 0, 0, 0});
  for (size_t at = 0; at < plan.order.size(); ++at)
    for (const int32_t value : dependencies.touches[size_t(plan.order[at])]) {
      ValueSpan& span = spans[size_t(value)];
      const Placement& placed = plan.values[size_t(value)];
      if (span.value < 0)
        span = {value, needs.bytes[size_t(value)], placed.offset,   int32_t(at),
                0,     placed.output_slot,         placed.own_block};
      span.end = int32_t(at);
    }
  std::erase_if(spans, [](const ValueSpan& span) { return span.value < 0; });
  return spans;
}

}  // namespace sdx
