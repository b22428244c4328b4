// k-major weights, four rows at a time: brings interleaved bytes back into the order of columns.
#pragma once

#include "simd/bytes.h"
#include "simd/nbit_codes.h"
#include "simd/transpose.h"

namespace sdx::SDX_ISA::nbits {

// Four vectors of interleaved bytes (simd/bytes.h), each split into its fields, become vectors of
// columns in order: take(v, columns).
template <int bits, class Take>
SDX_INLINE void order_columns(const i32v (&from)[4][8 / bits], Take&& take) {
  constexpr int kFields = 8 / bits, kLaneCount = SDX_VEC_BYTES / kLaneBytes;
  using Words = Wide<uint32_t, SDX_VEC_BYTES>;
  constexpr auto kIndices = std::make_index_sequence<kLanes>{};
  Words lanes[4 * kFields];
  for (int q = 0; q < 4; ++q) {
    if constexpr (kFields == 4) {
      Words square[4];
      for (int i = 0; i < 4; ++i) square[i] = (Words)from[q][i];
      transpose_lanes<uint32_t, SDX_VEC_BYTES>(square);
      for (int i = 0; i < 4; ++i) lanes[4 * q + i] = square[i];
    } else if constexpr (kFields == 2) {
      const auto low = (Words)from[q][0], high = (Words)from[q][1];
      lanes[2 * q] = interleave<uint32_t, SDX_VEC_BYTES, 0>(low, high, kIndices);
      lanes[2 * q + 1] = interleave<uint32_t, SDX_VEC_BYTES, 1>(low, high, kIndices);
    } else {
      lanes[q] = (Words)from[q][0];
    }
  }
  constexpr int kSets = 4 * kFields / kLaneCount;
  for (int s = 0; s < kSets; ++s) {
    Wide<uint64_t, SDX_VEC_BYTES> rows[kLaneCount];
    for (int g = 0; g < kLaneCount; ++g)
      rows[g] = (Wide<uint64_t, SDX_VEC_BYTES>)lanes[kLaneCount * s + g];
    swap_lanes(rows);
    for (int g = 0; g < kLaneCount; ++g) take(kSets * g + s, (i32v)rows[g]);
  }
}

}  // namespace sdx::SDX_ISA::nbits
