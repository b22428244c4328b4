// Finding strings among others: a table of hashes that is made once and read by any thread.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/inline.h"
#include "base/text.h"

namespace sdx {

SDX_INLINE uint64_t mix_hash(uint64_t h) {
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93u;
  return h ^ (h >> 32);
}

// Whoever hashes strings of strangers gives a seed that they cannot know.
SDX_INLINE uint64_t hash_of(const Text& text, uint64_t seed = 0) {
  uint64_t h = seed ^ uint64_t(text.size) * 0x9e3779b97f4a7c15u, word;
  int64_t i = 0;
  for (; i + 8 <= text.size; i += 8) {
    memcpy(&word, text.data + i, 8);
    h = mix_hash(h ^ word);
  }
  word = 0;
  for (int shift = 0; i < text.size; ++i, shift += 8)
    word |= uint64_t(uint8_t(text.data[i])) << shift;
  return mix_hash(h ^ word);
}

SDX_INLINE bool is_same(const Text& a, const Text& b) {
  return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, size_t(a.size)) == 0);
}

// Slots in a power of two, at most half of them taken: the upper half of a key's hash, and its
// number plus one. 0 is free.
struct TextIndex {
  const uint64_t* slots;
  int64_t n_slots;
  const Text* keys;

  // The number of a key, or -1.
  SDX_INLINE int64_t find(const Text& text) const {
    const uint64_t h = hash_of(text), mask = uint64_t(n_slots) - 1;
    for (uint64_t at = h & mask;; at = (at + 1) & mask) {
      const uint64_t slot = slots[at];
      if (slot == 0) return -1;
      const auto number = int64_t(uint32_t(slot)) - 1;
      if (slot >> 32 == h >> 32 && is_same(keys[number], text)) return number;
    }
  }
};

}  // namespace sdx
