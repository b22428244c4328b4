// Weights as panels of floats.
#include "kernels/nbits/product.h"

namespace sdx::SDX_ISA::nbits {
namespace {

// Any form, one weight at a time.
void unpack_plain(const Weights& w, const Data& data, int64_t depth, int64_t depths, int64_t column,
                  int64_t width, float* to, std::byte*) {
  memset(to, 0, size_t(depths * kPanel) * sizeof(float));
  for (int64_t j = 0; j < width; ++j)
    for (int64_t i = 0; i < depths; ++i)
      to[i * kPanel + j] = weight_of(w, data, depth + i, column + j);
}

}  // namespace

UnpackFn find_unpack(const Weights&) { return unpack_plain; }

}  // namespace sdx::SDX_ISA::nbits
