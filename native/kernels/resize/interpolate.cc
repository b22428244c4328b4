// The loops of Resize. Interpolation is separable: an output row is first mixed from whole input
// rows over all axes before the last resized one (vectors along the row, no gathers), then
// interpolated along that axis. Nearest mode only copies, for elements of any type.
#include "kernels/move/copy_bytes.h"
#include "kernels/move/untyped.h"
#include "kernels/resize/resize.h"

namespace sdx::SDX_ISA {
namespace {

// Copies a finished row into an output with gaps.
SDX_INLINE void scatter_row(const ResizeArgs& a, const void* from, void* to) {
  copy_runs(static_cast<const std::byte*>(from), a.piece * a.size, static_cast<std::byte*>(to),
            a.piece_pitch * a.size, a.n_pieces, a.piece * a.size);
}

// Input rows, by number, and their weights.
struct WeightedRows {
  int n = 1;
  int64_t at[kMaxRows] = {0};
  float weight[kMaxRows] = {1};
};

// The input rows of an output row: the tensor product of the taps of all axes before the last.
void find_rows(const ResizeArgs& a, int64_t row, WeightedRows& rows) {
  rows.n = 1, rows.at[0] = 0, rows.weight[0] = 1;
  int64_t step = 1;
  for (int i = a.n_axes - 2; i >= 0; --i) {
    const Taps& taps = a.axes[i];
    const int64_t j = row % taps.out;
    row /= taps.out;
    // Each tap but the first appends a copy of the rows so far; tap 0 is last, since it overwrites
    // them in place.
    for (int t = taps.n - 1; t >= 0; --t)
      for (int r = 0; r < rows.n; ++r) {
        rows.at[t * rows.n + r] = rows.at[r] + taps.index[t * taps.out + j] * step;
        rows.weight[t * rows.n + r] = rows.weight[r] * taps.weight[t * taps.out + j];
      }
    rows.n *= taps.n;
    step *= taps.size;
  }
  for (int r = 0; r < rows.n; ++r) rows.at[r] += row * step;
}

// y = sum of weighted input rows; two rows (bilinear) have a loop of their own.
void mix_rows(const WeightedRows& rows, const float* x, int64_t n, float* y) {
  if (rows.n == 2) {
    const float *a = x + rows.at[0] * n, *b = x + rows.at[1] * n;
    const float v = rows.weight[0], w = rows.weight[1];
    vloop(n, [&](int64_t i, auto lanes) {
      store(y + i, load(a + i, lanes) * v + load(b + i, lanes) * w, lanes);
    });
    return;
  }
  vloop(n, [&](int64_t i, auto lanes) {
    f32v sum{};
    for (int r = 0; r < rows.n; ++r) sum += load(x + rows.at[r] * n + i, lanes) * rows.weight[r];
    store(y + i, sum, lanes);
  });
}

// Along a contiguous axis: a gather per tap.
template <int kTaps>
void mix_elements(const Taps& taps, const float* __restrict x, float* __restrict y) {
  for (int64_t j = 0; j < taps.out; ++j) {
    float sum = x[taps.index[j]] * taps.weight[j];
    for (int t = 1; t < kTaps; ++t)
      sum += x[taps.index[t * taps.out + j]] * taps.weight[t * taps.out + j];
    y[j] = sum;
  }
}

// Along an axis of runs of `inner` contiguous elements (channels-last), `pitch` apart in y: vectors
// along the run.
template <int kTaps>
void mix_runs(const Taps& taps, const float* x, int64_t inner, float* y, int64_t pitch) {
  for (int64_t j = 0; j < taps.out; ++j) {
    const float* from[kTaps];
    float weight[kTaps];
    for (int t = 0; t < kTaps; ++t) {
      from[t] = x + taps.index[t * taps.out + j] * inner;
      weight[t] = taps.weight[t * taps.out + j];
    }
    vloop(inner, [&](int64_t i, auto lanes) {
      f32v sum = load(from[0] + i, lanes) * weight[0];
      for (int t = 1; t < kTaps; ++t) sum += load(from[t] + i, lanes) * weight[t];
      store(y + j * pitch + i, sum, lanes);
    });
  }
}

// Any number of taps (antialiasing); on a contiguous axis one pass over the outputs per tap.
void mix_any(const Taps& taps, const float* __restrict x, int64_t inner, float* __restrict y,
             int64_t pitch) {
  if (pitch == 1) {
    for (int64_t j = 0; j < taps.out; ++j) y[j] = 0;
    for (int t = 0; t < taps.n; ++t) {
      const int32_t* index = taps.index + t * taps.out;
      const float* weight = taps.weight + t * taps.out;
      for (int64_t j = 0; j < taps.out; ++j) y[j] += x[index[j]] * weight[j];
    }
    return;
  }
  for (int64_t j = 0; j < taps.out; ++j)
    vloop(inner, [&](int64_t i, auto lanes) {
      f32v sum{};
      for (int t = 0; t < taps.n; ++t) {
        const float* from = x + taps.index[t * taps.out + j] * inner;
        sum += load(from + i, lanes) * taps.weight[t * taps.out + j];
      }
      store(y + j * pitch + i, sum, lanes);
    });
}

template <int kTaps>
void mix_axis(const Taps& taps, const float* x, int64_t inner, float* y, int64_t pitch) {
  if (pitch == 1)
    mix_elements<kTaps>(taps, x, y);
  else
    mix_runs<kTaps>(taps, x, inner, y, pitch);
}

// Overwrites the outputs of row number `row` that are outside the input with extrapolation_value.
void extrapolate(const ResizeArgs& a, int64_t row, std::byte* y) {
  const Taps& last = a.axes[a.n_axes - 1];
  bool is_outside = false;
  for (int i = a.n_axes - 2; i >= 0; row /= a.axes[i--].out)
    is_outside |= a.axes[i].outside[row % a.axes[i].out] != 0;
  for (int64_t j = 0; j < last.out; ++j)
    if (is_outside || last.outside[j])
      for (int64_t i = 0; i < a.inner; ++i)
        memcpy(y + (j * a.pitch + i) * a.size, &a.extrapolation_bits, size_t(a.size));
}

}  // namespace

Status interpolate_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const ResizeArgs& a = args_of(args, data);
  const Taps& last = a.axes[a.n_axes - 1];
  const int64_t n = last.size * a.inner;
  auto *mixed = reinterpret_cast<float*>(data.local), *scratch_row = mixed + n;
  WeightedRows rows;
  for (int64_t row = begin; row < end; ++row) {
    find_rows(a, row, rows);
    const float* x = input<float>(data, 0) + rows.at[0] * n;
    float* to = output<float>(data) + row * a.row_stride;
    float* y = a.n_pieces > 0 ? scratch_row : to;
    if (rows.n > 1) {
      mix_rows(rows, input<float>(data, 0), n, mixed);
      x = mixed;
    }
    if (last.n == 2)
      mix_axis<2>(last, x, a.inner, y, a.pitch);
    else if (last.n == 4)
      mix_axis<4>(last, x, a.inner, y, a.pitch);
    else if (last.n > 1)
      mix_any(last, x, a.inner, y, a.pitch);
    else if (a.pitch == a.inner && last.repeats == 1)  // this axis is as it was
      memcpy(y, x, size_t(n) * sizeof(float));
    else
      for (int64_t j = 0; j < last.out; ++j)
        memcpy(y + j * a.pitch, x + last.index[j] * a.inner, size_t(a.inner) * sizeof(float));
    if (a.crops) extrapolate(a, row, reinterpret_cast<std::byte*>(y));
    if (a.n_pieces > 0) scatter_row(a, y, to);
  }
  return {};
}

