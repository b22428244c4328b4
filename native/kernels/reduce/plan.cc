// The loop structure of a reduction: which axes are merged, whether vectors run along reduced axes
// (runs) or kept ones (columns), and into how many chunks the reduced range is split.
#include "kernels/reduce/kernels.h"
#include "kernels/reduce/reduce.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kFewItems = 16;          // with fewer outputs the reduced range is split, too
constexpr int64_t kChunkElements = 32768;  // elements of such a chunk: 128 KiB, some microseconds
constexpr int64_t kShortRun = 8;  // elements; reducing shorter runs costs more than columns

// Columns where kept elements are contiguous, or the denser of the two; runs where reduced ones
// are.
bool runs_along_columns(const ReduceArgs& a) {
  if (a.kept.n == 0) return false;
  if (a.reduced.n == 0) return true;
  const bool has_runs = a.reduced.last_stride() == 1;
  if (has_runs) return a.n < kShortRun && a.kept.last_size() > a.n;
  return a.kept.last_stride() == 1 || a.kept.last_size() > a.reduced.last_size();
}

}  // namespace

bool plan_reduction(const Call& call, int64_t block_columns, ReduceArgs& args) {
  const View& x = call.in[0];
  const uint64_t reduced = uint64_t(call.ints[0]);
  int64_t out = 1, out_strides[kMaxRank];
  for (int i = x.rank - 1; i >= 0; --i) {
    out_strides[i] = out;
    if (!(reduced >> i & 1)) out *= x.dims[i];
  }
  for (int i = 0; i < x.rank; ++i) {
    if (reduced >> i & 1)
      args.reduced.add(x.dims[i], x.strides[i], 0);
    else
      args.kept.add(x.dims[i], x.strides[i], out_strides[i]);
  }
  args.kept.sort(), args.kept.merge();
  args.reduced.sort(), args.reduced.merge();
  args.n_out = args.kept.count(), args.n = args.reduced.count();

  const bool has_columns = runs_along_columns(args);
  int64_t items = args.n_out;
  if (has_columns) {
    args.columns = args.kept.last_size() < block_columns ? args.kept.last_size() : block_columns;
    if (args.columns < 1) args.columns = 1;
    args.blocks = (args.kept.last_size() + args.columns - 1) / args.columns;
    items = args.kept.count(args.kept.n - 1) * args.blocks;
  }
  // Chunks depend on sizes only, never on the number of threads, so that results do not either.
  args.chunk = args.n;
  const int64_t chunk = kChunkElements / args.columns;
  if (items < kFewItems && args.n >= 2 * chunk && items > 0) {
    args.chunk = chunk;
    args.n_chunks = (args.n + chunk - 1) / chunk;
  }
  return has_columns;
}

}  // namespace sdx::SDX_ISA
