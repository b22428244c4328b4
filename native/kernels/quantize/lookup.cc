// Table lookup: any elementwise function of an 8-bit tensor is a table of 256 bytes, indexed by the
// unsigned value of the input byte. Quantized activations (sigmoid, tanh, ...) become such tables.
#include <cstring>

#include "kernels/quantize/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kChunk = 16384;  // bytes of an item

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
  plan.add(look_up, (*count + kChunk - 1) / kChunk, kChunk / 2);
  return {};
}

}  // namespace sdx::SDX_ISA
