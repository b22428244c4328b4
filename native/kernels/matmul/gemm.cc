// GEMM: matmuls of f32, f16 and bf16, accumulated in f32 and rounded once. Phases are instantiated
// for the type of A (T) and the element of packed B (U): float, or bf16 pairs, to which both sides
// are rounded. Three plans:
//   B prepacked (constant weights)    one phase over blocks of the output
//   B packed at run time              a phase that packs B into scratch memory, then the blocks;
//                                     a large B in stripes of columns, one after the other
//   many small batches                an item per batch, which packs its B into local memory
#include "kernels/matmul/gemm.h"

#include "kernels/matmul/kernels.h"
#include "kernels/row_stride.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kMaxLocalB = 256 * 1024;  // bytes of packed B in local memory: a part of L2
constexpr int64_t kTiny = 256;  // multiplications below which packing costs more than the matmul
constexpr int64_t kMinBatchItems = 4;  // enough items to balance over threads
// Bytes of packed B in scratch memory, beyond which B is packed in stripes of columns. A stripe is
// as wide as this allows, but not narrower than kMinStripe panels: each copies all rows of A again.
constexpr int64_t kMaxScratchB = 16 << 20, kMinStripe = 4;

template <class T>
SDX_INLINE void round_row(const float* from, int64_t n, T* to) {
  vloop(n, [&](int64_t j, auto lanes) { store_float(to + j, load(from + j, lanes), lanes); });
}

// One block of the output: gemm_block with rows of A copied on the fly, then the epilogue program
// over the finished block. `packed` begins with the panel `origin` of B.
template <class T, class U>
void run_block(const GemmArgs& a, const Data& data, const U* packed, int64_t origin,
               const OutputTile& at) {
  const MatMulShape& p = a.p;
  const T* from = input<T>(data, 0) + p.a.offset(at.batch);
  Target acc{reinterpret_cast<float*>(data.local + a.c_at), kMaxColumns};
  if (!a.is_buffered)
    acc = {output<float>(data) + (at.batch * p.m + at.row) * a.out_row_stride + at.column,
           a.out_row_stride};
  TileEpilogue finish = a.finish;
  if (a.bias_operand >= 0) finish.bias = input<float>(data, a.bias_operand) + origin * kPanel;
  finish.start = start_of(a, data, at, acc);
  finish.start_stride = a.is_start_whole ? p.n : acc.ldc;
  const int64_t first = at.column / kPanel - origin;
  const ColumnsOf<U> b{packed, p.n - origin * kPanel, first, first + panels_of(at.columns)};
  gemm_block(data.local, at.rows, depth_of<U>(p.k), b, acc, finish,
             [&](U* into, int64_t row, int64_t rows, int64_t depth, int64_t depths) {
               fill_rows(p, from, into, at.row + row, rows, depth, depths);
             });
  if (a.is_buffered || a.chain != nullptr) finish_tile(a, data, at, acc);
}

// Item `item` of a split of the panels that `packed` holds, which begin with the panel `origin`.
template <class T, class U>
void run_split(const GemmArgs& a, const Split& s, const Data& data, const U* packed, int64_t origin,
               int64_t batch, int64_t item) {
  const int64_t r = item % s.row_blocks, c = item / s.row_blocks;
  const int64_t column = (origin + s.panel(c)) * kPanel, end = (origin + s.panel(c + 1)) * kPanel;
  if (column == end) return;  // the split is that of a wider stripe
  run_block<T, U>(
      a, data, packed, origin,
      {batch, s.row(r), s.row(r + 1) - s.row(r), column, (end < a.p.n ? end : a.p.n) - column});
}

// Items: blocks of all batches.
template <class T, class U>
Status blocks(const GemmArgs& a, const Data& data, const U* packed, int64_t begin, int64_t end) {
  const int64_t each = a.split.count();
  for (int64_t i = begin; i < end; ++i)
    run_split<T, U>(a, a.split, data,
                    packed + a.p.b_matrix_index.offset(i / each) * a.packed_floats, 0, i / each,
                    i % each);
  return {};
}

template <class T, class U>
Status packed_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  return blocks<T, U>(*static_cast<const GemmArgs*>(args), data, input<U>(data, 1), begin, end);
}

template <class T, class U>
Status pack_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  pack_panels(static_cast<const GemmArgs*>(args)->p, input<T>(data, 1),
              reinterpret_cast<U*>(data.scratch), begin, end);
  return {};
}

template <class T, class U>
Status scratch_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  return blocks<T, U>(*static_cast<const GemmArgs*>(args), data,
                      reinterpret_cast<const U*>(data.scratch), begin, end);
}

