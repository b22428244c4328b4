// Unpacking of n-bit codes: unsigned integers of 2, 4 or 8 bits, packed low bits first, as floats
// and as bytes. `sign_flip` is the XOR mask of a byte that converts two's complement codes to
// unsigned.
#pragma once

#include "simd/narrow.h"

namespace sdx::SDX_ISA {

#if defined(__AVX512F__)
// Codes of up to 4 bits are looked up in one vector register (VPERMPS), which masks, converts to
// float and flips the sign bit in a single instruction.
template <int bits>
constexpr bool kUsesLookup = bits <= 4;
#else
template <int bits>
constexpr bool kUsesLookup = false;
#endif

// The float value of each code.
template <int bits>
SDX_INLINE f32v code_table(uint8_t sign_flip) {
  f32v table;
  for (int i = 0; i < kLanes; ++i) table[i] = float((i ^ sign_flip) & ((1 << bits) - 1));
  return table;
}

// Field i of every 32-bit lane, as float.
template <int bits>
SDX_INLINE f32v field_float(u32v v, int i, uint8_t sign_flip, f32v table) {
  const u32v moved = v >> (bits * i);
#if defined(__AVX512F__)
  if constexpr (kUsesLookup<bits>)  // the instruction uses the low 4 bits of an index
    return (f32v)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)moved, (__m512)table);
#endif
  (void)table;
  constexpr uint32_t kMask = (1u << bits) - 1;
  return __builtin_convertvector((i32v)((moved & kMask) ^ (sign_flip & kMask)), f32v);
}

// Field i of every byte, as bytes.
template <int bits>
SDX_INLINE i32v field_bytes(u32v v, int i) {
  constexpr uint32_t kMask = ((1u << bits) - 1) * 0x01010101u;
  if constexpr (bits == 8) return (i32v)v;
  return (i32v)((v >> (bits * i)) & kMask);
}

template <int bits>
SDX_INLINE size_t code_bytes(Full) {
  return (kLanes * bits + 7) / 8;
}
template <int bits>
SDX_INLINE size_t code_bytes(Part k) {
  return size_t(k.n * bits + 7) / 8;
}

// The next kLanes codes in order; lanes past `lanes` are arbitrary.
template <int bits, class L>
SDX_INLINE i32v load_codes(const uint8_t* p, uint8_t sign_flip, L lanes) {
  if constexpr (bits == 8) return load_i32(p, lanes) ^ int32_t(sign_flip);
  uint64_t word = 0;
  memcpy(&word, p, code_bytes<bits>(lanes));
  word ^= sign_flip * 0x0101010101010101u;
  constexpr int kPerWord = 32 / bits;
  i32v index, shifts;
  for (int i = 0; i < kLanes; ++i) index[i] = i, shifts[i] = i % kPerWord * bits;
  u32v v = splat(uint32_t(word));
  if constexpr (kLanes > kPerWord) v = index < kPerWord ? v : splat(uint32_t(word >> 32));
  return (i32v)((v >> (u32v)shifts) & uint32_t((1 << bits) - 1));
}

// The same as floats, whole vectors only, in an order that takes fewer instructions; unshuffle()
// restores it.
template <int bits>
SDX_INLINE f32v load_codes_shuffled(const uint8_t* p, uint8_t sign_flip, f32v table) {
#if defined(__AVX512F__)
  if constexpr (bits == 4) {
    int64_t word;
    memcpy(&word, p, sizeof word);
    const __m512i all = _mm512_set1_epi64(word);
    const __m512i shifts =
        _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
    const __m512i moved = _mm512_maskz_srlv_epi32(0xffff, all, shifts);
    return (f32v)_mm512_maskz_permutexvar_ps(0xffff, moved, (__m512)table);
  }
  if constexpr (bits == 2) {
    int32_t word;
    memcpy(&word, p, sizeof word);
    const __m512i shifts =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i moved = _mm512_maskz_srlv_epi32(0xffff, _mm512_set1_epi32(word), shifts);
    return (f32v)_mm512_maskz_permutexvar_ps(0xffff, moved, (__m512)table);
  }
#endif
  (void)table;
  return __builtin_convertvector(load_codes<bits>(p, sign_flip, Full{}), f32v);
}
template <int bits>
SDX_INLINE f32v unshuffle(f32v v) {
#if defined(__AVX512F__)
  if constexpr (bits == 4)
    return permute(v, i32v{0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15});
#endif
  return v;
}

}  // namespace sdx::SDX_ISA
