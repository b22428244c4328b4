// TopK by heap selection, or by radix sort where most elements are wanted. Selection: a min-heap
// holds the K best elements so far with the worst on top; every further element either loses
// against the top or replaces it, O(n log K). Popping the heap in place (heapsort) then leaves it
// sorted, best first.
//
// Values become unsigned keys with the same order, and a key is paired with its index, so that one
// comparison also resolves ties (the lower index wins). Once the heap is full most elements lose,
// so vectors of them are compared with the top first and skipped together.
#include "kernels/axes.h"
#include "kernels/elements.h"
#include "kernels/select/kernels.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {
namespace {

struct TopArgs {
  AxisView axis;
  int64_t k;
  bool takes_largest;
};

// A value as an unsigned key of the same order, NaN above all: negative floats inverted, others
// with the sign bit set; signed integers with the sign bit flipped.
template <class T>
SDX_INLINE auto key_of(T x) {
  using C = std::conditional_t<kIsFloat<T>, Wide<T>, T>;
  using U = std::conditional_t<sizeof(C) == 8, uint64_t, uint32_t>;
  const C v = number<C>(x);
  constexpr U sign = U(1) << (8 * sizeof(U) - 1);
  if constexpr (kIsFloat<T>) {
    if (v != v) return ~U(0);
    const C plain = v + C(0);  // -0 becomes 0, so that both compare equal
    U bits;
    memcpy(&bits, &plain, sizeof bits);
    return bits & sign ? U(~bits) : U(bits | sign);
  } else if constexpr (std::is_signed_v<C>) {
    return U(U(int64_t(v)) ^ sign);
  } else {
    return U(v);
  }
}

// A key with its index, such that the better entry is the greater: the lower index among equals.
// Keys of 32 bits and the index share one word.
struct NarrowEntry {
  uint64_t both;
  SDX_INLINE static NarrowEntry of(uint32_t key, int64_t index) {
    return {uint64_t(key) << 32 | uint32_t(~uint32_t(index))};
  }
  SDX_INLINE bool is_under(const NarrowEntry& o) const { return both < o.both; }
  SDX_INLINE uint32_t order() const { return uint32_t(both >> 32); }
  SDX_INLINE int64_t index() const { return int64_t(uint32_t(~uint32_t(both))); }
};
struct WideEntry {
  uint64_t key;
  int64_t at;
  SDX_INLINE static WideEntry of(uint64_t key, int64_t index) { return {key, index}; }
  SDX_INLINE bool is_under(const WideEntry& o) const {
    return key != o.key ? key < o.key : at > o.at;
  }
  SDX_INLINE uint64_t order() const { return key; }
  SDX_INLINE int64_t index() const { return at; }
};

// Whether all of n elements are sorted, in twice their memory.
SDX_INLINE bool sorts_all(int64_t n, int64_t k) {
  constexpr int64_t kLeast = 256;
  return n >= kLeast && k > n / 4;
}

// Sorts n entries, the best first and equal ones in their order: LSD radix sort by bytes, without
// those that all keys share. Returns which half of the memory has the result.
template <class Entry>
Entry* sorted(Entry* entries, int64_t n) {
  using Key = decltype(entries->order());
  Entry* other = entries + n;
  Key shared = ~Key(0), seen = 0;
  for (int64_t i = 0; i < n; ++i) shared &= entries[i].order(), seen |= entries[i].order();
  for (int shift = 0; shift < int(8 * sizeof(Key)); shift += 8) {
    if ((((shared ^ seen) >> shift) & 255) == 0) continue;
    int64_t first[256] = {};
    const auto bucket = [&](int64_t i) { return 255 - ((entries[i].order() >> shift) & 255); };
    for (int64_t i = 0; i < n; ++i) ++first[bucket(i)];
    for (int64_t b = 0, total = 0; b < 256; ++b) {
      const int64_t count = first[b];
      first[b] = total, total += count;
    }
    for (int64_t i = 0; i < n; ++i) other[first[bucket(i)]++] = entries[i];
    Entry* const result = other;
    other = entries, entries = result;
  }
  return entries;
}

// Sifts an entry down from the hole in a min-heap of n entries.
template <class Entry>
SDX_INLINE void sift_down(Entry* heap, int64_t n, int64_t hole, Entry entry) {
  for (int64_t child = 2 * hole + 1; child < n; child = 2 * hole + 1) {
    if (child + 1 < n && heap[child + 1].is_under(heap[child])) ++child;
    if (!heap[child].is_under(entry)) break;
    heap[hole] = heap[child];
    hole = child;
  }
  heap[hole] = entry;
}

constexpr int64_t kScan = 32;  // elements that are compared with the heap's top together

template <class T>
using Mask =
    std::conditional_t<sizeof(T) == 8, int64_t,
                       std::conditional_t<sizeof(T) == 4, int32_t,
                                          std::conditional_t<sizeof(T) == 2, int16_t, int8_t>>>;

// The mask of those of kScan elements that may be better than `than`; false if none is. NaN passes
// (the comparisons are negated), an equal element does not: its index is higher.
template <class T>
SDX_INLINE bool compare_better(const T* x, T than, bool takes_largest, Mask<T>* mask) {
  Vec<Mask<T>> any{};
  for (int64_t i = 0; i < kScan; i += kLanesOf<T>) {
    const Vec<T> v = load(x + i);
    const Vec<Mask<T>> better = takes_largest ? ~(v <= than) : ~(v >= than);
    store(mask + i, better);
    any |= better;
  }
  return fold(any, [](auto a, auto b) { return a | b; }) != 0;
}

template <class Entry, class T>
void top_of(const TopArgs& a, const T* x, T* values, int64_t* indices, Entry* heap) {
  const int64_t stride = a.axis.stride, k = a.k;
  const auto entry = [&](int64_t i) {
    const auto key = key_of(x[i * stride]);
    return Entry::of(a.takes_largest ? key : decltype(key)(~key), i);
  };
  const auto write = [&](const Entry* best) {
    for (int64_t i = 0; i < k; ++i) {
      const int64_t at = best[i].index();
      values[i * a.axis.out_stride] = x[at * stride];
      indices[i * a.axis.out_stride] = at;
    }
  };
  if (sorts_all(a.axis.n, k)) {
    for (int64_t i = 0; i < a.axis.n; ++i) heap[i] = entry(i);
    return write(sorted(heap, a.axis.n));
  }
  for (int64_t i = 0; i < k; ++i) heap[i] = entry(i);
  for (int64_t i = k / 2 - 1; i >= 0; --i) sift_down(heap, k, i, heap[i]);
  const auto offer = [&](int64_t i) {
    const Entry e = entry(i);
    if (heap[0].is_under(e)) sift_down(heap, k, 0, e);
  };
  int64_t next = k;
  if constexpr (std::is_arithmetic_v<T> && kLanesOf<T> <= kScan)
    for (Mask<T> mask[kScan]; stride == 1 && next + kScan <= a.axis.n; next += kScan)
      if (compare_better(x + next, x[heap[0].index()], a.takes_largest, mask))
        for (int64_t j = 0; j < kScan; ++j)
          if (mask[j]) offer(next + j);
  for (; next < a.axis.n; ++next) offer(next);
  // Heapsort: the worst entry goes to the end, and so on.
  for (int64_t n = k - 1; n > 0; --n) {
    const Entry last = heap[n];
    heap[n] = heap[0];
    sift_down(heap, n, 0, last);
  }
  write(heap);
}

// The best of a row of numbers in vectors: the maximum or minimum, then its first position. False
// if there is a NaN, whose order is that of keys.
template <class T>
bool best_of(const TopArgs& a, const T* x, T* value, int64_t* index) {
  const int64_t n = a.axis.n;
  Vec<T> best = splat(x[0]);
  Vec<Mask<T>> is_nan{};
  const auto join = [&](auto p, auto q) {
    return a.takes_largest ? (p > q ? p : q) : (p < q ? p : q);
  };
  vloop<T>(n, [&](int64_t i, auto lanes) {
    const Vec<T> v = load(x + i, lanes, x[0]);
    if constexpr (std::is_floating_point_v<T>) is_nan |= v != v;
    best = join(best, v);
  });
  if (fold(is_nan, [](auto p, auto q) { return p | q; }) != 0) return false;
  const T top = fold(best, join);
  int64_t at = 0;
  for (; at + kLanesOf<T> <= n; at += kLanesOf<T>) {
    const Vec<Mask<T>> found = load(x + at) == top;
    if (fold(found, [](auto p, auto q) { return p | q; }) != 0) break;
  }
  while (x[at] != top) ++at;
  *value = x[at], *index = at;
  return true;
}

template <class Entry, class T>
Status run_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TopArgs*>(args);
  if (a.k == 0) return {};
  for (int64_t item = begin; item < end; ++item) {
    const int64_t column = item % a.axis.columns;
    const Offsets at = offsets_of(a.axis.outer, a.axis.outer.n, item / a.axis.columns);
    if constexpr (std::is_arithmetic_v<T>)
      if (a.k == 1 && a.axis.stride == 1 && a.axis.n > 0 &&
          best_of(a, input<T>(data, 0) + at.in + column * a.axis.column_stride,
                  output<T>(data, 0) + at.out + column, output<int64_t>(data, 1) + at.out + column))
        continue;
    top_of(a, input<T>(data, 0) + at.in + column * a.axis.column_stride,
           output<T>(data, 0) + at.out + column, output<int64_t>(data, 1) + at.out + column,
           reinterpret_cast<Entry*>(data.local));
  }
  return {};
}

