// LabelEncoder of strings, CategoryMapper and OneHotEncoder: strings are found in a hash index that
// is built with the session (base/text_index.h), numbers by binary search.
#include "kernels/elements.h"
#include "kernels/row_stride.h"
#include "kernels/text/kernels.h"
#include "kernels/text/utf8.h"

namespace sdx::SDX_ISA::texting {
namespace {

enum Operand : int { kX, kKeys, kIndex, kValues };

struct FindArgs {
  int64_t count, n_keys, n_slots, size_bytes;
  Strided at;
};

Status find_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const FindArgs*>(args);
  const TextIndex index{input<uint64_t>(data, kIndex), a.n_slots, input<Text>(data, kKeys)};
  const auto* values = input<std::byte>(data, kValues);
  each(a.count, begin, end, [&](int64_t i) {
    int64_t position = index.find(input<Text>(data, kX)[a.at(i)]);
    if (position < 0) position = a.n_keys;
    memcpy(output<std::byte>(data) + i * a.size_bytes, values + position * a.size_bytes,
           size_t(a.size_bytes));
  });
  return {};
}

struct OneHotArgs {
  int64_t count, n, pitch, n_slots;
  bool allows_unknown;
  DType dtype;
  Strided at;
};

// One-hot rows: find(i) is the column of element i, or -1; refuse(i) is the error for an unknown
// one.
template <class Find, class Refuse>
SDX_INLINE Status hot_rows(const OneHotArgs& a, const Data& data, int64_t begin, int64_t end,
                           Find find, Refuse refuse) {
  int64_t unknown = -1;
  const int64_t first = begin * kPerItem,
                last = end * kPerItem < a.count ? end * kPerItem : a.count;
  float* const y = output<float>(data);
  if (a.pitch == a.n)
    memset(y + first * a.n, 0, size_t((last - first) * a.n) * sizeof *y);
  else
    for (int64_t i = first; i < last; ++i) memset(y + i * a.pitch, 0, size_t(a.n) * sizeof *y);
  each(a.count, begin, end, [&](int64_t i) {
    const int64_t at = find(a.at(i));
    if (at >= 0)
      y[i * a.pitch + at] = 1;
    else if (unknown < 0)
      unknown = i;
  });
  return unknown < 0 || a.allows_unknown ? Status() : refuse(a.at(unknown));
}

Status one_hot_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const OneHotArgs*>(args);
  const TextIndex index{input<uint64_t>(data, kIndex), a.n_slots, input<Text>(data, kKeys)};
  const Text* x = input<Text>(data, kX);
  return hot_rows(
      a, data, begin, end, [&](int64_t i) { return index.find(x[i]); },
      [&](int64_t i) {
        return Status::fail(
            "'%s' is not one of the %ld categories (attribute zeros = 0 makes this an error)",
            Shown(x[i]).text, long(a.n));
      });
}

// The position of a number among sorted keys, or -1.
SDX_INLINE int64_t find_sorted(const int64_t* keys, int64_t n, int64_t x) {
  if (n > 0 && uint64_t(keys[n - 1]) - uint64_t(keys[0]) == uint64_t(n - 1)) {
    const uint64_t at = uint64_t(x) - uint64_t(keys[0]);  // consecutive keys need no search
    return at < uint64_t(n) ? int64_t(at) : -1;
  }
  int64_t low = 0, left = n;
  while (left > 0) {
    const int64_t half = left / 2;
    const bool is_below = keys[low + half] < x;
    low = is_below ? low + half + 1 : low;
    left = is_below ? left - half - 1 : half;
  }
  return low < n && keys[low] == x ? low : -1;
}

template <class T>
Status category_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const OneHotArgs*>(args);
  const int64_t *keys = input<int64_t>(data, kKeys), *columns = input<int64_t>(data, kIndex);
  const T* x = input<T>(data, kX);
  return hot_rows(
      a, data, begin, end,
      [&](int64_t i) {
        if constexpr (kIsFloat<T>)
          if (!(x[i] > -0x1p63 && x[i] < 0x1p63)) return int64_t(-1);
        const int64_t at = find_sorted(keys, a.n_slots, int64_t(x[i]));
        return at < 0 ? at : columns[at];
      },
      [&](int64_t i) {
        return Status::fail(
            "%g is not one of the %ld categories (attribute zeros = 0 makes this an error)",
            double(x[i]), long(a.n));
      });
}

OneHotArgs* hot_args(const Call& call, Plan& plan) {
  auto* a = plan.make<OneHotArgs>();
  const View &x = call.in[kX], &y = call.out[0];
  a->count = x.count(), a->n = y.dim(-1), a->pitch = row_stride(y);
  a->n_slots = call.in[kIndex].count();
  a->allows_unknown = call.ints[0] != 0;
  a->dtype = x.dtype;
  a->at.set(x, x);
  plan.args = a;
  return a;
}

}  // namespace

// Operands: strings, keys, the hash index over them, and one value per key plus the default.
Status find(const Call& call, Plan& plan) {
  auto* a = plan.make<FindArgs>();
  const View &x = call.in[kX], &y = call.out[0];
  a->count = x.count(), a->n_keys = call.in[kKeys].count(), a->n_slots = call.in[kIndex].count();
  a->size_bytes = size_of(y.dtype);
  a->at.set(x, x);
  plan.args = a;
  plan.add(find_items, items_of(a->count), kPerItem * 20);
  return {};
}

// Operands: strings, categories, the hash index over them. ints: whether unknown strings give zeros
// instead of an error.
Status one_hot(const Call& call, Plan& plan) {
  const OneHotArgs* a = hot_args(call, plan);
  plan.add(one_hot_items, items_of(a->count), kPerItem * (20 + a->n / 8));
  return {};
}

// Operands: numbers, sorted categories, the column of each. ints as above.
Status category_one_hot(const Call& call, Plan& plan) {
  const OneHotArgs* a = hot_args(call, plan);
  return visit(a->dtype, Types<float, double, int32_t, int64_t>{}, [&]<class T>() {
    plan.add(category_items<T>, items_of(a->count), kPerItem * (10 + a->n / 8));
    return Status();
  });
}

}  // namespace sdx::SDX_ISA::texting
