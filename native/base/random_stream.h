// The random numbers of nodes without a seed: streams of one key, numbered in the order of draws.
#pragma once

#include <cstdint>

namespace sdx {

// What a generator by counters (kernels/random/philox.h) makes a sequence of numbers of.
struct RandomStream {
  uint64_t key = 0;
  uint64_t run = 0;
};

// The next stream of the process; threads get different ones.
RandomStream next_random_stream();

// The stream that will be next. The key of a process is random until it is set.
RandomStream random_stream();
void set_random_stream(RandomStream next);

}  // namespace sdx
