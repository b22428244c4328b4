// Exact sums of the bytes of rows, four rows at a time.
#pragma once

#include "kernels/quantize/tile_int8.h"

namespace sdx::SDX_ISA::int8 {

// The sums of four vectors of integers.
SDX_INLINE void reduce_four(const i32v (&v)[4], int32_t* to) {
  using Four = int32_t __attribute__((vector_size(16)));
  Four folded[4];
  for (int i = 0; i < 4; ++i) {
    Four parts[kLanes / 4];
    memcpy(parts, &v[i], sizeof parts);
    folded[i] = parts[0];
    for (int p = 1; p < kLanes / 4; ++p) folded[i] += parts[p];
  }
  const auto pair = [](Four a, Four b) {
    return __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  };
  const Four a = pair(folded[0], folded[1]), b = pair(folded[2], folded[3]);
  const Four sums =
      __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  memcpy(to, &sums, sizeof sums);
}

// The sums of the unsigned bytes of R rows, by dot products with ones: of each run the first
// run_bytes, without what fills it up to whole groups.
template <int R>
SDX_INLINE void sum_some(const Rows& rows, int64_t run_bytes, int32_t* to) {
  const auto flip = uint8_t(rows.flip);
  i32v total[4] = {};
  const Runs& runs = rows.runs;
  for (int64_t line = 0; line < runs.n_lines; ++line)
    for (int64_t run = 0; run < runs.n_runs; ++run)
      vloop<uint8_t>(run_bytes, [&](int64_t i, auto lanes) {
        const uint8_t* from = rows.at + line * runs.line_stride + run * runs.run_stride + i;
        for (int r = 0; r < R; ++r) {
          const auto bytes = load(from + r * rows.stride, lanes, flip) ^ splat(flip);
          total[r] = dot4(total[r], (i32v)bytes, splat(int32_t(0x01010101)));
        }
      });
  int32_t sums[4];
  reduce_four(total, sums);
  memcpy(to, sums, R * sizeof(int32_t));
}
SDX_INLINE void sum_rows(const Rows& rows, int64_t run_bytes, int64_t n, int32_t* to) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) sum_some<4>(rows.from(i), run_bytes, to + i);
  for (; i < n; ++i) sum_some<1>(rows.from(i), run_bytes, to + i);
}

}  // namespace sdx::SDX_ISA::int8
