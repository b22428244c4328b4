// Pad in its four modes; negative amounts cut.
#include "kernels/move/rows.h"
#include "kernels/move/runs.h"
#include "kernels/move/words.h"

namespace sdx::SDX_ISA::moving {
namespace {

enum Mode : int64_t { kConstant, kReflect, kEdge, kWrap };

// One axis: output place i shows input place `first + fold(i - before)`.
struct Side {
  int64_t out;     // places of the output
  int64_t before;  // of them in front of the input's
  int64_t first;   // place of the input that is shown first
  int64_t kept;    // places of the input that are shown
  int64_t stride;  // bytes, in the input
};

struct PadArgs {
  Mode mode;
  int rank;  // axes up to the last padded one
  Side sides[kMaxRank];
  int64_t unit;  // bytes of what lies behind the last padded axis
  int64_t size;
  bool has_value;
};

constexpr int64_t kNowhere = -1;

SDX_INLINE int64_t modulo(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return rest < 0 ? rest + b : rest;
}

int64_t source(const Side& s, Mode mode, int64_t i) {
  const int64_t j = i - s.before;
  if (j >= 0 && j < s.kept) return s.first + j;
  switch (mode) {
    case kConstant: return kNowhere;
    case kEdge: return s.first + (j < 0 ? 0 : s.kept - 1);
    case kWrap: return s.first + modulo(j, s.kept);
    default: break;
  }
  if (s.kept == 1) return s.first;
  const int64_t period = 2 * (s.kept - 1), within = modulo(j, period);
  return s.first + (within < s.kept ? within : period - within);
}

// A padding value of any size, repeated over n bytes.
void fill_bytes(std::byte* to, const void* value, int64_t size, int64_t n) {
  visit_word(size,
             [&]<class T>() { fill_words<T>(to, static_cast<const std::byte*>(value), n / size); });
}

void pad_row(const PadArgs& a, const std::byte* from, std::byte* to, const void* value) {
  const Side& s = a.sides[a.rank - 1];
  auto border = [&](int64_t begin, int64_t end) {
    if (a.mode == kConstant)
      return fill_bytes(to + begin * a.unit, value, a.size, (end - begin) * a.unit);
    for (int64_t i = begin; i < end; ++i)
      copy_bytes(to + i * a.unit, from + source(s, a.mode, i) * a.unit, a.unit);
  };
  const int64_t inner = s.before < s.out ? s.before : s.out;
  const int64_t behind = s.before + s.kept < s.out ? s.before + s.kept : s.out;
  border(0, inner);
  if (behind > inner)
    copy_bytes(to + inner * a.unit, from + s.first * a.unit, (behind - inner) * a.unit);
  border(behind, s.out);
}

// Rows along the last padded axis.
Status pad_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PadArgs*>(args);
  const Word16 zero = 0;
  const void* value = a.has_value ? data.in[1] : &zero;
  const int64_t row_bytes = a.sides[a.rank - 1].out * a.unit;
  for (int64_t row = begin; row < end; ++row) {
    const std::byte* from = input<std::byte>(data, 0);
    std::byte* to = output<std::byte>(data) + row * row_bytes;
    int64_t rest = row;
    bool is_outside = false;
    for (int i = a.rank - 2; i >= 0; --i) {
      const int64_t place = source(a.sides[i], a.mode, rest % a.sides[i].out);
      rest /= a.sides[i].out;
      is_outside |= place == kNowhere;
      from += place * a.sides[i].stride;
    }
    if (is_outside)
      fill_bytes(to, value, a.size, row_bytes);
    else
      pad_row(a, from, to, value);
  }
  return {};
}

}  // namespace

// ints: the mode, and for each axis how many places come in front (less than 0: are cut).
Status pad(const Call& call, Plan& plan) {
  const View &in = call.in[0], &out = call.out[0];
  auto* a = plan.make<PadArgs>();
  a->mode = Mode(call.ints[0]);
  a->size = size_of(in.dtype);
  a->has_value = is_given(call, 1);
  a->rank = 1;
  for (int i = 0; i < in.rank; ++i) {
    const int64_t before = call.ints[1 + i], after = out.dims[i] - in.dims[i] - before;
    Side& s = a->sides[i];
    s.out = out.dims[i];
    s.before = before > 0 ? before : 0;
    s.first = before < 0 ? -before : 0;
    s.kept = in.dims[i] + (before < 0 ? before : 0) + (after < 0 ? after : 0);
    if (s.kept < 0) s.kept = 0;
    s.stride = in.count(i + 1, in.rank) * a->size;
    if (before != 0 || after != 0) a->rank = i + 1;
  }
  if (in.rank == 0) a->sides[0] = {1, 0, 0, 1, a->size};
  a->unit = in.rank == 0 ? a->size : in.count(a->rank, in.rank) * a->size;
  plan.args = a;
  int64_t rows = out.count() == 0 ? 0 : 1;
  for (int i = 0; i < a->rank - 1; ++i) rows *= a->sides[i].out;
  plan.add(pad_rows, rows, a->sides[a->rank - 1].out * a->unit / 16 + 4);
  return {};
}

}  // namespace sdx::SDX_ISA::moving
