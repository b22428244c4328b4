// Vectors of bytes: partial loads and stores, interleaving of four rows into 32-bit lanes (the
// operand layout of dot4), and saturation of floats to bytes.
//
// Interleaving works within 128-bit lanes: of each 16 bytes, vector q of an interleaved four has
// the bytes 4q to 4q + 3.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <utility>

#include "simd/narrow.h"
#include "simd/transpose.h"

namespace sdx::SDX_ISA {

using u8v = Vec<uint8_t>;

SDX_INLINE u8v load_bytes(const uint8_t* p, Full) { return load(p); }
SDX_INLINE u8v load_bytes(const uint8_t* p, Part k) {
#if defined(__AVX512BW__)
  return (u8v)_mm512_maskz_loadu_epi8((uint64_t(1) << k.n) - 1, p);
#else
  return load(p, k);
#endif
}

SDX_INLINE void store_bytes(uint8_t* p, u8v v, Full) { store(p, v); }
SDX_INLINE void store_bytes(uint8_t* p, u8v v, Part k) { store_pieces(p, v, k.n); }

#if defined(__AVX512BW__)
#define SDX_BYTES(name) _mm512_##name
#define SDX_WHOLE __m512i
#elif defined(__AVX2__)
#define SDX_BYTES(name) _mm256_##name
#define SDX_WHOLE __m256i
#elif defined(__x86_64__)
#define SDX_BYTES(name) _mm_##name
#define SDX_WHOLE __m128i
#endif

// out: 32-bit lanes with byte i of a, b, c and d.
SDX_INLINE void interleave4(u8v a, u8v b, u8v c, u8v d, i32v* out) {
#if defined(SDX_WHOLE)
  const auto ab = SDX_BYTES(unpacklo_epi8)((SDX_WHOLE)a, (SDX_WHOLE)b);
  const auto ab_high = SDX_BYTES(unpackhi_epi8)((SDX_WHOLE)a, (SDX_WHOLE)b);
  const auto cd = SDX_BYTES(unpacklo_epi8)((SDX_WHOLE)c, (SDX_WHOLE)d);
  const auto cd_high = SDX_BYTES(unpackhi_epi8)((SDX_WHOLE)c, (SDX_WHOLE)d);
  out[0] = (i32v)SDX_BYTES(unpacklo_epi16)(ab, cd);
  out[1] = (i32v)SDX_BYTES(unpackhi_epi16)(ab, cd);
  out[2] = (i32v)SDX_BYTES(unpacklo_epi16)(ab_high, cd_high);
  out[3] = (i32v)SDX_BYTES(unpackhi_epi16)(ab_high, cd_high);
#else
  for (int i = 0; i < SDX_VEC_BYTES; ++i) {
    const uint32_t four = a[i] | b[i] << 8 | c[i] << 16 | uint32_t(d[i]) << 24;
    out[i % 16 / 4][i / 16 * 4 + i % 4] = int32_t(four);
  }
#endif
}

// Four vectors of 32-bit lanes in the order of interleave4, in the order of the bytes: 128-bit
// lanes are exchanged between vectors.
SDX_INLINE void deinterleave4(i32v (&v)[4]) {
  constexpr int kParts = SDX_VEC_BYTES / kLaneBytes, kSets = 4 / kParts;
  using Rows = Wide<uint64_t, SDX_VEC_BYTES>;
  i32v in_order[4];
#pragma GCC unroll 4
  for (int set = 0; set < kSets; ++set) {
    Rows rows[kParts];
    for (int i = 0; i < kParts; ++i) rows[i] = (Rows)v[set * kParts + i];
    swap_lanes(rows);
    for (int i = 0; i < kParts; ++i) in_order[i * kSets + set] = (i32v)rows[i];
  }
  for (int i = 0; i < 4; ++i) v[i] = in_order[i];
}

// The low bytes of four vectors of 32-bit lanes: the inverse order of interleave4.
SDX_INLINE u8v pack_low_bytes(const i32v* in) {
#if defined(SDX_WHOLE)
  const auto low = [&](int i) { return (SDX_WHOLE)(in[i] & 255); };
  const auto first = SDX_BYTES(packs_epi32)(low(0), low(1));
  const auto second = SDX_BYTES(packs_epi32)(low(2), low(3));
  return (u8v)SDX_BYTES(packus_epi16)(first, second);
#else
  u8v v;
  for (int i = 0; i < SDX_VEC_BYTES; ++i) v[i] = uint8_t(in[i % 16 / 4][i / 16 * 4 + i % 4]);
  return v;
#endif
}

// Four vectors of values, rounded half to even, plus a zero point, as saturated bytes of T in the
// order of pack_low_bytes; NaN becomes the lowest code. The saturating packs of x86 clamp them.
// Values must be below 2^31: the conversion turns what is above, like NaN, into the smallest
// integer.
template <class T>
SDX_INLINE Vec<T> round_to_bytes(const f32v* y, float zero_point) {
#if defined(SDX_WHOLE)
  const auto zero = SDX_BYTES(set1_epi16)(int16_t(zero_point));
  const auto whole = [&](int i) {
#if defined(__AVX512F__)
    return _mm512_maskz_cvtps_epi32(__mmask16(-1), (__m512)y[i]);
#else
    return SDX_BYTES(cvtps_epi32)(y[i]);
#endif
  };
  const auto first = SDX_BYTES(adds_epi16)(SDX_BYTES(packs_epi32)(whole(0), whole(1)), zero);
  const auto second = SDX_BYTES(adds_epi16)(SDX_BYTES(packs_epi32)(whole(2), whole(3)), zero);
  if constexpr (T(-1) < T(0))
    return (Vec<T>)SDX_BYTES(packs_epi16)(first, second);
  else
    return (Vec<T>)SDX_BYTES(packus_epi16)(first, second);
#else
  constexpr float kLowest = T(-1) < T(0) ? -128.0f : 0.0f;
  const f32v low = splat(kLowest - zero_point), high = low + 255.0f;
  i32v clamped[4];
  for (int i = 0; i < 4; ++i)
    clamped[i] = round_bits(clamp(y[i], low, high)) + splat(int32_t(zero_point));
  return (Vec<T>)pack_low_bytes(clamped);
#endif
}

// Quantization to bytes of T: values are rounded half to even and saturated to [low, high], then
// the zero point is added; NaN becomes `low`.
template <class T>
struct Saturation {
  float low, high, zero;
};

template <class T>
SDX_INLINE u8v saturate_to_bytes(const f32v* y, const Saturation<T>& to) {
  f32v clamped[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    clamped[i] = splat(to.high) < y[i] ? splat(to.high) : y[i];  // NaN stays NaN
  const Vec<T> bytes = round_to_bytes<T>(clamped, to.zero), low = splat(T(to.low + to.zero));
  return (u8v)(bytes > low ? bytes : low);
}

// Packing works within 16-byte lanes and so interleaves the four vectors in groups of 4 bytes; this
// permutation makes the bytes of each contiguous again.
SDX_INLINE u8v deinterleave_rows(u8v v) {
  constexpr int kParts = SDX_VEC_BYTES / 16;
  const auto words = (i32v)v;
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) {
    return (u8v)__builtin_shufflevector(words, words, (kLane % kParts * 4 + kLane / kParts)...);
  }(std::make_integer_sequence<int, kLanes>());
}

// kLanes bytes of each of four rows, `stride` bytes apart: 32-bit lanes with byte i of all rows.
SDX_INLINE i32v interleave_rows(const uint8_t* from, int64_t stride) {
#if defined(__AVX512BW__)
  // 16 bytes of each row in a 128-bit lane; their 32-bit parts are exchanged, then bytes within.
  const auto rows = (i32v)load_lanes<uint8_t, 64>(reinterpret_cast<const std::byte*>(from), stride);
  const auto exchanged =
      __builtin_shufflevector(rows, rows, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
  return (i32v)_mm512_shuffle_epi8((__m512i)exchanged, bytes);
#else
  using Pairs = Wide<uint16_t, 16>;
  Wide<uint8_t, 16> rows[4] = {};
  for (int r = 0; r < 4; ++r) memcpy(&rows[r], from + r * stride, kLanes);
  const auto paired = [](auto a, auto b) {
    return (Pairs)__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                          23);
  };
  const Pairs ab = paired(rows[0], rows[1]), cd = paired(rows[2], rows[3]);
  const Pairs fours[2] = {__builtin_shufflevector(ab, cd, 0, 8, 1, 9, 2, 10, 3, 11),
                          __builtin_shufflevector(ab, cd, 4, 12, 5, 13, 6, 14, 7, 15)};
  i32v v;
  memcpy(&v, fours, sizeof v);
  return v;
#endif
}

#undef SDX_BYTES
#undef SDX_WHOLE

}  // namespace sdx::SDX_ISA
