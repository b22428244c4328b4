// Draws from the Mersenne Twister mt19937 of torch's CPU generators, many words at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sdx {

// Draws n booleans, each true with probability p in [0, 1], as `bernoulli_(p)` of torch does where
// it draws element by element, and advances `state` as that does. `state` is what `get_state` of a
// torch generator on the CPU returns. Throws std::invalid_argument if it cannot be that.
void draw_bernoulli(uint8_t* state, size_t state_bytes, double p, uint8_t* out, size_t n);

}  // namespace sdx
