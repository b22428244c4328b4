// DFT and STFT. With many lines, one vector lane per line: all lanes do the same work, and no FFT
// shuffles are needed. Long or few lines are transformed one at a time.
#include "kernels/signal/kernels.h"
#include "kernels/signal/lines.h"

namespace sdx::SDX_ISA {
namespace {

using Reals = Types<float, double>;
constexpr int64_t kMaxBytes = 1 << 22;  // buffers of lines in lanes at most; beyond, one at a time

template <class T>
struct DftArgs {
  LineShape shape;
  Tables<T> tables;  // unless the length is data
  int64_t n_lines = 0;
  int64_t step = 0;  // frame_step; 0: an input has it
  int length_operand = -1, step_operand = -1, window_operand = -1;
  bool is_dynamic = false;  // the length is data: tables are made when the step runs
  DType length_type = DType::i64, step_type = DType::i64;
};

SDX_INLINE int64_t number_at(const Data& data, int operand, DType dtype) {
  return dtype == DType::i32 ? input<int32_t>(data, operand)[0] : input<int64_t>(data, operand)[0];
}

// Shape and tables that phase 1 makes in scratch memory; the tables' data follows.
template <class T>
struct DynamicTables {
  LineShape shape;
  Tables<T> tables;
};

// A bump allocator.
struct BumpAllocator {
  std::byte* at;

  template <class U>
  SDX_INLINE U* operator()(int64_t count) {
    auto* result = reinterpret_cast<U*>(at);
    at += count * int64_t(sizeof(U));
    return result;
  }
};

// Phase 1 of a transform whose length is data.
template <class T>
Status make_dynamic_tables(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const DftArgs<T>*>(args);
  auto* dynamic = reinterpret_cast<DynamicTables<T>*>(data.scratch);
  std::byte* at = data.scratch + (sizeof(DynamicTables<T>) + 63) / 64 * 64;
  dynamic->shape = a.shape;
  dynamic->shape.n = number_at(data, a.length_operand, a.length_type);
  if (dynamic->shape.n_given > dynamic->shape.n) dynamic->shape.n_given = dynamic->shape.n;
  dynamic->tables = make_tables<T>(dynamic->shape, BumpAllocator{at});
  return {};
}

// Items are groups of as many lines as V has lanes.
template <class T, class V>
Status run_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const DftArgs<T>*>(args);
  const auto* dynamic = reinterpret_cast<const DynamicTables<T>*>(data.scratch);
  const Tables<T>& tables = a.is_dynamic ? dynamic->tables : a.tables;
  LineShape shape = a.is_dynamic ? dynamic->shape : a.shape;
  if (a.step_operand >= 0)
    shape.inner = number_at(data, a.step_operand, a.step_type) * shape.components;
  if (a.length_operand >= 0 && number_at(data, a.length_operand, a.length_type) != shape.n)
    return Status::fail("frames of %ld samples do not fit a window of %ld",
                        long(number_at(data, a.length_operand, a.length_type)), long(shape.n));
  const T* window = a.window_operand < 0 ? nullptr : input<T>(data, a.window_operand);
  constexpr int64_t kWidth = Lines<T, V>::kWidth;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t last = (i + 1) * kWidth < a.n_lines ? (i + 1) * kWidth : a.n_lines;
    transform<V>(shape, tables, input<T>(data, 0), window, output<T>(data), i * kWidth, last,
                 reinterpret_cast<Complex<V>*>(data.local));
  }
  return {};
}

// An upper bound on the bytes of a shape's tables. Without Bluestein there are fewer than n twiddle
// factors, the roots of unity of each stage, and n / 2 + 1 factors for real inputs.
template <class T>
int64_t table_bytes(const LineShape& s) {
  const int64_t n = s.fft_length();
  if (mixed_radix_length(n) != n) return fft_bytes(s.n);
  return (2 * s.n + 2048) * int64_t(sizeof(Complex<T>));
}

// Adds the phases for lines of at most `most` elements. Lanes are used if at least half of them are
// filled.
template <class T>
Status add_phases(DftArgs<T>* a, int64_t max_length, Plan& plan) {
  plan.args = a;
  if (a->is_dynamic) {
    plan.scratch_bytes = int64_t(sizeof(DynamicTables<T>)) + 64 + fft_bytes(max_length);
    plan.add(make_dynamic_tables<T>, 1, 100 * max_length);
  } else {
    BumpAllocator allocator{plan.table<std::byte>(size_t(table_bytes<T>(a->shape)))};
    if (allocator.at == nullptr) return no_table();
    a->tables = make_tables<T>(a->shape, allocator);
  }
  const int64_t length = a->is_dynamic ? 4 * max_length : a->tables.fft.mixed_radix.n;
  constexpr int64_t kWidth = kLanesOf<T>;
  const int64_t line_bytes = 2 * length * int64_t(sizeof(Complex<T>));
  const bool is_wide = 2 * a->n_lines > kWidth && line_bytes * kWidth <= kMaxBytes;
  plan.local_bytes = line_bytes * (is_wide ? kWidth : 1);
  if (is_wide)
    plan.add(run_lines<T, Vec<T>>, (a->n_lines + kWidth - 1) / kWidth, 20 * length);
  else
    plan.add(run_lines<T, T>, a->n_lines, 10 * length);
  return {};
}

