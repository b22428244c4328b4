#include "base/random_stream.h"

#include <atomic>
#include <random>

namespace sdx {
namespace {

struct Shared {
  std::atomic<uint64_t> key, run{0};

  Shared() {
    std::random_device entropy;
    key = uint64_t(entropy()) << 32 | entropy();
  }
};

Shared& shared() {
  static Shared streams;
  return streams;
}

}  // namespace

RandomStream next_random_stream() { return {shared().key, shared().run.fetch_add(1)}; }

RandomStream random_stream() { return {shared().key, shared().run}; }

void set_random_stream(RandomStream next) {
  shared().key = next.key;
  shared().run = next.run;
}

}  // namespace sdx
