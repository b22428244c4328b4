// Tensors generated from a few numbers: ConstantOfShape, Range, Shape-like results, EyeLike, Trilu.
#include "kernels/move/copy_bytes.h"
#include "kernels/move/integer_operand.h"
#include "kernels/move/kernels.h"
#include "kernels/move/untyped.h"

namespace sdx::SDX_ISA::moving {
namespace {

constexpr int64_t kChunk = 4096;  // elements of an item: some microseconds of work

struct FillArgs {
  int64_t count, size, bits;
};

Status fill_chunks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const FillArgs*>(args);
  const int64_t first = begin * kChunk, last = end * kChunk < a.count ? end * kChunk : a.count;
  visit_element_size(a.size, [&]<class T>() {
    const T x = T(a.bits);
    fill_elements<T>(output<std::byte>(data) + first * a.size,
                     reinterpret_cast<const std::byte*>(&x), last - first);
  });
  return {};
}

struct RangeArgs {
  int64_t count;
};

template <class T>
Status range_chunks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const int64_t count = static_cast<const RangeArgs*>(args)->count;
  const int64_t last = end * kChunk < count ? end * kChunk : count;
  const T start = *input<Unaligned<T>>(data, 0), delta = *input<Unaligned<T>>(data, 2);
  auto* y = output<Unaligned<T>>(data);
  if constexpr (std::is_integral_v<T>) {
    // Unsigned, since the last step may go past the type's range and is not used.
    using U = std::make_unsigned_t<T>;
    for (int64_t i = begin * kChunk; i < last; ++i) y[i] = T(U(start) + U(U(i) * U(delta)));
  } else {
    for (int64_t i = begin * kChunk; i < last; ++i) y[i] = T(i) * delta + start;
  }
  return {};
}

// The length is max(ceil((limit - start) / delta), 0). Integers are computed in 128 bits, since
// limit - start overflows int64.
template <class T>
Status resolve_typed_range(const Data& data, View* out) {
  const T start = *input<Unaligned<T>>(data, 0), limit = *input<Unaligned<T>>(data, 1);
  const T delta = *input<Unaligned<T>>(data, 2);
  if (delta == 0) return Status::fail("Range steps by 0");
  if constexpr (std::is_integral_v<T>) {
    const __int128 gap = delta > 0 ? __int128(limit) - start : __int128(start) - limit;
    const __int128 step = delta > 0 ? __int128(delta) : -__int128(delta);
    const __int128 count = gap <= 0 ? 0 : (gap + step - 1) / step;
    out->dims[0] = count > INT64_MAX ? INT64_MAX : int64_t(count);
  } else {
    const double steps = __builtin_ceil((double(limit) - double(start)) / double(delta));
    if (!__builtin_isfinite(double(limit) - double(start)) || !__builtin_isfinite(double(delta)) ||
        steps > 9e15)
      return Status::fail("Range has no end from %g to %g by %g", double(start), double(limit),
                          double(delta));
    out->dims[0] = steps > 0 ? int64_t(steps) : 0;
  }
  return check_addressable(*out);
}

template <class T>
Status plan_range(const Call& call, Plan& plan) {
  auto* args = plan.make<RangeArgs>();
  args->count = call.out[0].dims[0];
  plan.args = args;
  plan.add(range_chunks<T>, (args->count + kChunk - 1) / kChunk, kChunk / 4);
  return {};
}

// Sizes that the executor computed from symbolic dims, written as a tensor (Shape, Size and the
// arithmetic on them).
struct SizesArgs {
  int64_t count, size;
  const int64_t* numbers;
};

Status write_sizes(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const SizesArgs*>(args);
  for (int64_t i = 0; i < a.count; ++i)
    memcpy(output<std::byte>(data) + i * a.size, a.numbers + i, size_t(a.size));
  return {};
}

// Whether an element type can represent x; sizes that do not fit are refused, never truncated.
bool fits(int64_t x, DType dtype) {
  switch (dtype) {
    case DType::i8: return x == int8_t(x);
    case DType::u8: return x == uint8_t(x);
    case DType::i16: return x == int16_t(x);
    case DType::u16: return x == uint16_t(x);
    case DType::i32: return x == int32_t(x);
    case DType::u32: return x == uint32_t(x);
    case DType::u64: return x >= 0;
    case DType::boolean: return x == 0 || x == 1;
    default: return true;
  }
}

struct EyeArgs {
  int64_t columns, shift, size, bits;
};

Status eye_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const EyeArgs*>(args);
  const int64_t bytes = a.columns * a.size;
  // One call: large ones write past the caches.
  memset(output<std::byte>(data) + begin * bytes, 0, size_t((end - begin) * bytes));
  for (int64_t row = begin; row < end; ++row) {
    std::byte* y = output<std::byte>(data) + row * bytes;
    const int64_t at = row + a.shift;
    if (at >= 0 && at < a.columns) memcpy(y + at * a.size, &a.bits, size_t(a.size));
  }
  return {};
}

