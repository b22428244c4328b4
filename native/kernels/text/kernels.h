// Kernels of the text family, by the file that defines them, and the helpers that they share. A
// `resolve_*` function sets the output dims that depend on data.
#pragma once

#include "base/text_index.h"
#include "kernels/kernel.h"

namespace sdx::SDX_ISA::texting {

// casts.cc
Status read_numbers(const Call& call, Plan& plan);
Status write_numbers(const Call& call, Plan& plan);

// categories.cc
Status find(const Call& call, Plan& plan);
Status one_hot(const Call& call, Plan& plan);
Status category_one_hot(const Call& call, Plan& plan);

// ngrams.cc
Status count_grams(const Call& call, Plan& plan);

// hash.cc
Status hash(const Call& call, Plan& plan);

// normalize.cc
Status normalize(const Call& call, Plan& plan);
Status resolve_normalize(const Call& call, const Data& data, View* out);

// elementwise.cc
Status equal(const Call& call, Plan& plan);
Status where(const Call& call, Plan& plan);
Status concat(const Call& call, Plan& plan);

// split.cc
Status split(const Call& call, Plan& plan);
Status resolve_split(const Call& call, const Data& data, View* out);

// tokenize.cc
Status full_match(const Call& call, Plan& plan);
Status tokenize(const Call& call, Plan& plan);
Status resolve_tokenize(const Call& call, const Data& data, View* out);

// unique.cc
Status unique(const Call& call, Plan& plan);
Status resolve_unique(const Call& call, const Data& data, View* out);

// Elements of one item, and the number of items.
constexpr int64_t kPerItem = 256;
SDX_INLINE int64_t items_of(int64_t count) { return (count + kPerItem - 1) / kPerItem; }

// Calls body(i) for the elements of items [begin, end).
template <class Body>
SDX_INLINE void each(int64_t count, int64_t begin, int64_t end, Body&& body) {
  const int64_t last = end * kPerItem < count ? end * kPerItem : count;
  for (int64_t i = begin * kPerItem; i < last; ++i) body(i);
}

SDX_INLINE Status no_memory(int64_t bytes) {
  return Status::fail("out of memory: strings need %ld bytes more", long(bytes));
}

// Memory for the bytes of new strings, freed after the run; null if there is none. Thread-safe.
SDX_INLINE char* allocate_bytes(const Data& data, int64_t bytes) {
  return data.strings->allocate(data.strings->owner, bytes);
}

// Maps a row-major element number of the output to the offset in a strided, broadcast input.
struct Strided {
  int rank = 0;
  int64_t dims[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};
  bool is_plain = false;

  // `x` broadcast to the shape of `out`, by strides of 0.
  SDX_INLINE void set(const View& x, const View& out) {
    rank = out.rank;
    const int more = out.rank - x.rank;
    for (int i = 0; i < rank; ++i) {
      dims[i] = out.dims[i];
      const bool repeats = i < more || (x.dims[i - more] == 1 && out.dims[i] != 1);
      strides[i] = repeats ? 0 : x.strides[i - more];
    }
    is_plain = x.count() == out.count() && x.is_contiguous();
  }
  SDX_INLINE int64_t operator()(int64_t index) const {
    if (is_plain) return index;
    int64_t at = 0;
    for (int i = rank - 1; i >= 0; --i) {
      at += index % dims[i] * strides[i];
      index /= dims[i];
    }
    return at;
  }
};

}  // namespace sdx::SDX_ISA::texting
