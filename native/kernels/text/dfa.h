// Regular expressions as deterministic finite automata over UTF-8 bytes: one table lookup per byte,
// no backtracking. Bytes that no pattern distinguishes share a class, which keeps the tables small.
// ops/text/automaton.py compiles patterns into these tables.
#pragma once

#include "base/inline.h"
#include "base/text.h"

namespace sdx::SDX_ISA {

// The tables in one int32 array: number of states, number of classes, the class of each byte,
// whether each state accepts, then next[state][class]. State 0 is the dead state, 1 the start
// state.
struct Dfa {
  int64_t n_classes;
  const int32_t *class_of, *is_match, *next;

  SDX_INLINE explicit Dfa(const int32_t* numbers)
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

  // The end of the longest match that begins at `from`; -1 if there is none. Matches are not empty.
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

  // The leftmost longest match [begin, end) at or after `from`; false if there is none.
  SDX_INLINE bool search(const Text& text, int64_t from, int64_t& begin, int64_t& end) const {
    for (begin = from; begin < text.size; ++begin) {
      end = longest(text, begin);
      if (end >= 0) return true;
    }
    return false;
  }
};

}  // namespace sdx::SDX_ISA
