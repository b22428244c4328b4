#include "exec/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "exec/execution_order.h"

namespace sdx {
namespace {

constexpr int kMaxToggled = 64;         // Concats that are tried one by one, each a linear pass
constexpr int64_t kGrown = 2;           // a plan this many times larger justifies another search
constexpr size_t kMaxOutputBlocks = 8;  // the largest ones are filled; small ones gain little

// Where an owner is stored in the block of an output that is written later.
struct OutputBlockOffset {
  int32_t slot = -1;  // -1: in the arena
  int64_t offset = 0;
};

// Moves lifetimes into the blocks of outputs, the `n_blocks` largest of them, so that they need no
// bytes of the arena.
class OutputBlockReuse {
 public:
  std::vector<OutputBlockOffset> offsets;  // by owner

  OutputBlockReuse(const MemoryNeeds& needs, size_t n_blocks, BufferLifetimes& arena)
      : offsets(arena.owner.size()) {
    std::vector<SlotBlock> blocks = needs.output_blocks;
    std::stable_sort(blocks.begin(), blocks.end(),
                     [](const SlotBlock& a, const SlotBlock& b) { return a.bytes > b.bytes; });
    if (blocks.size() > n_blocks) blocks.resize(n_blocks);
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
    std::vector<size_t> candidates;  // no scratch: its offset is relative to the arena
    for (size_t i = 0; i < lifetimes.size(); ++i)
      if (size_t(arena.allocation[i]) < offsets.size() && lifetimes[i].end < first_write &&
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
      const int64_t at = offsets[size_t(arena.allocation[j])].offset;
      used.emplace_back(at, at + other.size);
    }
    const int64_t offset = first_fit_offset(used, lifetime.size);
    if (offset + lifetime.size > block.bytes) return false;
    offsets[size_t(arena.allocation[i])] = {block.slot, offset};
    return true;
  }
};

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

// The most bytes of inputs and outputs that are live simultaneously, in addition to the arena.
// Without consumed inputs all of them always are, and a plan changes nothing.
int64_t boundary_peak(const Dependencies& dependencies, const MemoryNeeds& needs,
                      const MemoryPlan& plan) {
  if (!needs.consumes_inputs) return 0;
  MemoryNeeds used;
  used.input_blocks = needs.input_blocks;
  used.output_blocks = needs.output_blocks;
  std::unordered_map<int32_t, SlotBlock*> by_slot;
  for (SlotBlock& block : used.output_blocks) by_slot.emplace(block.slot, &block);
  for (size_t step = 0; step < plan.order.size(); ++step)
    for (const int32_t value : dependencies.touches[step])
      if (const auto found = by_slot.find(plan.output_slot[size_t(value)]); found != by_slot.end())
        found->second->steps.push_back(int32_t(step));
  Tasks tasks;
  tasks.tasks.resize(plan.order.size());
  add_boundaries(used, tasks);
  return peak_of_order(tasks, with_boundaries(plan.order));
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

// The offset of each value, from that of its buffer's owner.
void set_offsets(const BufferMap& buffers, const BufferLifetimes& arena,
                 const OutputBlockReuse& reuse, const ArenaLayout& layout, MemoryPlan& plan) {
  const size_t n = buffers.buffer.size();
  std::vector<int64_t> at(n, 0);  // by owner
  for (size_t i = 0; i < arena.allocation.size(); ++i) {
    const auto allocation = size_t(arena.allocation[i]);
    (allocation < n ? at[allocation] : plan.scratch[allocation - n]) = layout.offsets[i];
  }
  for (size_t i = 0; i < n; ++i) {
    const auto owner = size_t(arena.owner[size_t(buffers.buffer[i])]);
    const OutputBlockOffset& moved = reuse.offsets[owner];
    plan.output_slot[i] = moved.slot;
    plan.offsets[i] = (moved.slot >= 0 ? moved.offset : at[owner]) + buffers.offset[i];
  }
}

// The plan that a choice leads to. Its allocation order is set, or replaced if it fits badly.
MemoryPlan plan_for(const Dependencies& dependencies, const MemoryNeeds& needs,
                    PlanChoice& choice) {
  const BufferMap buffers(needs, choice.is_elided);
  ParallelGroups groups = find_parallel_groups(dependencies, needs.costs, choice.order);
  BufferLifetimes arena(dependencies, needs, buffers, choice.order, groups);
  const int64_t live_bytes = arena.peak.bytes;
  const OutputBlockReuse reuse(needs, choice.n_output_blocks, arena);
  const ArenaLayout layout =
      assign_offsets(arena.lifetimes, arena.peak.bytes, choice.allocation_order);
  MemoryPlan plan{choice.order,
                  std::move(groups),
                  std::vector<int64_t>(needs.bytes.size(), 0),
                  std::vector<int32_t>(needs.bytes.size(), -1),
                  std::vector<int64_t>(needs.scratch.size(), 0),
                  layout.bytes,
                  live_bytes,
                  arena.peak};
  set_offsets(buffers, arena, reuse, layout, plan);
  return plan;
}

// A plan, and its bytes: the arena and, if inputs are consumed, the most bytes of inputs and
// outputs in addition to it.
struct CountedPlan {
  MemoryPlan plan;
  int64_t bytes;
};

// The plan of least memory for the order of a choice, whose other decisions are made here. A
// segment that consumes its inputs allocates an output when it is first written, so that reusing
// its block before has a price: as many of the largest blocks are reused as pays.
CountedPlan least_plan(const Dependencies& dependencies, const MemoryNeeds& needs,
                       PlanChoice& choice) {
  choose_elided_concats(dependencies, needs, choice);
  choice.n_output_blocks = kMaxOutputBlocks;
  MemoryPlan best = plan_for(dependencies, needs, choice);
  int64_t best_bytes = best.bytes + boundary_peak(dependencies, needs, best);
  const size_t n =
      needs.consumes_inputs ? std::min(needs.output_blocks.size(), kMaxOutputBlocks) : 0;
  for (size_t n_blocks = 0; n_blocks < n; ++n_blocks) {
    PlanChoice other{choice.order, choice.is_elided, {}, n_blocks};
    MemoryPlan made = plan_for(dependencies, needs, other);
    const int64_t bytes = made.bytes + boundary_peak(dependencies, needs, made);
    if (bytes >= best_bytes) continue;
    best = std::move(made);
    best_bytes = bytes;
    choice = std::move(other);
  }
  return {std::move(best), best_bytes};
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
  auto [best, best_bytes] = least_plan(dependencies, needs, choice);
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
    auto [made, bytes] = least_plan(dependencies, needs, other);
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
  std::vector<ValueSpan> spans(needs.bytes.size(), ValueSpan{-1, 0, 0, 0, 0, -1});
  for (size_t at = 0; at < plan.order.size(); ++at)
    for (const int32_t value : dependencies.touches[size_t(plan.order[at])]) {
      ValueSpan& span = spans[size_t(value)];
      if (span.value < 0)
        span = {value, needs.bytes[size_t(value)],     plan.offsets[size_t(value)], int32_t(at),
                0,     plan.output_slot[size_t(value)]};
      span.end = int32_t(at);
    }
  std::erase_if(spans, [](const ValueSpan& span) { return span.value < 0; });
  return spans;
}

}  // namespace sdx
