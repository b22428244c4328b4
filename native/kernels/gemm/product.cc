// Products of f32, f16 and bf16, which add up in f32 and round once.
#include "kernels/gemm/product.h"

#include "kernels/gemm/rows.h"
#include "kernels/pitch.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kMostOwn = 256 * 1024;  // bytes of a packed B that a thread packs for itself
constexpr int64_t kTiny = 256;            // multiplications
constexpr int64_t kOwnBatches = 4;        // batches from which each is one item

template <class T>
SDX_INLINE void round_row(const float* from, int64_t n, T* to) {
  vloop(n, [&](int64_t j, auto lanes) { store_float(to + j, load(from + j, lanes), lanes); });
}

template <class T>
void run_block(const ProductArgs& a, const Data& data, const float* packed, const Area& at) {
  const Product& p = a.p;
  const T* from = input<T>(data, 0) + p.a.offset(at.batch);
  Target sums{reinterpret_cast<float*>(data.local + a.c_at), kMostColumns};
  if (!a.is_apart)
    sums = {output<float>(data) + (at.batch * p.m + at.row) * a.pitch + at.column, a.pitch};
  Finish finish = a.finish;
  if (a.bias_slot >= 0) finish.bias = input<float>(data, a.bias_slot);
  finish.start = start_of(a, data, at, sums);
  finish.start_stride = a.is_start_whole ? p.n : sums.ldc;
  const int64_t first = at.column / kPanel;
  gemm_block(data.local, at.rows, p.k, Columns{packed, p.n, first, first + panels_of(at.columns)},
             sums, finish,
             [&](float* into, int64_t row, int64_t rows, int64_t depth, int64_t depths) {
               fill_rows(p, from + depth * p.k_stride, into, at.row + row, rows, depths);
             });
  if (a.is_apart || a.chain != nullptr) finish_area(a, data, at, sums);
}

template <class T>
void run_split(const ProductArgs& a, const Data& data, const float* packed, int64_t batch,
               int64_t item) {
  const Split& s = a.split;
  const int64_t r = item % s.row_blocks, c = item / s.row_blocks;
  const int64_t column = s.panel(c) * kPanel, end = s.panel(c + 1) * kPanel;
  run_block<T>(
      a, data, packed,
      {batch, s.row(r), s.row(r + 1) - s.row(r), column, (end < a.p.n ? end : a.p.n) - column});
}

// Items: blocks of all batches.
template <class T>
Status blocks(const ProductArgs& a, const Data& data, const float* packed, int64_t begin,
              int64_t end) {
  const int64_t each = a.split.count();
  for (int64_t i = begin; i < end; ++i)
    run_split<T>(a, data, packed + a.p.which.offset(i / each) * a.packed_floats, i / each,
                 i % each);
  return {};
}

template <class T>
Status packed_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  return blocks<T>(*static_cast<const ProductArgs*>(args), data, input<float>(data, 1), begin, end);
}

template <class T>
Status pack_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  pack_panels(static_cast<const ProductArgs*>(args)->p, input<T>(data, 1),
              reinterpret_cast<float*>(data.scratch), begin, end);
  return {};
}

template <class T>
Status scratch_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  return blocks<T>(*static_cast<const ProductArgs*>(args), data,
                   reinterpret_cast<const float*>(data.scratch), begin, end);
}

// Items: batches, each of which packs its own B.
template <class T>
Status batch_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ProductArgs*>(args);
  auto* packed = reinterpret_cast<float*>(data.local + a.b_at);
  for (int64_t i = begin; i < end; ++i) {
    const T* from = input<T>(data, 1) + a.p.b.offset(a.p.which.offset(i));
    for (int64_t j = 0; j < a.split.panels; ++j)
      pack_panel(from, a.p.b_row_stride, a.p.b_column_stride, a.p.k, a.p.n, j,
                 packed + j * kPanel * a.p.k);
    for (int64_t j = 0; j < a.split.count(); ++j) run_split<T>(a, data, packed, i, j);
  }
  return {};
}

template <class T>
Status pack_weight(const void* args, const Data& data, int64_t begin, int64_t end) {
  pack_panels(*static_cast<const Product*>(args), input<T>(data, 0), output<float>(data), begin,
              end);
  return {};
}

// What sums begin with.
void set_start(ProductArgs& args, const View& start, int slot) {
  args.start_slot = slot;
  args.is_start_whole = start.is_contiguous() && args.pitch == args.p.n;
  for (int i = 0; i + 1 < start.rank; ++i) args.start_rows.add(start.dims[i], start.strides[i]);
  args.start_stride = start.rank > 0 ? start.stride(-1) : 1;
}

// The arguments of a call: see rows.h.
ProductArgs* make_args(const Call& call, const Stack& b, Plan& plan) {
  auto* args = plan.make<ProductArgs>();
  plan.args = args;
  args->p = product_of(stack_of(call.in[0], true, call.ints[0] != 0), b);
  const Product& p = args->p;
  args->pitch = call.out[0].is_contiguous() ? p.n : row_pitch(call.out[0]);
  args->split = split_product(p.m, p.n, p.k);
  args->packed_floats = packed_floats(p.k, p.n);
  args->finish.alpha = float(call.floats[0]);
  args->finish.relu = (call.ints[2] & kRelu) != 0;
  int operand = 2;
  args->bias_slot = (call.ints[2] & kBias) != 0 ? operand++ : -1;
  args->start_slot = -1;
  if ((call.ints[2] & kStart) != 0) {
    set_start(*args, call.in[operand], operand);
    ++operand;
  }
  args->to = call.out[0].dtype;
  args->is_apart = args->to != DType::f32 || (call.ints[2] & kApart) != 0;
  args->chain = chain_prepare(call, operand, 4 + int(call.ints[3]), 1, plan);
  args->c_at = kBlockBytes;
  args->chain_at = args->c_at;
  if (args->is_apart) args->chain_at += kBlockRows * kMostColumns * int64_t(sizeof(float));
  args->b_at = args->chain_at + chain_local_bytes(args->chain);
  plan.local_bytes = args->b_at;
  return args;
}