namespace {

// Every element kTimes times.
template <class T, int kTimes>
void repeat_row(const Unaligned<T>* __restrict x, Unaligned<T>* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    for (int k = 0; k < kTimes; ++k) y[i * kTimes + k] = x[i];
}

// Every element twice: zero-extended to twice its width, then ORed with itself shifted. The last
// vector is shifted back to end with the row.
template <class T, class Double>
void double_row(const std::byte* from, std::byte* to, int64_t n) {
  constexpr int64_t kStep = SDX_VEC_BYTES / int64_t(sizeof(Double));
  typedef T Narrow __attribute__((vector_size(kStep * sizeof(T))));
  for (int64_t i = 0; i < n; i += kStep) {
    const int64_t at = i + kStep <= n ? i : n - kStep;
    Narrow x;
    memcpy(&x, from + at * int64_t(sizeof(T)), sizeof x);
    Vec<Double> y = __builtin_convertvector(x, Vec<Double>);
    y |= y << (8 * sizeof(T));
    memcpy(to + at * int64_t(sizeof(Double)), &y, sizeof y);
  }
}

template <class T>
bool try_double_row(const std::byte* from, std::byte* to, int64_t n) {
  if (n * int64_t(sizeof(T)) < SDX_VEC_BYTES / 2) return false;
  if constexpr (sizeof(T) == 1) return double_row<T, uint16_t>(from, to, n), true;
  if constexpr (sizeof(T) == 2) return double_row<T, uint32_t>(from, to, n), true;
  if constexpr (sizeof(T) == 4) return double_row<T, uint64_t>(from, to, n), true;
  return false;
}

// Nearest along a contiguous axis, of elements of one machine word.
template <class T>
void pick_row(const Taps& taps, const std::byte* from, std::byte* to) {
  const auto* x = reinterpret_cast<const Unaligned<T>*>(from);
  auto* y = reinterpret_cast<Unaligned<T>*>(to);
  switch (taps.repeats) {
    case 1: return copy_bytes(to, from, taps.out * int64_t(sizeof(T)));
    case 2:
      if (!try_double_row<T>(from, to, taps.size)) repeat_row<T, 2>(x, y, taps.size);
      return;
    case 4: return repeat_row<T, 4>(x, y, taps.size);
    default: break;
  }
  for (int64_t j = 0; j < taps.out; ++j) y[j] = x[taps.index[j]];
}

// Nearest along an axis of units of any size.
void pick_units(const Taps& taps, const std::byte* from, std::byte* to, int64_t unit,
                int64_t pitch) {
  if (pitch == unit && unit <= 16 && (unit & (unit - 1)) == 0)
    return visit_element_size(unit, [&]<class T>() { pick_row<T>(taps, from, to); });
  for (int64_t j = 0; j < taps.out; ++j)
    copy_bytes(to + j * pitch, from + taps.index[j] * unit, unit);
}

}  // namespace

