// Counter-based random numbers, Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as
// 1, 2, 3, 2011): words depend on their position, a key and the number of a run alone, so any split
// over threads gives the same numbers.
#pragma once

#include "base/random_stream.h"
#include "kernels/kernel.h"
#include "simd/multiply.h"

namespace sdx::SDX_ISA {

constexpr int kCounters = 16;          // of a batch, whose rounds the compiler runs as vectors
constexpr int kWords = 4 * kCounters;  // of a batch
constexpr int kRounds = 10;

// Draws the four words of kCounters consecutive counters, from `first` on.
SDX_INLINE void draw_words(uint64_t first, RandomStream of, uint32_t (*words)[kCounters]) {
  // Lanes of 64 bits, of which the low 32 are the words.
  constexpr int lanes = kLanesOf<uint64_t>;
  typedef uint32_t Narrow __attribute__((vector_size(lanes * sizeof(uint32_t))));
  constexpr uint64_t kNumbers[] = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int i = 0; i < kCounters; i += lanes) {
    Vec<uint64_t> a = load(kNumbers) + (first + uint64_t(i)), b = a >> 32, c = splat(of.run),
                  d = c >> 32;
    uint32_t key0 = uint32_t(of.key), key1 = uint32_t(of.key >> 32);
    for (int round = 0; round < kRounds; ++round) {
      const Vec<uint64_t> even = multiply_low(a, 0xD2511F53u), odd = multiply_low(c, 0xCD9E8D57u);
      a = (odd >> 32) ^ b ^ key0, b = odd;
      c = (even >> 32) ^ d ^ key1, d = even;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    const Vec<uint64_t> drawn[] = {a, b, c, d};
    for (int w = 0; w < 4; ++w) {
      const Narrow narrow = __builtin_convertvector(drawn[w], Narrow);
      memcpy(words[w] + i, &narrow, sizeof narrow);
    }
  }
}

// Where a node's stream comes from, by its first integers and its first input.
struct StreamSource {
  bool is_shared = false;  // the next one of the process, which a phase of its own draws
  RandomStream seeded;
  int64_t run = -1;  // where in the input the number of the run is, or -1

  // `ints`: whether the stream is shared, the seed, and `run`.
  SDX_INLINE explicit StreamSource(const Call& call)
      : is_shared(call.ints[0] != 0), seeded{uint64_t(call.ints[1]), 0}, run(call.ints[2]) {}
  SDX_INLINE StreamSource() = default;

  // Scratch memory of a plan begins with a shared stream.
  SDX_INLINE RandomStream stream(const Data& data) const {
    if (is_shared) return *reinterpret_cast<const RandomStream*>(data.scratch);
    return {seeded.key, run < 0 ? 0 : uint64_t(input<double>(data, 0)[run])};
  }
};

constexpr int64_t kStreamBytes = 64;  // of scratch memory, before what else a kernel needs

// Adds the phase that draws a shared stream. Arguments of kernels begin with their StreamSource.
void add_stream(const StreamSource& source, Plan& plan);

}  // namespace sdx::SDX_ISA
