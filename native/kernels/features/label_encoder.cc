// LabelEncoder with numeric keys: keys are sorted when the session is built, and every element is
// found by binary search, or directly where the keys are consecutive integers.
#include "kernels/features/kernels.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kLookups = 256;  // elements of one item

struct EncodeArgs {
  int64_t count, n_keys, size_bytes;
  DType dtype;
};

// Lower bound: the first key that is not below x, NaN sorting after all numbers. The comparison
// selects instead of branching, since its outcome is random.
template <class T>
SDX_INLINE int64_t lower_bound(const T* keys, int64_t n, T x) {
  int64_t low = 0;
  while (n > 0) {
    const int64_t half = n / 2;
    const T key = keys[low + half];
    const bool is_below = x != x ? key == key : key < x;
    low = is_below ? low + half + 1 : low;
    n = is_below ? n - half - 1 : half;
  }
  return low;
}

// The position of x among the keys; n, the position of the default value, if it is none of them.
template <class T>
SDX_INLINE int64_t find_key(const T* keys, int64_t n, T x) {
  if constexpr (std::is_integral_v<T>) {
    // Consecutive keys need no search. Unsigned differences wrap, and are then too large to match.
    if (uint64_t(keys[n - 1]) - uint64_t(keys[0]) == uint64_t(n - 1)) {
      const uint64_t at = uint64_t(x) - uint64_t(keys[0]);
      return at < uint64_t(n) ? int64_t(at) : n;
    }
  }
  const int64_t at = lower_bound(keys, n, x);
  return at < n && (keys[at] == x || (keys[at] != keys[at] && x != x)) ? at : n;
}

// Values are copied by their size alone, as their type does not matter.
template <class T, class V>
void encode_as(const EncodeArgs& a, const Data& data, int64_t begin, int64_t end) {
  const T *x = input<T>(data, 0), *keys = input<T>(data, 1);
  const V* values = input<V>(data, 2);
  V* y = output<V>(data);
  for (int64_t i = begin; i < end; ++i)
    y[i] = values[a.n_keys == 0 ? 0 : find_key(keys, a.n_keys, x[i])];
}

template <class T>
void encode(const EncodeArgs& a, const Data& data, int64_t begin, int64_t end) {
  switch (a.size_bytes) {
    case 2: return encode_as<T, uint16_t>(a, data, begin, end);
    case 4: return encode_as<T, uint32_t>(a, data, begin, end);
    case 8: return encode_as<T, uint64_t>(a, data, begin, end);
    default: return encode_as<T, Text>(a, data, begin, end);
  }
}

Status encode_labels(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const EncodeArgs*>(args);
  begin *= kLookups;
  end = end * kLookups < a.count ? end * kLookups : a.count;
  switch (a.dtype) {
    case DType::f32: encode<float>(a, data, begin, end); break;
    case DType::f64: encode<double>(a, data, begin, end); break;
    case DType::i16: encode<int16_t>(a, data, begin, end); break;
    case DType::i32: encode<int32_t>(a, data, begin, end); break;
    default: encode<int64_t>(a, data, begin, end);
  }
  return {};
}

}  // namespace

Status label_encoder(const Call& call, Plan& plan) {
  auto* a = plan.make<EncodeArgs>();
  const View& x = call.in[0];
  *a = {x.count(), call.in[1].count(), size_of(call.out[0].dtype), x.dtype};
  plan.args = a;
  plan.add(encode_labels, (a->count + kLookups - 1) / kLookups, kLookups * 10);
  return {};
}

}  // namespace sdx::SDX_ISA