Status nearest_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const ResizeArgs& a = args_of(args, data);
  const Taps& last = a.axes[a.n_axes - 1];
  const int64_t unit = a.inner * a.size, pitch = a.pitch * a.size;
  const int64_t row_bytes = a.row_stride * a.size;
  // Rows along the axis before the last one differ only in its index: find_rows runs once per axis.
  const bool has_outer_axis = a.n_axes > 1;
  const Taps& outer_axis = a.axes[has_outer_axis ? a.n_axes - 2 : 0];
  int64_t j = has_outer_axis ? begin % outer_axis.out : 0, base = 0;
  int64_t previous = -1;  // the input row of the previous output row: an equal one is copied whole
  WeightedRows rows;
  for (int64_t row = begin; row < end; ++row) {
    if (row == begin || j == 0) {
      find_rows(a, row, rows);
      base = rows.at[0] - (has_outer_axis ? outer_axis.index[j] : 0);
    }
    const int64_t at = base + (has_outer_axis ? outer_axis.index[j] : 0);
    std::byte* to = output<std::byte>(data) + row * row_bytes;
    std::byte* scratch_row = a.n_pieces > 0 ? data.local : to;
    if (at == previous && last.repeats == 0 && row_bytes == last.out * unit && !a.crops)
      copy_bytes(to, to - row_bytes, row_bytes);
    else
      pick_units(last, input<std::byte>(data, 0) + at * last.size * unit, scratch_row, unit, pitch);
    if (a.crops) extrapolate(a, row, scratch_row);
    if (a.n_pieces > 0) scatter_row(a, scratch_row, to);
    previous = at;
    if (has_outer_axis && ++j == outer_axis.out) j = 0;
  }
  return {};
}

}  // namespace sdx::SDX_ISA
