// What of a segment's memory does not depend on sizes: which steps need which others, and whose
// bytes they touch.
#pragma once

#include <vector>

#include "exec/segment.h"

namespace sdx {

struct Wiring {
  std::vector<int32_t> bases;  // by value: the value in whose bytes it lies
  std::vector<int32_t> roots;  // the same of arena values; -1: in others' bytes
  std::vector<std::vector<int32_t>> preds, touches;  // by step: steps, arena values

  explicit Wiring(const SegmentSpec& spec);
};

}  // namespace sdx