// Items: parts of a stripe's panels in even rounds, which pack it; its blocks in odd ones.
template <class T, class U>
Status stripe_rounds(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GemmArgs*>(args);
  const MatMulShape& p = a.p;
  const int64_t panels = panels_of(p.n), number = data.round / 2;
  const int64_t origin = part_begin(panels, a.stripes, number);
  auto* packed = reinterpret_cast<U*>(data.scratch);
  Split split = a.split;
  split.panels = part_begin(panels, a.stripes, number + 1) - origin;
  if (data.round % 2 == 0) {
    const int64_t last = part_begin(split.panels, split.count(), end);
    for (int64_t j = part_begin(split.panels, split.count(), begin); j < last; ++j)
      pack_panel(input<T>(data, 1), p.b_row_stride, p.b_column_stride, p.k, p.n, origin + j,
                 packed + j * kPanel * depth_of<U>(p.k));
    return {};
  }
  for (int64_t i = begin; i < end; ++i) run_split<T, U>(a, split, data, packed, origin, 0, i);
  return {};
}

// Items: batches, each of which packs its own B. No barrier and no shared scratch between packing
// and multiplying, which dominates for the small matrices of attention-like graphs.
template <class T, class U>
Status batch_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GemmArgs*>(args);
  auto* packed = reinterpret_cast<U*>(data.local + a.b_at);
  for (int64_t i = begin; i < end; ++i) {
    const T* from = input<T>(data, 1) + a.p.b.offset(a.p.b_matrix_index.offset(i));
    for (int64_t j = 0; j < a.split.panels; ++j)
      pack_panel(from, a.p.b_row_stride, a.p.b_column_stride, a.p.k, a.p.n, j,
                 packed + j * kPanel * depth_of<U>(a.p.k));
    for (int64_t j = 0; j < a.split.count(); ++j)
      run_split<T, U>(a, a.split, data, packed, 0, i, j);
  }
  return {};
}

template <class T, class U>
Status pack_weight(const void* args, const Data& data, int64_t begin, int64_t end) {
  pack_panels(*static_cast<const MatMulShape*>(args), input<T>(data, 0), output<U>(data), begin,
              end);
  return {};
}

struct Phases {
  PhaseFn packed, pack, scratch, stripes, batch, weight;
};

template <class T, class U>
constexpr Phases kPhases{packed_phase<T, U>,  pack_phase<T, U>,  scratch_phase<T, U>,
                         stripe_rounds<T, U>, batch_phase<T, U>, pack_weight<T, U>};

template <class U>
const Phases& phases_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return kPhases<F16, U>;
    case DType::bf16: return kPhases<BF16, U>;
    default: return kPhases<float, U>;
  }
}

// Layout of the initial accumulators.
void set_start(GemmArgs& args, const View& start, int operand) {
  args.start_operand = operand;
  args.is_start_whole = start.is_contiguous() && args.out_row_stride == args.p.n;
  for (int i = 0; i + 1 < start.rank; ++i) args.start_rows.add(start.dims[i], start.strides[i]);
  args.start_stride = start.rank > 0 ? start.stride(-1) : 1;
}

// Arguments of a call (kernels.h), and the offsets in local memory: rows of A, accumulators if they
// are buffered, the epilogue's tiles, the packed B of one batch.
template <class U>
GemmArgs* make_args(const Call& call, const MatrixBatch& b, Plan& plan) {
  auto* args = plan.make<GemmArgs>();
  plan.args = args;
  args->p = matmul_shape(matrix_batch(call.in[0], true, call.ints[0] != 0), b);
  const MatMulShape& p = args->p;
  args->out_row_stride = call.out[0].is_contiguous() ? p.n : row_stride(call.out[0]);
  args->split = split_matmul(p.m, p.n, depth_of<U>(p.k));
  args->packed_floats = packed_floats(depth_of<U>(p.k), p.n);
  args->finish.alpha = float(call.floats[0]);
  args->finish.relu = (call.ints[2] & kRelu) != 0;
  int operand = 2;
  args->bias_operand = (call.ints[2] & kBias) != 0 ? operand++ : -1;
  args->start_operand = -1;
  if ((call.ints[2] & kStart) != 0) {
    set_start(*args, call.in[operand], operand);
    ++operand;
  }
  args->to = call.out[0].dtype;
  args->is_buffered = args->to != DType::f32 || (call.ints[2] & kBuffered) != 0;
  args->chain = chain_prepare(call, operand, 4 + int(call.ints[3]), 1, plan);
  args->c_at = kBlockBytes;
  args->chain_at = args->c_at;
  if (args->is_buffered) args->chain_at += kBlockRows * kMaxColumns * int64_t(sizeof(float));
  args->b_at = args->chain_at + chain_local_bytes(args->chain);
  plan.local_bytes = args->b_at;
  return args;
}

// Whether any preparation would take longer than the matmul, and there is no epilogue.
bool is_tiny(const Call& call) {
  if (call.ints[2] != 0 || call.ints[4] != 0) return false;
  const MatMulShape p = matmul_shape(matrix_batch(call.in[0], true, call.ints[0] != 0),
                                     matrix_batch(call.in[1], false, call.ints[1] != 0));
  return p.m * p.n * p.k <= kTiny;
}

// One item computes a whole batch, in blocks as large as local memory allows.
Split whole_split(int64_t m, int64_t n, Split split) {
  split.row_blocks = (m + kBlockRows - 1) / kBlockRows;
  split.column_blocks = (n + kMaxColumns - 1) / kMaxColumns;
  return split;
}

