// Packed forests: branches and leaves of a tree one after the other, siblings side by side.
// A step goes `hop` nodes on, and one more where the answer is yes; a leaf leads to itself, since
// its threshold is NaN, whose bits hold the number of the leaf.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

// float thresholds, features below 2^11, hops of 20 bits, leaves below 2^22.
struct Compact {
  using Number = float;

  float threshold;
  uint32_t word;

  SDX_INLINE uint32_t feature() const { return word & 0x7ff; }
  SDX_INLINE bool is_nan_yes() const { return (word >> 11 & 1) != 0; }
  SDX_INLINE int32_t hop() const { return int32_t(word) >> 12; }
  SDX_INLINE uint32_t leaf() const {
    uint32_t bits;
    memcpy(&bits, &threshold, sizeof bits);
    return bits & 0x3fffff;
  }
};

// Every other forest.
struct Wide {
  using Number = double;

  double threshold;
  uint32_t word;
  int32_t hops;

  SDX_INLINE uint32_t feature() const { return word & 0x7fffffff; }
  SDX_INLINE bool is_nan_yes() const { return word >> 31 != 0; }
  SDX_INLINE int32_t hop() const { return hops; }
  SDX_INLINE uint32_t leaf() const {
    uint64_t bits;
    memcpy(&bits, &threshold, sizeof bits);
    return uint32_t(bits);
  }
};

// Where a tree begins, and how many steps lead to all of its leaves or to most of them.
struct Root {
  int32_t start, most, all;
};

constexpr int kWalks = 16;  // at once: their loads overlap

template <bool kAsksNan, class Node>
SDX_INLINE const Node* step(const Node* at, const typename Node::Number* x, int64_t stride) {
  const auto value = x[at->feature() * stride];
  bool is_yes = value <= at->threshold;
  if constexpr (kAsksNan) is_yes |= (value != value) & at->is_nan_yes();
  return at + at->hop() + is_yes;
}

// Leads walks to their leaves. Features of walk w are x[w * kWalkStep + feature * kStride].
template <bool kAsksNan, int kWalkStep, int kStride, class Node>
SDX_INLINE void walk(const Node* (&at)[kWalks], const typename Node::Number* x, int most, int all) {
  for (int s = 0; s < most; ++s)
    for (int w = 0; w < kWalks; ++w) at[w] = step<kAsksNan>(at[w], x + w * kWalkStep, kStride);
  for (int s = most; s < all; ++s) {
    uintptr_t moved = 0;
    for (int w = 0; w < kWalks; ++w) {
      const Node* next = step<kAsksNan>(at[w], x + w * kWalkStep, kStride);
      moved |= uintptr_t(next) ^ uintptr_t(at[w]);
      at[w] = next;
    }
    if (moved == 0) return;
  }
}

}  // namespace sdx::SDX_ISA
