// Dropout in training mode: elements are dropped by comparing a word with the ratio.
#include "kernels/elements.h"
#include "kernels/random/kernels.h"
#include "kernels/random/philox.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kBlock = 32 * kWords;  // elements of an item

struct DropoutArgs {
  StreamSource source;
  int64_t n = 0;
  DType ratio = DType::none, mode = DType::none;  // none: not given
  bool has_mask = false;
};

// What the operands say, in scratch memory after the stream.
struct Decision {
  uint64_t threshold;  // of 32 bits, below which an element is dropped
  double scale;        // of what is kept: the expected value stays
};

Status decide(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const DropoutArgs*>(args);
  auto& decision = *reinterpret_cast<Decision*>(data.scratch + kStreamBytes);
  double ratio = 0.5;
  if (a.ratio != DType::none) {
    Status read = visit(a.ratio, Floats{}, [&]<class T>() -> Status {
      ratio = number<double>(*input<T>(data, 2));
      return {};
    });
    if (!read.ok()) return read;
  }
  if (!(ratio >= 0 && ratio <= 1))
    return Status::fail("the ratio of Dropout must be in [0, 1], got %g", ratio);
  const bool trains = a.mode != DType::none && *input<uint8_t>(data, 3) != 0;
  decision = {trains ? uint64_t(ratio * 0x1p32) : 0, trains && ratio < 1 ? 1 / (1 - ratio) : 1};
  return {};
}

// Items: blocks.
template <class T>
Status drop(const void* args, const Data& data, int64_t begin, int64_t end) {
  using C = Wide<T>;
  const auto& a = *static_cast<const DropoutArgs*>(args);
  const auto& decision = *reinterpret_cast<const Decision*>(data.scratch + kStreamBytes);
  const RandomStream stream = a.source.stream(data);
  const int64_t to = end * kBlock < a.n ? end * kBlock : a.n, from = begin * kBlock;
  const T* x = input<T>(data, 1);
  T* y = output<T>(data);
  uint8_t* mask = a.has_mask ? output<uint8_t>(data, 1) : nullptr;
  if (decision.threshold == 0) {
    if (x != y) memcpy(y + from, x + from, size_t(to - from) * sizeof(T));
    if (mask) memset(mask + from, 1, size_t(to - from));
    return {};
  }
  const C scale = C(decision.scale);
  for (int64_t at = from; at < to; at += kWords) {
    uint32_t words[4][kCounters];
    draw_words(uint64_t(at / 4), stream, words);
    const int64_t n = to - at < kWords ? to - at : kWords;
    C buffer[kWords], scaled[kWords];
    const C* numbers = read_elements(x + at, 1, n, buffer);
    uint8_t keep[kWords];
    for (int i = 0; i < kWords; ++i)
      keep[i] = words[i / kCounters][i % kCounters] >= decision.threshold;
    for (int64_t i = 0; i < n; ++i) scaled[i] = keep[i] ? numbers[i] * scale : C(0);
    if constexpr (std::is_same_v<T, C>)
      memcpy(y + at, scaled, size_t(n) * sizeof(T));
    else
      write_elements(y + at, scaled, n);
    if (mask) memcpy(mask + at, keep, size_t(n));
  }
  return {};
}

}  // namespace

Status dropout(const Call& call, Plan& plan) {
  auto* args = plan.make<DropoutArgs>();
  *args = {StreamSource(call), call.out[0].count(), call.in[2].dtype, call.in[3].dtype,
           call.n_out > 1};
  plan.args = args;
  add_stream(args->source, plan);
  plan.scratch_bytes += int64_t(sizeof(Decision));
  plan.add(decide, 1, 1);
  return visit(call.out[0].dtype, Floats{}, [&]<class T>() -> Status {
    plan.add(drop<T>, (args->n + kBlock - 1) / kBlock, kBlock);
    return {};
  });
}

}  // namespace sdx::SDX_ISA
