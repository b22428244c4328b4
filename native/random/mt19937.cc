#include "random/mt19937.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace sdx {
namespace {

constexpr int kWords = 624;
constexpr int kOffset = 397;  // the distance of the words that a twist combines

// The first bytes of a generator's state; cached normal numbers follow.
struct TorchState {
  uint64_t seed;
  int32_t left;  // unused words + 1
  int32_t is_seeded;
  uint64_t next;  // the first unused word, if there is one
  uint64_t words[kWords];
};
static_assert(sizeof(TorchState) == 24 + 8 * kWords);

uint32_t twisted(uint32_t far, uint32_t word, uint32_t next) {
  const uint32_t mixed = (word & 0x80000000u) | (next & 0x7fffffffu);
  return far ^ (mixed >> 1) ^ (-(next & 1) & 0x9908b0dfu);
}

// Replaces all words by the next ones. A loop reads no word less than 227 steps after writing it.
void twist(uint32_t* words) {
  constexpr int kBack = kWords - kOffset;
  for (int i = 0; i < kBack; ++i) words[i] = twisted(words[i + kOffset], words[i], words[i + 1]);
  for (int i = kBack; i < kWords - 1; ++i)
    words[i] = twisted(words[i - kBack], words[i], words[i + 1]);
  words[kWords - 1] = twisted(words[kOffset - 1], words[kWords - 1], words[0]);
}

uint32_t tempered(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

// Compares numbers of 53 bits, each the low 21 bits of a word and all bits of the next one, with a
// limit. Second words decide ties of the first ones only: about one number in two million.
void compare(const uint32_t* words, size_t n, uint64_t limit, uint8_t* out) {
  const auto high = int32_t(limit >> 32);
  uint32_t ties = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto first = int32_t(tempered(words[2 * i]) & 0x1fffffu);
    out[i] = first < high;
    ties |= first == high;
  }
  if (!ties) return;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t first = tempered(words[2 * i]) & 0x1fffffu;
    out[i] = (first << 32 | tempered(words[2 * i + 1])) < limit;
  }
}

TorchState read_state(const uint8_t* bytes, size_t size) {
  TorchState state;
  if (size < sizeof state) throw std::invalid_argument("the state of a generator is too short");
  std::memcpy(&state, bytes, sizeof state);
  const bool has_words = state.left > 1 && state.left <= kWords;
  if (!state.is_seeded ||
      (has_words ? state.next + uint64_t(state.left) != kWords + 1 : state.left != 1))
    throw std::invalid_argument("not the state of an mt19937 generator");
  return state;
}

}  // namespace

void draw_bernoulli(uint8_t* bytes, size_t state_bytes, double p, uint8_t* out, size_t n) {
  if (!(p >= 0 && p <= 1)) throw std::invalid_argument("p is outside [0, 1]");
  TorchState state = read_state(bytes, state_bytes);
  if (n == 0) return;
  // A number of 53 bits times 2^-53 is below p exactly if it is below this limit.
  const auto limit = uint64_t(std::ceil(std::ldexp(p, 53)));
  uint32_t buffer[1 + kWords];  // a word left over by the words before, and the words
  uint32_t* words = buffer + 1;
  std::copy(state.words, state.words + kWords, words);
  int at = kWords + 1 - state.left;
  while (n > 0) {
    if (kWords - at < 2) {
      buffer[0] = words[kWords - 1];
      twist(words);
      at -= kWords;
    }
    const size_t count = std::min(n, size_t(kWords - at) / 2);
    compare(words + at, count, limit, out);
    at += 2 * int(count);
    out += count;
    n -= count;
  }
  state.left = kWords + 1 - at;
  state.next = uint64_t(at);
  std::copy(words, words + kWords, state.words);
  std::memcpy(bytes, &state, sizeof state);
}

}  // namespace sdx