// Checks the last axis of the input: real (1) or complex (2).
Status check_components(int64_t components, bool takes_complex) {
  if (components != 1 && components != 2)
    return Status::fail("the last dim must be 1 (real) or 2 (complex), got %ld", long(components));
  if (components == 2 && !takes_complex)
    return Status::fail("a one-sided transform needs real numbers, got complex ones");
  return {};
}

int64_t onesided_length(int64_t n) { return n / 2 + 1; }

}  // namespace

Status dft(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Reals{}, [&]<class T>() {
    const View &x = call.in[0], &y = call.out[0];
    const int axis = int(call.ints[0]);
    auto* a = plan.make<DftArgs<T>>();
    LineShape& s = a->shape;
    s.components = x.dim(-1), s.out_components = y.dim(-1);
    s.is_inverse = call.ints[1] != 0, s.is_onesided = call.ints[2] != 0;
    if (Status status = check_components(s.components, s.is_inverse || !s.is_onesided);
        !status.ok())
      return status;
    s.n = call.ints[3];
    a->is_dynamic = s.n == 0;
    const int64_t max_length = a->is_dynamic ? 2 * y.dims[axis] : s.n;
    if (a->is_dynamic) a->length_operand = 1, a->length_type = call.in[1].dtype;
    s.n_kept = y.dims[axis];
    s.n_given = x.dims[axis] < max_length ? x.dims[axis] : max_length;
    s.n_inner = x.count(axis + 1, x.rank - 1);
    s.inner = s.components, s.stride = s.n_inner * s.components, s.outer = x.dims[axis] * s.stride;
    s.out_inner = s.out_components, s.out_stride = s.n_inner * s.out_components;
    s.out_outer = s.n_kept * s.out_stride;
    a->n_lines = x.count(0, axis) * s.n_inner;
    return y.count() > 0 ? add_phases(a, max_length, plan) : Status{};
  });
}

Status dft_sizes(const Call& call, const Data& data, View* out) {
  const View& x = call.in[0];
  const int axis = int(call.ints[0]);
  const int64_t n = number_in(call, data, 1);
  if (n < 1) return Status::fail("dft_length must be 1 or more, got %ld", long(n));
  const bool is_inverse = call.ints[1] != 0, is_onesided = call.ints[2] != 0;
  for (int i = 0; i < x.rank; ++i) out->dims[i] = x.dims[i];
  out->dims[axis] = is_onesided && !is_inverse ? onesided_length(n) : n;
  out->dims[x.rank - 1] = is_onesided && is_inverse ? 1 : 2;
  return {};
}

Status stft(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Reals{}, [&]<class T>() {
    const View &x = call.in[0], &y = call.out[0];
    auto* a = plan.make<DftArgs<T>>();
    LineShape& s = a->shape;
    s.components = x.rank == 3 ? x.dims[2] : 1;
    s.is_onesided = call.ints[0] != 0;
    if (Status status = check_components(s.components, true); !status.ok()) return status;
    s.n = call.ints[2];
    a->step_operand = call.in[1].is_given() ? 1 : -1, a->step_type = call.in[1].dtype;
    a->window_operand = call.in[2].is_given() ? 2 : -1;
    a->length_operand = call.in[3].is_given() ? 3 : -1, a->length_type = call.in[3].dtype;
    a->is_dynamic = s.n == 0;
    const int64_t max_length = a->is_dynamic ? 2 * y.dims[2] : s.n;
    s.n_given = s.n > 0 ? s.n : max_length;
    s.n_kept = y.dims[2];
    s.n_inner = y.dims[1];
    s.stride = s.components, s.inner = call.ints[1] * s.components,
    s.outer = x.dims[1] * s.components;
    s.out_stride = 2, s.out_inner = 2 * s.n_kept, s.out_outer = s.n_inner * s.out_inner;
    a->n_lines = y.dims[0] * y.dims[1];
    return y.count() > 0 ? add_phases(a, max_length, plan) : Status{};
  });
}

Status stft_sizes(const Call& call, const Data& data, View* out) {
  const View& x = call.in[0];
  const int64_t total = x.dims[1];
  const int64_t step = call.in[1].is_given() ? number_in(call, data, 1) : call.ints[1];
  const int64_t frame = call.in[3].is_given() ? number_in(call, data, 3) : call.ints[2];
  if (step < 1 || frame < 1 || frame > total)
    return Status::fail("frames of %ld samples every %ld do not fit a signal of %ld", long(frame),
                        long(step), long(total));
  out->dims[0] = x.dims[0];
  out->dims[1] = (total - frame) / step + 1;
  out->dims[2] = call.ints[0] != 0 ? onesided_length(frame) : frame;
  out->dims[3] = 2;
  return {};
}

}  // namespace sdx::SDX_ISA
