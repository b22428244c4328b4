// DFT and STFT: many lines side by side, one to a lane, or one after the other where lines are long
// or few.
#include "kernels/signal/lines.h"
#include "kernels/signal/rows.h"

namespace sdx::SDX_ISA {
namespace {

using Reals = Types<float, double>;
constexpr int64_t kMostBytes = 1 << 22;  // that lines side by side may take

template <class T>
struct DftArgs {
  LineShape shape;
  Tables<T> tables;  // unless the length is known only when it runs
  int64_t n_lines = 0;
  int64_t step = 0;  // of frames; 0 where an input has it
  int length_slot = -1, step_slot = -1, window_slot = -1;
  bool is_open = false;  // the length is in an input, and nowhere else
  DType length_type = DType::i64, step_type = DType::i64;
};

SDX_INLINE int64_t number_at(const Data& data, int slot, DType dtype) {
  return dtype == DType::i32 ? input<int32_t>(data, slot)[0] : input<int64_t>(data, slot)[0];
}

// Tables that are made when it runs lie behind this in scratch memory.
template <class T>
struct Opened {
  LineShape shape;
  Tables<T> tables;
};

// Hands out pieces of memory one after the other.
struct Pieces {
  std::byte* at;

  template <class U>
  SDX_INLINE U* operator()(int64_t count) {
    auto* made = reinterpret_cast<U*>(at);
    at += count * int64_t(sizeof(U));
    return made;
  }
};

template <class T>
Status open_tables(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const DftArgs<T>*>(args);
  auto* opened = reinterpret_cast<Opened<T>*>(data.scratch);
  std::byte* at = data.scratch + (sizeof(Opened<T>) + 63) / 64 * 64;
  opened->shape = a.shape;
  opened->shape.n = number_at(data, a.length_slot, a.length_type);
  if (opened->shape.given > opened->shape.n) opened->shape.given = opened->shape.n;
  opened->tables = make_tables<T>(opened->shape, Pieces{at});
  return {};
}

template <class T, class V>
Status run_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const DftArgs<T>*>(args);
  const auto* opened = reinterpret_cast<const Opened<T>*>(data.scratch);
  const Tables<T>& tables = a.is_open ? opened->tables : a.tables;
  LineShape shape = a.is_open ? opened->shape : a.shape;
  if (a.step_slot >= 0) shape.inner = number_at(data, a.step_slot, a.step_type) * shape.parts;
  if (a.length_slot >= 0 && number_at(data, a.length_slot, a.length_type) != shape.n)
    return Status::fail("frames of %ld samples do not fit a window of %ld",
                        long(number_at(data, a.length_slot, a.length_type)), long(shape.n));
  const T* window = a.window_slot < 0 ? nullptr : input<T>(data, a.window_slot);
  constexpr int64_t kWidth = Lines<T, V>::kWidth;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t last = (i + 1) * kWidth < a.n_lines ? (i + 1) * kWidth : a.n_lines;
    transform<V>(shape, tables, input<T>(data, 0), window, output<T>(data), i * kWidth, last,
                 reinterpret_cast<Complex<V>*>(data.local));
  }
  return {};
}

// Bytes that the tables of a shape take at most. Without a chirp (Bluestein's algorithm) there are
// fewer than n twiddle factors, their roots, and n / 2 + 1 numbers for real inputs.
template <class T>
int64_t table_bytes(const LineShape& s) {
  const int64_t n = s.fft_length();
  if (steps_length(n) != n) return fft_bytes(s.n);
  return (2 * s.n + 2048) * int64_t(sizeof(Complex<T>));
}

// The phases for lines of at most `most` numbers.
template <class T>
Status add_phases(DftArgs<T>* a, int64_t most, Plan& plan) {
  plan.args = a;
  if (a->is_open) {
    plan.scratch_bytes = int64_t(sizeof(Opened<T>)) + 64 + fft_bytes(most);
    plan.add(open_tables<T>, 1, 100 * most);
  } else {
    Pieces pieces{plan.table<std::byte>(size_t(table_bytes<T>(a->shape)))};
    if (pieces.at == nullptr) return no_table();
    a->tables = make_tables<T>(a->shape, pieces);
  }
  const int64_t length = a->is_open ? 4 * most : a->tables.fft.steps.n;
  constexpr int64_t kWidth = kLanesOf<T>;
  const int64_t number = 2 * length * int64_t(sizeof(Complex<T>));
  const bool is_wide = 2 * a->n_lines > kWidth && number * kWidth <= kMostBytes;
  plan.local_bytes = number * (is_wide ? kWidth : 1);
  if (is_wide)
    plan.add(run_lines<T, Vec<T>>, (a->n_lines + kWidth - 1) / kWidth, 20 * length);
  else
    plan.add(run_lines<T, T>, a->n_lines, 10 * length);
  return {};
}

