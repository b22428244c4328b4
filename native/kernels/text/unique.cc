// Unique of strings: an open-addressing hash table with linear probing finds the distinct ones; a
// bottom-up merge sort orders them (kernels have no std::sort, whose symbols would leak between
// ISAs).
#include "kernels/text/kernels.h"

namespace sdx::SDX_ISA::texting {
namespace {

enum Output : int { kDistinct, kFirst, kWhich, kCounts };  // Y, indices, inverse_indices, counts

// Byte order: UTF-8 sorts as its code points do.
SDX_INLINE bool is_before(const Text& a, const Text& b) {
  const int64_t n = a.size < b.size ? a.size : b.size;
  const int order = n == 0 ? 0 : memcmp(a.data, b.data, size_t(n));
  return order != 0 ? order < 0 : a.size < b.size;
}

// The distinct strings among n: for each the first position (`first`), and for each element its
// string (`which`). Memory is that of the run's strings.
struct Distinct {
  int64_t count = 0;
  int64_t *slots = nullptr, *first = nullptr, *which = nullptr;

  // False if there is no memory. At most half of the slots are used.
  bool find(const Data& data, const Text* x, int64_t n) {
    int64_t n_slots = 2;
    while (n_slots < 2 * n) n_slots *= 2;
    char* memory = allocate_bytes(data, (n_slots + 2 * n) * int64_t(sizeof(int64_t)));
    if (memory == nullptr) return false;
    slots = reinterpret_cast<int64_t*>(memory);
    first = slots + n_slots;
    which = first + n;
    memset(slots, 0, size_t(n_slots) * sizeof *slots);
    const uint64_t mask = uint64_t(n_slots) - 1;
    // Seeded by an address that ASLR randomizes, against inputs chosen to collide.
    const uint64_t seed = mix_hash(reinterpret_cast<uintptr_t>(memory));
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

// Merge sort of string numbers; `spare` has the same size. Returns the buffer with the result.
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
  Distinct distinct;
  if (!distinct.find(data, x, a.n)) return no_memory(a.n * 32);
  const int64_t count = distinct.count;
  char* memory = allocate_bytes(data, 3 * count * int64_t(sizeof(int64_t)));
  if (memory == nullptr) return no_memory(count * 24);
  auto* order = reinterpret_cast<int64_t*>(memory);
  int64_t* const rank = order + 2 * count;
  for (int64_t k = 0; k < count; ++k) order[k] = k;
  if (a.is_sorted) order = sort(x, distinct.first, order, order + count, count);
  for (int64_t k = 0; k < count; ++k) {
    rank[order[k]] = k;
    output<Text>(data, kDistinct)[k] = x[distinct.first[order[k]]];
    if (a.n_out > kFirst) output<int64_t>(data, kFirst)[k] = distinct.first[order[k]];
    if (a.n_out > kCounts) output<int64_t>(data, kCounts)[k] = 0;
  }
  for (int64_t i = 0; i < a.n; ++i) {
    const int64_t at = rank[distinct.which[i]];
    if (a.n_out > kWhich) output<int64_t>(data, kWhich)[i] = at;
    if (a.n_out > kCounts) ++output<int64_t>(data, kCounts)[at];
  }
  return {};
}

}  // namespace

// ints: sorted.
Status unique(const Call& call, Plan& plan) {
  auto* a = plan.make<UniqueArgs>();
  *a = {call.in[0].count(), call.n_out, call.ints[0] != 0};
  plan.args = a;
  plan.add(unique_items, 1, a->n * 60);
  return {};
}

Status resolve_unique(const Call& call, const Data& data, View* out) {
  Distinct distinct;
  const int64_t n = call.in[0].count();
  if (!distinct.find(data, input<Text>(data, 0), n)) return no_memory(n * 32);
  for (int i = 0; i < call.n_out; ++i) out[i].dims[0] = i == kWhich ? n : distinct.count;
  return {};
}

}  // namespace sdx::SDX_ISA::texting
