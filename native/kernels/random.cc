// Dropout masks by counter-based random numbers, Philox4x32-10: four numbers of 32 bits for each
// four elements, from their position, the number of the run and a seed.
#include "kernels/kernel.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kBlock = 4096;  // elements of an item, a multiple of a batch
constexpr int kRounds = 10;
constexpr int kCountersPerBatch = 16;  // counters whose rounds the compiler runs as vectors

struct MaskArgs {
  int64_t n = 0;
  uint64_t seed = 0;
  uint32_t threshold = 0;
  int64_t run = 0;  // index of the run counter in `settings`
};

// Draws the words of kCountersPerBatch consecutive counters, from `first` on.
SDX_INLINE void draw(uint64_t first, uint64_t run, uint64_t seed,
                     uint32_t (*words)[kCountersPerBatch]) {
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
  for (int i = 0; i < kCountersPerBatch; ++i) {
    words[0][i] = uint32_t(first + uint64_t(i));
    words[1][i] = uint32_t((first + uint64_t(i)) >> 32);
    words[2][i] = uint32_t(run);
    words[3][i] = uint32_t(run >> 32);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kCountersPerBatch; ++i) {
      const uint64_t a = uint64_t(words[0][i]) * 0xD2511F53u;
      const uint64_t b = uint64_t(words[2][i]) * 0xCD9E8D57u;
      words[0][i] = uint32_t(b >> 32) ^ words[1][i] ^ key0;
      words[2][i] = uint32_t(a >> 32) ^ words[3][i] ^ key1;
      words[1][i] = uint32_t(b);
      words[3][i] = uint32_t(a);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// Items: blocks.
Status draw_mask(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const MaskArgs*>(args);
  const auto run = uint64_t(input<double>(data, 0)[a.run]);
  uint8_t* keep = output<uint8_t>(data);
  const int64_t to = end * kBlock < a.n ? end * kBlock : a.n;
  for (int64_t at = begin * kBlock; at < to; at += 4 * kCountersPerBatch) {
    uint32_t words[4][kCountersPerBatch];
    draw(uint64_t(at / 4), run, a.seed, words);
    const int64_t n = to - at < 4 * kCountersPerBatch ? to - at : 4 * kCountersPerBatch;
    for (int64_t i = 0; i < n; ++i) keep[at + i] = words[i % 4][i / 4] >= a.threshold ? 1 : 0;
  }
  return {};
}

Status dropout_mask(const Call& call, Plan& plan) {
  auto* args = plan.make<MaskArgs>();
  args->n = call.out[0].count();
  args->seed = uint64_t(call.ints[0]);
  args->threshold = uint32_t(call.ints[1]);
  args->run = call.ints[2];
  plan.args = args;
  plan.add(draw_mask, (args->n + kBlock - 1) / kBlock, kBlock);
  return {};
}

constexpr Kernel kKernels[] = {{"dropout_mask", Accepts::any, dropout_mask}};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(random, kKernels)