// Products so small that any preparation takes longer, and with no epilogue.
bool is_tiny(const Call& call) {
  if (call.ints[2] != 0 || call.ints[4] != 0) return false;
  const Product p = product_of(stack_of(call.in[0], true, call.ints[0] != 0),
                               stack_of(call.in[1], false, call.ints[1] != 0));
  return p.m * p.n * p.k <= kTiny;
}

// One item does all of a batch: its blocks are as large as they may be.
Split whole_split(int64_t m, int64_t n, Split split) {
  split.row_blocks = (m + kBlockRows - 1) / kBlockRows;
  split.column_blocks = (n + kMostColumns - 1) / kMostColumns;
  return split;
}

template <class T>
void plan_product(const Call& call, Plan& plan) {
  ProductArgs& args = *make_args(call, stack_of(call.in[1], false, call.ints[1] != 0), plan);
  if (call.in[0].dtype == DType::f32 && plan_thin(args, plan)) return;
  const Product& p = args.p;
  const int64_t own = args.packed_floats * int64_t(sizeof(float));
  const int64_t work = args.split.work * args.split.count();
  if (p.batches >= kOwnBatches && p.b.count() == p.batches && own <= kMostOwn) {
    plan.local_bytes += own;
    args.split = whole_split(p.m, p.n, args.split);
    plan.add(batch_phase<T>, p.m > 0 && p.n > 0 ? p.batches : 0, work);
    return;
  }
  const int64_t blocks = p.batches * args.split.count(), matrices = p.b.count();
  plan.scratch_bytes = matrices * own;
  plan.add(pack_phase<T>, blocks > 0 ? matrices * args.split.panels : 0, p.k * 4);
  plan.add(scratch_phase<T>, blocks, args.split.work);
}

}  // namespace

const float* start_of(const ProductArgs& a, const Data& data, const Area& at, const Target& sums) {
  if (a.start_slot < 0) return nullptr;
  const float* from = input<float>(data, a.start_slot);
  const int64_t row = at.batch * a.p.m + at.row;
  if (a.is_start_whole) return from + row * a.p.n + at.column;
  for (int64_t i = 0; i < at.rows; ++i) {
    const float* line = from + a.start_rows.offset(row + i) + at.column * a.start_stride;
    for (int64_t j = 0; j < at.columns; ++j) sums.c[i * sums.ldc + j] = line[j * a.start_stride];
  }
  return sums.c;
}

void finish_area(const ProductArgs& a, const Data& data, const Area& at, const Target& sums) {
  for (int64_t i = 0; i < at.rows; ++i) {
    const int64_t row = at.batch * a.p.m + at.row + i;
    const float* from = sums.c + i * sums.ldc;
    std::byte* to = output<std::byte>(data) + (row * a.pitch + at.column) * size_of(a.to);
    if (a.chain != nullptr) {
      chain_run(*a.chain, data, row, at.column, at.columns, from, to, data.local + a.chain_at);
    } else if (a.to == DType::f16) {
      round_row(from, at.columns, reinterpret_cast<F16*>(to));
    } else {
      round_row(from, at.columns, reinterpret_cast<BF16*>(to));
    }
  }
}

Status matmul(const Call& call, Plan& plan) {
  switch (call.in[0].dtype) {
    case DType::f32:
      if (is_tiny(call)) return matmul_plain(call, plan);
      plan_product<float>(call, plan);
      return {};
    case DType::f16: plan_product<F16>(call, plan); return {};
    case DType::bf16: plan_product<BF16>(call, plan); return {};
    default: return matmul_plain(call, plan);
  }
}

Status matmul_packed(const Call& call, Plan& plan) {
  View b;  // what was packed, as its dims are given
  b.rank = int(call.ints[3]);
  for (int i = 0; i < b.rank; ++i) b.dims[i] = call.ints[4 + i];
  b.pack();
  ProductArgs& args = *make_args(call, stack_of(b, false, false), plan);
  const int64_t blocks = args.p.batches * args.split.count();
  switch (call.in[0].dtype) {
    case DType::f16: plan.add(packed_phase<F16>, blocks, args.split.work); break;
    case DType::bf16: plan.add(packed_phase<BF16>, blocks, args.split.work); break;
    default: plan.add(packed_phase<float>, blocks, args.split.work); break;
  }
  return {};
}

Status matmul_pack(const Call& call, Plan& plan) {
  auto* args = plan.make<Product>();
  const Stack b = stack_of(call.in[0], false, call.ints[0] != 0);
  Stack a;
  a.columns = b.rows;
  *args = product_of(a, b);
  plan.args = args;
  const int64_t count = args->b.count() * panels_of(args->n), work = args->k * 4;
  switch (call.in[0].dtype) {
    case DType::f16: plan.add(pack_weight<F16>, count, work); break;
    case DType::bf16: plan.add(pack_weight<BF16>, count, work); break;
    default: plan.add(pack_weight<float>, count, work); break;
  }
  return {};
}

}  // namespace sdx::SDX_ISA