// Plans a B of one matrix that is too large to be packed as a whole; false if it is not.
template <class U>
bool plan_stripes(PhaseFn run, GemmArgs& args, Plan& plan) {
  const MatMulShape& p = args.p;
  const int64_t panel = kPanel * depth_of<U>(p.k) * int64_t(sizeof(U)), panels = panels_of(p.n);
  if (p.b.count() != 1 || p.m <= 0 || panel * panels <= kMaxScratchB) return false;
  const int64_t widest = kMaxScratchB / panel > kMinStripe ? kMaxScratchB / panel : kMinStripe;
  if (panels <= widest) return false;
  args.stripes = (panels + widest - 1) / widest;
  const int64_t width = (panels + args.stripes - 1) / args.stripes;
  args.split = split_matmul(p.m, width * kPanel, depth_of<U>(p.k));
  plan.scratch_bytes = width * panel;
  plan.add(run, args.split.count(), args.split.work, 2 * args.stripes);
  return true;
}

template <class U>
void plan_gemm(const Call& call, Plan& plan) {
  GemmArgs& args = *make_args<U>(call, matrix_batch(call.in[1], false, call.ints[1] != 0), plan);
  const DType dtype = call.in[0].dtype;
  if (dtype == DType::f32 && plan_gemv(args, plan)) return;
  const Phases& phases = phases_of<U>(dtype);
  const MatMulShape& p = args.p;
  const int64_t own = args.packed_floats * int64_t(sizeof(U));
  const int64_t work = args.split.work * args.split.count();
  if (p.batches >= kMinBatchItems && p.b.count() == p.batches && own <= kMaxLocalB) {
    plan.local_bytes += own;
    args.split = whole_split(p.m, p.n, args.split);
    plan.add(phases.batch, p.m > 0 && p.n > 0 ? p.batches : 0, work);
    return;
  }
  if (plan_stripes<U>(phases.stripes, args, plan)) return;
  const int64_t blocks = p.batches * args.split.count(), matrices = p.b.count();
  plan.scratch_bytes = matrices * own;
  plan.add(phases.pack, blocks > 0 ? matrices * args.split.panels : 0, p.k * 4);
  plan.add(phases.scratch, blocks, args.split.work);
}

// The packed B has lost its shape, so its dims are passed as ints.
template <class U>
void plan_packed(const Call& call, Plan& plan) {
  View b;  // what was packed, as its dims are given
  b.rank = int(call.ints[3]);
  for (int i = 0; i < b.rank; ++i) b.dims[i] = call.ints[4 + i];
  b.set_contiguous_strides();
  GemmArgs& args = *make_args<U>(call, matrix_batch(b, false, false), plan);
  plan.add(phases_of<U>(call.in[0].dtype).packed, args.p.batches * args.split.count(),
           args.split.work);
}

template <class U>
void plan_pack(const Call& call, Plan& plan) {
  auto* args = plan.make<MatMulShape>();
  const MatrixBatch b = matrix_batch(call.in[0], false, call.ints[0] != 0);
  MatrixBatch a;
  a.columns = b.rows;
  *args = matmul_shape(a, b);
  plan.args = args;
  plan.add(phases_of<U>(call.in[0].dtype).weight, args->b.count() * panels_of(args->n),
           args->k * 4);
}

}  // namespace

const float* start_of(const GemmArgs& a, const Data& data, const OutputTile& at,
                      const Target& acc) {
  if (a.start_operand < 0) return nullptr;
  const float* from = input<float>(data, a.start_operand);
  const int64_t row = at.batch * a.p.m + at.row;
  if (a.is_start_whole) return from + row * a.p.n + at.column;
  for (int64_t i = 0; i < at.rows; ++i) {
    const float* line = from + a.start_rows.offset(row + i) + at.column * a.start_stride;
    for (int64_t j = 0; j < at.columns; ++j) acc.c[i * acc.ldc + j] = line[j * a.start_stride];
  }
  return acc.c;
}

void finish_tile(const GemmArgs& a, const Data& data, const OutputTile& at, const Target& acc) {
  for (int64_t i = 0; i < at.rows; ++i) {
    const int64_t row = at.batch * a.p.m + at.row + i;
    const float* from = acc.c + i * acc.ldc;
    std::byte* to = output<std::byte>(data) + (row * a.out_row_stride + at.column) * size_of(a.to);
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
  if (!is_wide || (dtype == DType::f32 && is_tiny(call))) return matmul_naive(call, plan);
  plan_gemm<float>(call, plan);
  return {};
}

Status matmul_bf16(const Call& call, Plan& plan) {
  plan_gemm<Bf16Pair>(call, plan);
  return {};
}

Status matmul_packed(const Call& call, Plan& plan) {
  plan_packed<float>(call, plan);
  return {};
}

Status matmul_packed_bf16(const Call& call, Plan& plan) {
  plan_packed<Bf16Pair>(call, plan);
  return {};
}

Status matmul_pack(const Call& call, Plan& plan) {
  plan_pack<float>(call, plan);
  return {};
}

Status matmul_pack_bf16(const Call& call, Plan& plan) {
  plan_pack<Bf16Pair>(call, plan);
  return {};
}

}  // namespace sdx::SDX_ISA
