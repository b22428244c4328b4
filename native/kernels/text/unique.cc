// Unique of strings: the distinct ones, where each is first, which one each is, and how many.
#include "kernels/text/rows.h"

namespace sdx::SDX_ISA::texting {
namespace {

enum Output : int { kFound, kFirst, kWhich, kCounts };

// UTF-8 has the order of code points.
SDX_INLINE bool is_before(const Text& a, const Text& b) {
  const int64_t n = a.size < b.size ? a.size : b.size;
  const int order = n == 0 ? 0 : memcmp(a.data, b.data, size_t(n));
  return order != 0 ? order < 0 : a.size < b.size;
}

// The distinct strings among n, in room of the run.
struct Distinct {
  int64_t count = 0;
  int64_t *slots = nullptr, *first = nullptr, *which = nullptr;

  // False where there is no memory.
  bool find(const Data& data, const Text* x, int64_t n) {
    int64_t n_slots = 2;
    while (n_slots < 2 * n) n_slots *= 2;
    char* room = room_for(data, (n_slots + 2 * n) * int64_t(sizeof(int64_t)));
    if (room == nullptr) return false;
    slots = reinterpret_cast<int64_t*>(room);
    first = slots + n_slots;
    which = first + n;
    memset(slots, 0, size_t(n_slots) * sizeof *slots);
    const uint64_t mask = uint64_t(n_slots) - 1;
    const uint64_t seed = mix_hash(reinterpret_cast<uintptr_t>(room));  // where systems put it
    for (int64_t i = 0; i < n; ++i) {
      uint64_t at = hash_of(x[i], seed) & mask;
      while (slots[at] != 0 && !is_same(x[first[slots[at] - 1]], x[i])) at = (at + 1) & mask;
      if (slots[at] == 0) {
        first[count++] = i;
        slots[at] = count;
      }
      which[i] = slots[at] - 1;
    }
    return true;
  }
};

// Numbers of strings in the strings' order, by merging runs; `spare` has as much room.
int64_t* sort(const Text* x, const int64_t* first, int64_t* order, int64_t* spare, int64_t n) {
  for (int64_t run = 1; run < n; run *= 2) {
    for (int64_t begin = 0; begin < n; begin += 2 * run) {
      const int64_t middle = begin + run < n ? begin + run : n;
      const int64_t end = begin + 2 * run < n ? begin + 2 * run : n;
      int64_t left = begin, right = middle;
      for (int64_t to = begin; to < end; ++to) {
        const bool is_right = left == middle || (right < end && is_before(x[first[order[right]]],
                                                                          x[first[order[left]]]));
        spare[to] = is_right ? order[right++] : order[left++];
      }
    }
    int64_t* const done = spare;
    spare = order;
    order = done;
  }
  return order;
}

struct UniqueArgs {
  int64_t n, n_out;
  bool is_sorted;
};

Status unique_items(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const UniqueArgs*>(args);
  const Text* x = input<Text>(data, 0);
  Distinct found;
  if (!found.find(data, x, a.n)) return no_memory(a.n * 32);
  const int64_t count = found.count;
  char* room = room_for(data, 3 * count * int64_t(sizeof(int64_t)));
  if (room == nullptr) return no_memory(count * 24);
  auto* order = reinterpret_cast<int64_t*>(room);
  int64_t* const place = order + 2 * count;
  for (int64_t k = 0; k < count; ++k) order[k] = k;
  if (a.is_sorted) order = sort(x, found.first, order, order + count, count);
  for (int64_t k = 0; k < count; ++k) {
    place[order[k]] = k;
    output<Text>(data, kFound)[k] = x[found.first[order[k]]];
    if (a.n_out > kFirst) output<int64_t>(data, kFirst)[k] = found.first[order[k]];
    if (a.n_out > kCounts) output<int64_t>(data, kCounts)[k] = 0;
  }
  for (int64_t i = 0; i < a.n; ++i) {
    const int64_t at = place[found.which[i]];
    if (a.n_out > kWhich) output<int64_t>(data, kWhich)[i] = at;
    if (a.n_out > kCounts) ++output<int64_t>(data, kCounts)[at];
  }
  return {};
}

}  // namespace

// ints: whether the result is in order, or as the strings come.
Status unique(const Call& call, Plan& plan) {
  auto* a = plan.make<UniqueArgs>();
  *a = {call.in[0].count(), call.n_out, call.ints[0] != 0};
  plan.args = a;
  plan.add(unique_items, 1, a->n * 60);
  return {};
}

Status resolve_unique(const Call& call, const Data& data, View* out) {
  Distinct found;
  const int64_t n = call.in[0].count();
  if (!found.find(data, input<Text>(data, 0), n)) return no_memory(n * 32);
  for (int i = 0; i < call.n_out; ++i) out[i].dims[0] = i == kWhich ? n : found.count;
  return {};
}

}  // namespace sdx::SDX_ISA::texting
