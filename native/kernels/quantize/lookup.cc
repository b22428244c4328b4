// Table lookup: any elementwise function of an 8-bit tensor is a table of 256 bytes, indexed by the
// unsigned value of the input byte. Quantized activations (sigmoid, tanh, ...) become such tables.
#include <cstring>

#if defined(__AVX512BW__)
#include <immintrin.h>
#endif

#include "kernels/quantize/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kChunk = 16384;  // bytes of an item

#if defined(__AVX512BW__)
// 64 bytes at a time, where the CPU permutes bytes of two registers (AVX512_VBMI): half of the
// table for each value of a byte's highest bit.
__attribute__((target("avx512vbmi"))) Status permute(const void* args, const Data& data,
                                                     int64_t begin, int64_t end) {
  const int64_t count = *static_cast<const int64_t*>(args);
  const auto* table = static_cast<const uint8_t*>(data.in[1]);
  __m512i parts[4];
  for (int i = 0; i < 4; ++i) parts[i] = _mm512_loadu_si512(table + 64 * i);
  const int64_t last = end * kChunk < count ? end * kChunk : count;
  const auto* x = static_cast<const uint8_t*>(data.in[0]);
  auto* y = static_cast<uint8_t*>(data.out[0]);
  for (int64_t i = begin * kChunk; i < last; i += 64) {
    const __mmask64 mask = last - i >= 64 ? ~__mmask64(0) : (__mmask64(1) << (last - i)) - 1;
    const __m512i bytes = _mm512_maskz_loadu_epi8(mask, x + i);
    const __m512i low = _mm512_permutex2var_epi8(parts[0], bytes, parts[1]);
    const __m512i high = _mm512_permutex2var_epi8(parts[2], bytes, parts[3]);
    const __m512i found = _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high);
    if (last - i >= 64)
      _mm512_storeu_si512(y + i, found);
    else
      _mm512_mask_storeu_epi8(y + i, mask, found);
  }
  return {};
}
#endif

Status look_up(const void* args, const Data& data, int64_t begin, int64_t end) {
  const int64_t count = *static_cast<const int64_t*>(args);
  uint8_t table[256];  // a copy: stores to y cannot alias it, so it need not be reloaded
  memcpy(table, data.in[1], sizeof table);
  const int64_t last = end * kChunk < count ? end * kChunk : count;
  const uint8_t* x = input<uint8_t>(data, 0);
  uint8_t* y = output<uint8_t>(data);
  int64_t i = begin * kChunk;
  // Eight bytes per load and store: the load ports are the bottleneck, and lookups need them.
  for (; i + 8 <= last; i += 8) {
    uint64_t in, out = 0;
    memcpy(&in, x + i, 8);
#pragma GCC unroll 8
    for (int j = 0; j < 64; j += 8) out |= uint64_t(table[in >> j & 255]) << j;
    memcpy(y + i, &out, 8);
  }
  for (; i < last; ++i) y[i] = table[x[i]];
  return {};
}

}  // namespace

Status lookup(const Call& call, Plan& plan) {
  auto* count = plan.make<int64_t>();
  *count = call.in[0].count();
  plan.args = count;
  const int64_t items = (*count + kChunk - 1) / kChunk;
#if defined(__AVX512BW__)
  if (__builtin_cpu_supports("avx512vbmi")) {
    plan.add(permute, items, kChunk / 16);
    return {};
  }
#endif
  plan.add(look_up, items, kChunk / 2);
  return {};
}

}  // namespace sdx::SDX_ISA
