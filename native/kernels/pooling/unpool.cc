// MaxUnpool: scatters elements into zeros, at their indices in the whole output.
#include <cstring>

#include "kernels/move/untyped.h"
#include "kernels/pooling/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kChunk = 32 << 10;  // bytes that an item clears

struct UnpoolArgs {
  int64_t n, out_n, element_bytes;
};

// Items: chunks of the output.
Status clear(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const UnpoolArgs*>(args);
  const int64_t bytes = a.out_n * a.element_bytes;
  const int64_t last = end * kChunk < bytes ? end * kChunk : bytes;
  memset(output<std::byte>(data) + begin * kChunk, 0, size_t(last - begin * kChunk));
  return {};
}

// One item: of equal indices the last element wins, whatever the number of threads.
template <class T>
Status scatter(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const UnpoolArgs*>(args);
  const auto* x = input<Unaligned<T>>(data, 0);
  const auto* indices = input<Unaligned<int64_t>>(data, 1);
  auto* y = output<Unaligned<T>>(data);
  for (int64_t i = 0; i < a.n; ++i) {
    const int64_t at = indices[i];
    if (uint64_t(at) >= uint64_t(a.out_n))
      return Status::fail("index %ld at position %ld is outside [0, %ld)", long(at), long(i),
                          long(a.out_n));
    y[at] = x[i];
  }
  return {};
}

}  // namespace

Status max_unpool(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  auto* args = plan.make<UnpoolArgs>();
  *args = {x.count(), y.count(), int64_t(size_of(x.dtype))};
  plan.args = args;
  plan.add(clear, (args->out_n * args->element_bytes + kChunk - 1) / kChunk, kChunk / 16);
  visit_element_size(args->element_bytes,
                     [&]<class T>() { plan.add(scatter<T>, args->n > 0 ? 1 : 0, args->n); });
  return {};
}

}  // namespace sdx::SDX_ISA