using Keyed = Types<float, double, F16, BF16, int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t,
                    int64_t, uint64_t>;

}  // namespace

Status top_k(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Keyed{}, [&]<class T>() {
    using Entry = std::conditional_t<sizeof(T) == 8, WideEntry, NarrowEntry>;
    auto* a = plan.make<TopArgs>();
    plan.args = a;
    const int axis = int(call.ints[0]);
    a->axis = view_along(call.in[0], call.out[0], axis);
    a->k = call.out[0].dims[axis];
    a->takes_largest = call.ints[1] != 0;
    plan.add(run_items<Entry, T>, a->axis.n_outer * a->axis.columns, a->axis.n + a->k * 20 + 10);
    const int64_t entries = sorts_all(a->axis.n, a->k) ? 2 * a->axis.n : a->k;
    plan.local_bytes = entries * int64_t(sizeof(Entry));
    return Status{};
  });
}

Status top_k_sizes(const Call& call, const Data& data, View* out) {
  const View& x = call.in[0];
  const int axis = int(call.ints[0]);
  const int64_t k =
      call.in[1].dtype == DType::i32 ? input<int32_t>(data, 1)[0] : input<int64_t>(data, 1)[0];
  if (k < 0 || k > x.dims[axis])
    return Status::fail("K is %ld, and axis %d has %ld elements", long(k), axis,
                        long(x.dims[axis]));
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < x.rank; ++j) out[i].dims[j] = j == axis ? k : x.dims[j];
  return {};
}

}  // namespace sdx::SDX_ISA
