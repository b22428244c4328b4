// What of a segment's memory does not depend on sizes: which steps need which others, and whose
// bytes they touch.
#pragma once

#include <vector>

#include "exec/segment.h"

namespace sdx {

struct Wiring {
  std::vector<int32_t> roots;  // by value: the arena value in whose bytes it lies; -1: in others'
  std::vector<std::vector<int32_t>> preds, touches;  // by step: steps, arena values

  explicit Wiring(const SegmentSpec& spec);
};

}  // namespace sdx
