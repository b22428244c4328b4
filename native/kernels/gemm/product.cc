// Products of f32, f16 and bf16, which add up in f32 and round once. Phases are made for the type
// of A, and for what B is packed to: floats, or pairs of bf16, to which both sides are rounded.
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

template <class T, class U>
void run_block(const ProductArgs& a, const Data& data, const U* packed, const Area& at) {
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
  gemm_block(data.local, at.rows, depth_of<U>(p.k),
             ColumnsOf<U>{packed, p.n, first, first + panels_of(at.columns)}, sums, finish,
             [&](U* into, int64_t row, int64_t rows, int64_t depth, int64_t depths) {
               fill_rows(p, from, into, at.row + row, rows, depth, depths);
             });
  if (a.is_apart || a.chain != nullptr) finish_area(a, data, at, sums);
}

template <class T, class U>
void run_split(const ProductArgs& a, const Data& data, const U* packed, int64_t batch,
               int64_t item) {
  const Split& s = a.split;
  const int64_t r = item % s.row_blocks, c = item / s.row_blocks;
  const int64_t column = s.panel(c) * kPanel, end = s.panel(c + 1) * kPanel;
  run_block<T, U>(
      a, data, packed,
      {batch, s.row(r), s.row(r + 1) - s.row(r), column, (end < a.p.n ? end : a.p.n) - column});
}

// Items: blocks of all batches.
template <class T, class U>
Status blocks(const ProductArgs& a, const Data& data, const U* packed, int64_t begin, int64_t end) {
  const int64_t each = a.split.count();
  for (int64_t i = begin; i < end; ++i)
    run_split<T, U>(a, data, packed + a.p.which.offset(i / each) * a.packed_floats, i / each,
                    i % each);
  return {};
}

template <class T, class U>
Status packed_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  return blocks<T, U>(*static_cast<const ProductArgs*>(args), data, input<U>(data, 1), begin, end);
}

template <class T, class U>
Status pack_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  pack_panels(static_cast<const ProductArgs*>(args)->p, input<T>(data, 1),
              reinterpret_cast<U*>(data.scratch), begin, end);
  return {};
}

template <class T, class U>
Status scratch_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  return blocks<T, U>(*static_cast<const ProductArgs*>(args), data,
                      reinterpret_cast<const U*>(data.scratch), begin, end);
}

// Items: batches, each of which packs its own B.
template <class T, class U>
Status batch_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ProductArgs*>(args);
  auto* packed = reinterpret_cast<U*>(data.local + a.b_at);
  for (int64_t i = begin; i < end; ++i) {
    const T* from = input<T>(data, 1) + a.p.b.offset(a.p.which.offset(i));
    for (int64_t j = 0; j < a.split.panels; ++j)
      pack_panel(from, a.p.b_row_stride, a.p.b_column_stride, a.p.k, a.p.n, j,
                 packed + j * kPanel * depth_of<U>(a.p.k));
    for (int64_t j = 0; j < a.split.count(); ++j) run_split<T, U>(a, data, packed, i, j);
  }
  return {};
}

template <class T, class U>
Status pack_weight(const void* args, const Data& data, int64_t begin, int64_t end) {
  pack_panels(*static_cast<const Product*>(args), input<T>(data, 0), output<U>(data), begin, end);
  return {};
}

struct Phases {
  PhaseFn packed, pack, scratch, batch, weight;
};

template <class T, class U>
constexpr Phases kPhases{packed_phase<T, U>, pack_phase<T, U>, scratch_phase<T, U>,
                         batch_phase<T, U>, pack_weight<T, U>};

template <class U>
const Phases& phases_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return kPhases<F16, U>;
    case DType::bf16: return kPhases<BF16, U>;
    default: return kPhases<float, U>;
  }
}