// Whether the last axis of an input holds numbers that can be transformed so.
Status check_parts(int64_t parts, bool takes_complex) {
  if (parts != 1 && parts != 2)
    return Status::fail("the last dim is 1 (real) or 2 (complex), not %ld", long(parts));
  if (parts == 2 && !takes_complex)
    return Status::fail("a one-sided transform takes real numbers, and the input is complex");
  return {};
}

int64_t half_of(int64_t n) { return n / 2 + 1; }

}  // namespace

Status dft(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Reals{}, [&]<class T>() {
    const View &x = call.in[0], &y = call.out[0];
    const int axis = int(call.ints[0]);
    auto* a = plan.make<DftArgs<T>>();
    LineShape& s = a->shape;
    s.parts = x.dim(-1), s.out_parts = y.dim(-1);
    s.is_back = call.ints[1] != 0, s.is_half = call.ints[2] != 0;
    if (Status status = check_parts(s.parts, s.is_back || !s.is_half); !status.ok()) return status;
    s.n = call.ints[3];
    a->is_open = s.n == 0;
    const int64_t most = a->is_open ? 2 * y.dims[axis] : s.n;
    if (a->is_open) a->length_slot = 1, a->length_type = call.in[1].dtype;
    s.kept = y.dims[axis];
    s.given = x.dims[axis] < most ? x.dims[axis] : most;
    s.n_inner = x.count(axis + 1, x.rank - 1);
    s.inner = s.parts, s.step = s.n_inner * s.parts, s.outer = x.dims[axis] * s.step;
    s.out_inner = s.out_parts, s.out_step = s.n_inner * s.out_parts;
    s.out_outer = s.kept * s.out_step;
    a->n_lines = x.count(0, axis) * s.n_inner;
    return y.count() > 0 ? add_phases(a, most, plan) : Status{};
  });
}

Status dft_sizes(const Call& call, const Data& data, View* out) {
  const View& x = call.in[0];
  const int axis = int(call.ints[0]);
  const int64_t n = number_in(call, data, 1);
  if (n < 1) return Status::fail("dft_length is %ld, and must be 1 or more", long(n));
  const bool is_back = call.ints[1] != 0, is_half = call.ints[2] != 0;
  for (int i = 0; i < x.rank; ++i) out->dims[i] = x.dims[i];
  out->dims[axis] = is_half && !is_back ? half_of(n) : n;
  out->dims[x.rank - 1] = is_half && is_back ? 1 : 2;
  return {};
}

Status stft(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Reals{}, [&]<class T>() {
    const View &x = call.in[0], &y = call.out[0];
    auto* a = plan.make<DftArgs<T>>();
    LineShape& s = a->shape;
    s.parts = x.rank == 3 ? x.dims[2] : 1;
    s.is_half = call.ints[0] != 0;
    if (Status status = check_parts(s.parts, true); !status.ok()) return status;
    s.n = call.ints[2];
    a->step_slot = call.in[1].is_given() ? 1 : -1, a->step_type = call.in[1].dtype;
    a->window_slot = call.in[2].is_given() ? 2 : -1;
    a->length_slot = call.in[3].is_given() ? 3 : -1, a->length_type = call.in[3].dtype;
    a->is_open = s.n == 0;
    const int64_t most = a->is_open ? 2 * y.dims[2] : s.n;
    s.given = s.n > 0 ? s.n : most;
    s.kept = y.dims[2];
    s.n_inner = y.dims[1];
    s.step = s.parts, s.inner = call.ints[1] * s.parts, s.outer = x.dims[1] * s.parts;
    s.out_step = 2, s.out_inner = 2 * s.kept, s.out_outer = s.n_inner * s.out_inner;
    a->n_lines = y.dims[0] * y.dims[1];
    return y.count() > 0 ? add_phases(a, most, plan) : Status{};
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
  out->dims[2] = call.ints[0] != 0 ? half_of(frame) : frame;
  out->dims[3] = 2;
  return {};
}

}  // namespace sdx::SDX_ISA
