// What of a segment's memory does not depend on sizes: the dependencies between steps, and which
// arena values each step touches. Computed once per segment.
#pragma once

#include <vector>

#include "exec/segment.h"

namespace sdx {

struct Dependencies {
  std::vector<int32_t> bases;  // by value: the value in whose bytes it is stored, through all views
  std::vector<int32_t> roots;  // the same, if that is an arena value; else -1
  // By step, sorted and unique: steps that write its inputs, and steps that read what it updates.
  std::vector<std::vector<int32_t>> preds;
  std::vector<std::vector<int32_t>> touches;  // by step: arena values read or written, likewise

  explicit Dependencies(const SegmentSpec& spec);
};

}  // namespace sdx
