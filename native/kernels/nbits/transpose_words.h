// n-major weights in squares of 32-bit words, transposed in registers: lanes become columns.
#pragma once

#include "kernels/nbits/matmul.h"
#include "simd/transpose.h"

namespace sdx::SDX_ISA::nbits {

// Calls take(word, v) for the 32-bit words of a tile's depth: lane i of v belongs to column `column
// + j + i`. Lanes after the last column or row are arbitrary.
template <class Take>
SDX_INLINE void transpose_words(const Weights& w, const Data& data, const WeightTile& at, int64_t j,
                                Take&& take) {
  const int64_t row_bytes = w.row_bytes(), begin = at.depth * w.bits / 8;
  const int64_t wanted = (at.depths * w.bits + 31) / 32, left = at.width - j;
  if (left <= 0) return;
  const uint8_t* from = input<uint8_t>(data, kQ) + (at.column + j) * row_bytes;
  const int64_t next = at.next_columns > 0 ? at.next_columns * row_bytes - begin
                                           : at.depths * w.bits / 8;  // bytes to the next tile
  alignas(64) uint32_t transposed[kLanes][kLanes];
  alignas(64) uint8_t whole[kLanes][SDX_VEC_BYTES];
  for (int64_t word = 0; word < wanted; word += kLanes) {
    const int64_t byte = begin + word * 4;
    const uint8_t* square = from + byte;
    for (int64_t i = 0; i < kLanes && i < left; ++i)
      __builtin_prefetch(square + i * row_bytes + next, 0, 2);
    int64_t stride = row_bytes;
    if (left < kLanes || byte + SDX_VEC_BYTES > row_bytes) {
      const int64_t bytes = row_bytes - byte < SDX_VEC_BYTES ? row_bytes - byte : SDX_VEC_BYTES;
      memset(whole, 0, sizeof whole);
      for (int64_t i = 0; i < kLanes && i < left; ++i)
        memcpy(whole[i], square + i * row_bytes, size_t(bytes));
      square = whole[0], stride = SDX_VEC_BYTES;
    }
    transpose_square<uint32_t, SDX_VEC_BYTES>(reinterpret_cast<const std::byte*>(square), stride,
                                              reinterpret_cast<std::byte*>(transposed),
                                              SDX_VEC_BYTES);
    const int64_t n = wanted - word < kLanes ? wanted - word : kLanes;
    for (int64_t i = 0; i < n; ++i) take(word + i, load(transposed[i]));
  }
}

}  // namespace sdx::SDX_ISA::nbits
