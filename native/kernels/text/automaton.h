// Regular expressions as tables: from a state, the class of a byte leads to the next state.
#pragma once

#include "base/inline.h"
#include "base/text.h"

namespace sdx::SDX_ISA {

// Read from numbers: states, classes, the class of each byte, whether each state is a match, then
// the next states. State 0 leads nowhere, 1 is the first.
struct Automaton {
  int64_t n_classes;
  const int32_t *class_of, *is_match, *next;

  SDX_INLINE explicit Automaton(const int32_t* numbers)
      : n_classes(numbers[1]),
        class_of(numbers + 2),
        is_match(class_of + 256),
        next(is_match + numbers[0]) {}

  SDX_INLINE int32_t step(int32_t state, char byte) const {
    return next[state * n_classes + class_of[uint8_t(byte)]];
  }

  SDX_INLINE bool matches(const Text& text) const {
    int32_t state = 1;
    for (int64_t i = 0; i < text.size && state != 0; ++i) state = step(state, text.data[i]);
    return is_match[state] != 0;
  }

  // Where the longest match that begins at `from` ends; -1 where there is none.
  SDX_INLINE int64_t longest(const Text& text, int64_t from) const {
    int64_t end = -1;
    int32_t state = 1;
    for (int64_t i = from; i < text.size; ++i) {
      state = step(state, text.data[i]);
      if (state == 0) break;
      if (is_match[state] != 0) end = i + 1;
    }
    return end;
  }

  // The first match at `from` or behind: [begin, end). False where there is none.
  SDX_INLINE bool search(const Text& text, int64_t from, int64_t& begin, int64_t& end) const {
    for (begin = from; begin < text.size; ++begin) {
      end = longest(text, begin);
      if (end >= 0) return true;
    }
    return false;
  }
};

}  // namespace sdx::SDX_ISA
