// MurmurHash3 (x86, 32 bits) of strings, or of the bytes of numbers.
#include "kernels/text/kernels.h"

namespace sdx::SDX_ISA::texting {
namespace {

SDX_INLINE uint32_t rotated_left(uint32_t x, int by) { return x << by | x >> (32 - by); }

SDX_INLINE uint32_t scrambled(uint32_t block) {
  return rotated_left(block * 0xcc9e2d51u, 15) * 0x1b873593u;
}

uint32_t murmur(const char* data, int64_t size, uint32_t seed) {
  uint32_t h = seed, block;
  int64_t i = 0;
  for (; i + 4 <= size; i += 4) {
    memcpy(&block, data + i, 4);
    h = rotated_left(h ^ scrambled(block), 13) * 5 + 0xe6546b64u;
  }
  block = 0;
  for (int shift = 0; i < size; ++i, shift += 8) block |= uint32_t(uint8_t(data[i])) << shift;
  h ^= scrambled(block);
  // The finalizer: avalanche, so that every input bit affects every output bit.
  h ^= uint32_t(size);
  h = (h ^ h >> 16) * 0x85ebca6bu;
  h = (h ^ h >> 13) * 0xc2b2ae35u;
  return h ^ h >> 16;
}

struct HashArgs {
  int64_t count, size_bytes;
  uint32_t seed;
  bool is_text;
};

Status hash_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const HashArgs*>(args);
  each(a.count, begin, end, [&](int64_t i) {
    Text bytes{input<char>(data, 0) + i * a.size_bytes, a.size_bytes};
    if (a.is_text) bytes = input<Text>(data, 0)[i];
    output<uint32_t>(data)[i] = murmur(bytes.data, bytes.size, a.seed);
  });
  return {};
}

}  // namespace

// ints: the seed.
Status hash(const Call& call, Plan& plan) {
  auto* a = plan.make<HashArgs>();
  const View& x = call.in[0];
  *a = {x.count(), size_of(x.dtype), uint32_t(call.ints[0]), x.dtype == DType::string};
  plan.args = a;
  plan.add(hash_items, items_of(a->count), kPerItem * 10);
  return {};
}

}  // namespace sdx::SDX_ISA::texting
