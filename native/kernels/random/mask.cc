// Dropout masks of training steps: four words for each four elements.
#include "kernels/random/kernels.h"
#include "kernels/random/philox.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kBlock = 4096;  // elements of an item, a multiple of a batch

struct MaskArgs {
  int64_t n = 0;
  uint64_t seed = 0;
  uint32_t threshold = 0;
  int64_t run = 0;  // index of the run counter in `settings`
};

// Items: blocks.
Status draw_mask(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const MaskArgs*>(args);
  const auto run = uint64_t(input<double>(data, 0)[a.run]);
  uint8_t* keep = output<uint8_t>(data);
  const int64_t to = end * kBlock < a.n ? end * kBlock : a.n;
  for (int64_t at = begin * kBlock; at < to; at += kWords) {
    uint32_t words[4][kCounters];
    draw_words(uint64_t(at / 4), {a.seed, run}, words);
    const int64_t n = to - at < kWords ? to - at : kWords;
    for (int64_t i = 0; i < n; ++i) keep[at + i] = words[i % 4][i / 4] >= a.threshold ? 1 : 0;
  }
  return {};
}

}  // namespace

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

}  // namespace sdx::SDX_ISA
