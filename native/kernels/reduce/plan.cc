// How a reduction is cut up: which axes are loops, which lie side by side, and in how many parts.
#include "kernels/reduce/reduce.h"
#include "kernels/reduce/rows.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kFewItems = 16;        // fewer do not keep threads busy
constexpr int64_t kPartNumbers = 32768;  // of a reduction that is cut for them
constexpr int64_t kShortRun = 8;         // numbers; shorter runs cost more than a gather

bool takes_columns(const ReduceArgs& a) {
  if (a.kept.n == 0) return false;
  if (a.reduced.n == 0) return true;
  const bool has_runs = a.reduced.last_step() == 1;
  if (has_runs) return a.n < kShortRun && a.kept.last_size() > a.n;
  return a.kept.last_step() == 1 || a.kept.last_size() > a.reduced.last_size();
}

}  // namespace

bool plan_reduction(const Call& call, int64_t block_columns, ReduceArgs& args) {
  const View& x = call.in[0];
  const uint64_t reduced = uint64_t(call.ints[0]);
  int64_t out = 1, outs[kMaxRank];
  for (int i = x.rank - 1; i >= 0; --i) {
    outs[i] = out;
    if (!(reduced >> i & 1)) out *= x.dims[i];
  }
  for (int i = 0; i < x.rank; ++i) {
    if (reduced >> i & 1)
      args.reduced.add(x.dims[i], x.strides[i], 0);
    else
      args.kept.add(x.dims[i], x.strides[i], outs[i]);
  }
  args.kept.sort(), args.kept.merge();
  args.reduced.sort(), args.reduced.merge();
  args.n_out = args.kept.count(), args.n = args.reduced.count();

  const bool has_columns = takes_columns(args);
  int64_t items = args.n_out;
  if (has_columns) {
    args.columns = args.kept.last_size() < block_columns ? args.kept.last_size() : block_columns;
    if (args.columns < 1) args.columns = 1;
    args.blocks = (args.kept.last_size() + args.columns - 1) / args.columns;
    items = args.kept.count(args.kept.n - 1) * args.blocks;
  }
  args.chunk = args.n;
  const int64_t part = kPartNumbers / args.columns;
  if (items < kFewItems && args.n >= 2 * part && items > 0) {
    args.chunk = part;
    args.n_chunks = (args.n + part - 1) / part;
  }
  return has_columns;
}

}  // namespace sdx::SDX_ISA
