// Features chosen, joined, or looked up in a table.
#include "kernels/linear_ml/rows.h"

namespace sdx::SDX_ISA {
namespace {

struct ExtractArgs {
  int64_t n_rows, width, n_chosen, size_bytes;
};

Status extract_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ExtractArgs*>(args);
  const int64_t* chosen = input<int64_t>(data, 1);
  for (int64_t i = 0; i < a.n_chosen; ++i)
    if (chosen[i] < 0 || chosen[i] >= a.width)
      return Status::fail("feature %ld is outside [0, %ld)", long(chosen[i]), long(a.width));
  const auto copy = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    each_row(a.n_rows, begin, end, [&](int64_t row) {
      const T* x = input<T>(data, 0) + row * a.width;
      T* y = output<T>(data) + row * a.n_chosen;
      for (int64_t i = 0; i < a.n_chosen; ++i) y[i] = x[chosen[i]];
    });
  };
  switch (a.size_bytes) {
    case 4: copy(static_cast<uint32_t*>(nullptr)); break;
    case 8: copy(static_cast<uint64_t*>(nullptr)); break;
    default: copy(static_cast<Text*>(nullptr));
  }
  return {};
}

struct Joined {
  DType dtype;
  int64_t width, given;  // columns that go out, columns that there are
};

struct JoinArgs {
  int64_t n_rows, width;
  int n_parts;
  const Joined* parts;
};

Status join_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const JoinArgs*>(args);
  int64_t at = 0;
  for (int p = 0; p < a.n_parts; at += a.parts[p++].width) {
    const Joined& part = a.parts[p];
    const int64_t n = part.given < part.width ? part.given : part.width;
    visit_features(part.dtype, [&](auto* type) {
      using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
      each_row(a.n_rows, begin, end, [&](int64_t row) {
        const T* x = input<T>(data, p) + row * part.given;
        float* y = output<float>(data) + row * a.width + at;
        for (int64_t i = 0; i < n; ++i) y[i] = float(x[i]);
        for (int64_t i = n; i < part.width; ++i) y[i] = 0;
      });
    });
  }
  return {};
}

constexpr int64_t kLookups = 256;  // of one item

struct EncodeArgs {
  int64_t count, n_keys, size_bytes;
  DType dtype;
};

// The first key that is not below; NaN stands behind all numbers.
template <class T>
SDX_INLINE int64_t position(const T* keys, int64_t n, T x) {
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

// Where a number is among the keys; n where it is none of them.
template <class T>
SDX_INLINE int64_t place_among(const T* keys, int64_t n, T x) {
  if constexpr (std::is_integral_v<T>) {
    // Keys that follow each other need no search; differences wrap, and are large then.
    if (uint64_t(keys[n - 1]) - uint64_t(keys[0]) == uint64_t(n - 1)) {
      const uint64_t at = uint64_t(x) - uint64_t(keys[0]);
      return at < uint64_t(n) ? int64_t(at) : n;
    }
  }
  const int64_t at = position(keys, n, x);
  return at < n && (keys[at] == x || (keys[at] != keys[at] && x != x)) ? at : n;
}

template <class T, class V>
void encode_as(const EncodeArgs& a, const Data& data, int64_t begin, int64_t end) {
  const T *x = input<T>(data, 0), *keys = input<T>(data, 1);
  const V* values = input<V>(data, 2);
  V* y = output<V>(data);
  for (int64_t i = begin; i < end; ++i)
    y[i] = values[a.n_keys == 0 ? 0 : place_among(keys, a.n_keys, x[i])];
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

Status array_feature_extractor(const Call& call, Plan& plan) {
  auto* a = plan.make<ExtractArgs>();
  const View& x = call.in[0];
  *a = {x.count(0, x.rank - 1), x.dim(-1), call.in[1].count(), size_of(x.dtype)};
  plan.args = a;
  plan.add(extract_rows, items_of(a->n_rows), kRowsPerItem * a->n_chosen);
  return {};
}

// ints: the columns that each input gets.
Status feature_vectorizer(const Call& call, Plan& plan) {
  auto* a = plan.make<JoinArgs>();
  auto* parts = plan.make<Joined>(size_t(call.n_in));
  for (int p = 0; p < call.n_in; ++p) {
    const View& x = call.in[p];
    parts[p] = {x.dtype, call.ints[p], x.rank > 1 ? x.count(1, x.rank) : x.count()};
  }
  *a = {call.out[0].dims[0], call.out[0].dims[1], call.n_in, parts};
  plan.args = a;
  plan.add(join_rows, items_of(a->n_rows), kRowsPerItem * (call.n_in * 4 + a->width));
  return {};
}

Status label_encoder(const Call& call, Plan& plan) {
  auto* a = plan.make<EncodeArgs>();
  const View& x = call.in[0];
  *a = {x.count(), call.in[1].count(), size_of(call.out[0].dtype), x.dtype};
  plan.args = a;
  plan.add(encode_labels, (a->count + kLookups - 1) / kLookups, kLookups * 10);
  return {};
}

}  // namespace sdx::SDX_ISA