struct TriluArgs {
  int64_t rows, columns, size;
  bool has_shift, is_upper;
};

Status trilu_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TriluArgs*>(args);
  const int64_t shift = a.has_shift ? *input<Unaligned<int64_t>>(data, 1) : 0;
  for (int64_t row = begin; row < end; ++row) {
    const std::byte* x = input<std::byte>(data, 0) + row * a.columns * a.size;
    std::byte* y = output<std::byte>(data) + row * a.columns * a.size;
    // Columns from `cut` on are those of the upper triangle, or those right of the lower one.
    __int128 cut = __int128(row % a.rows) + shift + (a.is_upper ? 0 : 1);
    cut = cut < 0 ? 0 : cut > a.columns ? a.columns : cut;
    const size_t left = size_t(int64_t(cut) * a.size), all = size_t(a.columns * a.size);
    if (a.is_upper) {
      memset(y, 0, left);
      memcpy(y + left, x + left, all - left);
    } else {
      memcpy(y, x, left);
      memset(y + left, 0, all - left);
    }
  }
  return {};
}

}  // namespace

// ints: the bits of an element in the low bytes.
Status fill(const Call& call, Plan& plan) {
  auto* args = plan.make<FillArgs>();
  *args = {call.out[0].count(), size_of(call.out[0].dtype), call.ints[0]};
  plan.args = args;
  plan.add(fill_chunks, (args->count + kChunk - 1) / kChunk, kChunk * args->size / 32);
  return {};
}

Status resolve_fill(const Call& call, const Data& data, View* out) {
  const Integers target = integers(call, data, 0);
  for (int i = 0; i < out->rank; ++i) {
    if (target[i] < 0)
      return Status::fail("the shape has the negative size %ld at %d", long(target[i]), i);
    out->dims[i] = target[i];
  }
  return check_addressable(*out);
}

Status range(const Call& call, Plan& plan) {
  switch (call.out[0].dtype) {
    case DType::i16: return plan_range<int16_t>(call, plan);
    case DType::i32: return plan_range<int32_t>(call, plan);
    case DType::f32: return plan_range<float>(call, plan);
    case DType::f64: return plan_range<double>(call, plan);
    default: return plan_range<int64_t>(call, plan);
  }
}

Status resolve_range(const Call& call, const Data& data, View* out) {
  switch (call.in[0].dtype) {
    case DType::i16: return resolve_typed_range<int16_t>(data, out);
    case DType::i32: return resolve_typed_range<int32_t>(data, out);
    case DType::f32: return resolve_typed_range<float>(data, out);
    case DType::f64: return resolve_typed_range<double>(data, out);
    default: return resolve_typed_range<int64_t>(data, out);
  }
}

// ints: the elements, which symbolic expressions computed before the step.
Status sizes(const Call& call, Plan& plan) {
  const DType dtype = call.out[0].dtype;
  auto* numbers = plan.make<int64_t>(size_t(call.n_ints) + 1);
  for (int i = 0; i < call.n_ints; ++i) {
    numbers[i] = call.ints[i];
    if (!fits(numbers[i], dtype))
      return Status::fail("the computed size %ld does not fit its type", long(numbers[i]));
  }
  auto* args = plan.make<SizesArgs>();
  *args = {call.n_ints, size_of(dtype), numbers};
  plan.args = args;
  plan.add(write_sizes, call.n_ints > 0 ? 1 : 0, 1);
  return {};
}

// ints: the diagonal's offset k, and the bits of a 1 in the element type.
Status eye(const Call& call, Plan& plan) {
  const View& out = call.out[0];
  auto* args = plan.make<EyeArgs>();
  *args = {out.dims[1], call.ints[0], size_of(out.dtype), call.ints[1]};
  plan.args = args;
  plan.add(eye_rows, out.dims[0], args->columns * args->size / 32 + 2);
  return {};
}

// ints: whether the upper triangle is kept. The second operand, k, is the diagonal that bounds it.
Status trilu(const Call& call, Plan& plan) {
  const View& in = call.in[0];
  auto* args = plan.make<TriluArgs>();
  *args = {in.dim(-2), in.dim(-1), size_of(in.dtype), is_given(call, 1), call.ints[0] != 0};
  plan.args = args;
  const int64_t rows = args->columns == 0 ? 0 : in.count(0, in.rank - 1);
  plan.add(trilu_rows, rows, args->columns * args->size / 16 + 2);
  return {};
}

}  // namespace sdx::SDX_ISA::moving