// What sums begin with.
void set_start(ProductArgs& args, const View& start, int slot) {
  args.start_slot = slot;
  args.is_start_whole = start.is_contiguous() && args.pitch == args.p.n;
  for (int i = 0; i + 1 < start.rank; ++i) args.start_rows.add(start.dims[i], start.strides[i]);
  args.start_stride = start.rank > 0 ? start.stride(-1) : 1;
}

// The arguments of a call: see rows.h.
template <class U>
ProductArgs* make_args(const Call& call, const Stack& b, Plan& plan) {
  auto* args = plan.make<ProductArgs>();
  plan.args = args;
  args->p = product_of(stack_of(call.in[0], true, call.ints[0] != 0), b);
  const Product& p = args->p;
  args->pitch = call.out[0].is_contiguous() ? p.n : row_pitch(call.out[0]);
  args->split = split_product(p.m, p.n, depth_of<U>(p.k));
  args->packed_floats = packed_floats(depth_of<U>(p.k), p.n);
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

template <class U>
void plan_product(const Call& call, Plan& plan) {
  ProductArgs& args = *make_args<U>(call, stack_of(call.in[1], false, call.ints[1] != 0), plan);
  const DType dtype = call.in[0].dtype;
  if (dtype == DType::f32 && plan_thin(args, plan)) return;
  const Phases& phases = phases_of<U>(dtype);
  const Product& p = args.p;
  const int64_t own = args.packed_floats * int64_t(sizeof(U));
  const int64_t work = args.split.work * args.split.count();
  if (p.batches >= kOwnBatches && p.b.count() == p.batches && own <= kMostOwn) {
    plan.local_bytes += own;
    args.split = whole_split(p.m, p.n, args.split);
    plan.add(phases.batch, p.m > 0 && p.n > 0 ? p.batches : 0, work);
    return;
  }
  const int64_t blocks = p.batches * args.split.count(), matrices = p.b.count();
  plan.scratch_bytes = matrices * own;
  plan.add(phases.pack, blocks > 0 ? matrices * args.split.panels : 0, p.k * 4);
  plan.add(phases.scratch, blocks, args.split.work);
}

template <class U>
void plan_packed(const Call& call, Plan& plan) {
  View b;  // what was packed, as its dims are given
  b.rank = int(call.ints[3]);
  for (int i = 0; i < b.rank; ++i) b.dims[i] = call.ints[4 + i];
  b.pack();
  ProductArgs& args = *make_args<U>(call, stack_of(b, false, false), plan);
  plan.add(phases_of<U>(call.in[0].dtype).packed, args.p.batches * args.split.count(),
           args.split.work);
}

template <class U>
void plan_pack(const Call& call, Plan& plan) {
  auto* args = plan.make<Product>();
  const Stack b = stack_of(call.in[0], false, call.ints[0] != 0);
  Stack a;
  a.columns = b.rows;
  *args = product_of(a, b);
  plan.args = args;
  plan.add(phases_of<U>(call.in[0].dtype).weight, args->b.count() * panels_of(args->n),
           args->k * 4);
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
  const DType dtype = call.in[0].dtype;
  const bool is_wide = dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
  if (!is_wide || (dtype == DType::f32 && is_tiny(call))) return matmul_plain(call, plan);
  plan_product<float>(call, plan);
  return {};
}

Status matmul_bf16(const Call& call, Plan& plan) {
  plan_product<Pair>(call, plan);
  return {};
}

Status matmul_packed(const Call& call, Plan& plan) {
  plan_packed<float>(call, plan);
  return {};
}

Status matmul_packed_bf16(const Call& call, Plan& plan) {
  plan_packed<Pair>(call, plan);
  return {};
}

Status matmul_pack(const Call& call, Plan& plan) {
  plan_pack<float>(call, plan);
  return {};
}

Status matmul_pack_bf16(const Call& call, Plan& plan) {
  plan_pack<Pair>(call, plan);
  return {};
}

}  // namespace sdx::SDX_ISA
