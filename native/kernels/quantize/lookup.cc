// Bytes by a table of 256, whose entry numbers are the bytes without their sign.
#include <cstring>

#include "kernels/quantize/list.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kPart = 16384;  // bytes of an item

Status look_up(const void* args, const Data& data, int64_t begin, int64_t end) {
  const int64_t count = *static_cast<const int64_t*>(args);
  uint8_t table[256];  // which what is written cannot alias
  memcpy(table, data.in[1], sizeof table);
  const int64_t last = end * kPart < count ? end * kPart : count;
  const uint8_t* x = input<uint8_t>(data, 0);
  uint8_t* y = output<uint8_t>(data);
  int64_t i = begin * kPart;
  for (; i + 8 <= last; i += 8) {  // a word at a time: loads and stores are what it waits for
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
  plan.add(look_up, (*count + kPart - 1) / kPart, kPart / 2);
  return {};
}

}  // namespace sdx::SDX_ISA
