// TreeEnsembleClassifier and TreeEnsembleRegressor. With many rows, groups of 16 rows traverse one
// tree in lockstep, tree by tree, so that a tree's nodes stay in cache for a whole block of rows.
// With few rows, one row traverses 16 trees in lockstep, trees are split over threads, and a second
// phase adds the leaves up in tree order, so that results do not depend on the split.
#include "kernels/estimator_output.h"
#include "kernels/kernel.h"
#include "kernels/trees/forest.h"

namespace sdx::SDX_ISA {
namespace {

enum Operand : int { kX, kNodes, kRoots, kFirst, kTarget, kWeight, kBase, kLabels };
enum class Aggregate : int64_t { average, sum, min, max };

constexpr int64_t kTreesPerItem = 64;       // four lockstep groups
constexpr int64_t kBlockBytes = 24 * 1024;  // features and scores of a block of rows: most of L1

struct TreesArgs {
  OutputRule rule;
  Aggregate aggregate;
  DType dtype;  // of x
  int64_t row_stride, column_stride;
  int64_t n_rows, n_trees, width, n_targets, n_groups, block_groups, tree_items;
  bool has_nan_branches;  // some node sends missing values to its true branch
  bool counts_votes;  // min and max, or targets without votes, need to know which targets got votes
  bool has_first, has_target, is_double;  // is_double: the output is float64
};

// The votes (target, weight) of the leaves, in one of three layouts: CSR (`first`), one vote per
// leaf (`target` alone), or one weight per target for every leaf (neither).
struct Votes {
  const int32_t* first;   // by leaf, with a last entry for the end; null: not CSR
  const int32_t* target;  // null: each leaf has all targets in order
  const double* weight;
  int64_t n_targets;
};

SDX_INLINE Votes votes_of(const TreesArgs& a, const Data& data) {
  return {a.has_first ? input<int32_t>(data, kFirst) : nullptr,
          a.has_target ? input<int32_t>(data, kTarget) : nullptr, input<double>(data, kWeight),
          a.n_targets};
}

// Adds the votes of a leaf to the scores of a row.
SDX_INLINE void add_votes(const Votes& v, uint32_t leaf, double* scores) {
  if (v.first != nullptr) {
    for (int32_t i = v.first[leaf]; i < v.first[leaf + 1]; ++i) scores[v.target[i]] += v.weight[i];
  } else if (v.target != nullptr) {
    scores[v.target[leaf]] += v.weight[leaf];
  } else {
    const double* weight = v.weight + int64_t(leaf) * v.n_targets;
    for (int64_t t = 0; t < v.n_targets; ++t) scores[t] += weight[t];
  }
}

SDX_INLINE double extreme(double a, double b, bool is_min) {
  if (a != a) return a;
  return (is_min ? a < b : a > b) ? a : b;
}

// The same for any aggregate, recording which targets had votes.
SDX_INLINE void count_votes(const Votes& v, Aggregate how, uint32_t leaf, double* scores,
                            uint8_t* voted) {
  int64_t begin = leaf, end = int64_t(leaf) + 1;
  if (v.first != nullptr) {
    begin = v.first[leaf], end = v.first[leaf + 1];
  } else if (v.target == nullptr) {
    begin *= v.n_targets, end *= v.n_targets;
  }
  for (int64_t i = begin; i < end; ++i) {
    const int64_t t = v.target == nullptr ? i - begin : v.target[i];
    const bool is_sum = how == Aggregate::sum || how == Aggregate::average;
    const double weight = v.weight[i];
    scores[t] = is_sum      ? scores[t] + weight
                : !voted[t] ? weight
                            : extreme(scores[t], weight, how == Aggregate::min);
    voted[t] = 1;
  }
}

template <class T>
SDX_INLINE T number_at(const void* x, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::f32: return T(static_cast<const float*>(x)[i]);
    case DType::f64: return T(static_cast<const double*>(x)[i]);
    case DType::i32: return T(static_cast<const int32_t*>(x)[i]);
    default: return T(static_cast<const int64_t*>(x)[i]);
  }
}

// Copies the features of one row, `stride` apart, in the precision of the thresholds; returns
// whether one is NaN.
template <class T>
bool read_row(const TreesArgs& a, const void* x, int64_t row, T* out, int64_t stride) {
  bool has_nan = false;
  for (int64_t f = 0; f < a.width; ++f) {
    const T value = number_at<T>(x, a.dtype, row * a.row_stride + f * a.column_stride);
    has_nan |= value != value;
    out[f * stride] = value;
  }
  return has_nan;
}

// Average, base values and post-transform of a row whose scores are complete.
void finish_row(const TreesArgs& a, const Data& data, int64_t row, double* scores,
                const uint8_t* voted) {
  const double* base = input<double>(data, kBase);
  for (int64_t t = 0; t < a.n_targets; ++t) {
    if (a.aggregate == Aggregate::average) scores[t] /= double(a.n_trees);
    scores[t] += base[t];
  }
  const int64_t n = a.rule.n_columns;
  if (a.rule.label_rule != LabelRule::none) {
    int64_t* label = output<int64_t>(data, 0);
    write_estimator_row(a.rule, scores, voted, input<int64_t>(data, kLabels), label + row,
                        output<float>(data, 1) + row * n);
  } else if (a.is_double) {
    write_estimator_row(a.rule, scores, voted, nullptr, nullptr, output<double>(data) + row * n);
  } else {
    write_estimator_row(a.rule, scores, voted, nullptr, nullptr, output<float>(data) + row * n);
  }
}

// A block of rows in groups of kLockstep; within a group features are interleaved ([feature, row]).
template <class T>
struct Block {
  T* x;
  double* scores;  // [rows, pitch]
  uint8_t* voted;  // [rows, n_targets]
  bool* has_nan;   // by group
  int64_t pitch;   // max(scores, output columns) of a row
  int64_t n_groups;
};

SDX_INLINE int64_t score_pitch(const TreesArgs& a) {
  return a.n_targets > a.rule.n_columns ? a.n_targets : a.rule.n_columns;
}

template <class T>
Block<T> block_of(const TreesArgs& a, std::byte* local) {
  const int64_t rows = a.block_groups * kLockstep;
  Block<T> b{};
  b.pitch = score_pitch(a);
  b.scores = reinterpret_cast<double*>(local);
  b.x = reinterpret_cast<T*>(b.scores + rows * b.pitch);
  b.voted = reinterpret_cast<uint8_t*>(b.x + rows * a.width);
  b.has_nan = reinterpret_cast<bool*>(b.voted + rows * a.n_targets);
  return b;
}

// Rows beyond the last are copies of it, so that every lane of a group traverses valid data.
template <class T>
void fill_block(const TreesArgs& a, const void* x, int64_t row, Block<T>& b) {
  for (int64_t g = 0; g < b.n_groups; ++g) {
    bool has_nan = false;
    for (int64_t w = 0; w < kLockstep; ++w) {
      const int64_t at = row + g * kLockstep + w;
      T* to = b.x + g * kLockstep * a.width + w;
      has_nan |= read_row(a, x, at < a.n_rows ? at : a.n_rows - 1, to, kLockstep);
    }
    b.has_nan[g] = has_nan && a.has_nan_branches;
  }
  memset(b.scores, 0, size_t(b.n_groups * kLockstep * b.pitch) * sizeof(double));
  memset(b.voted, 0, size_t(b.n_groups * kLockstep * a.n_targets));
}

// All trees over one block; calls vote(row, leaf). Trees are the outer loop: their nodes are larger
// than the block, and each is read once per block.
template <class Node, class Vote>
SDX_INLINE void traverse_block(const TreesArgs& a, const Data& data,
                               const Block<typename Node::Number>& b, Vote&& vote) {
  const Node* nodes = input<Node>(data, kNodes);
  const Root* roots = input<Root>(data, kRoots);
  for (int64_t t = 0; t < a.n_trees; ++t) {
    const Root root = roots[t];
    for (int64_t g = 0; g < b.n_groups; ++g) {
      const Node* at[kLockstep];
      for (const Node*& p : at) p = nodes + root.start;
      const auto* x = b.x + g * kLockstep * a.width;
      if (b.has_nan[g])
        traverse<true, 1, kLockstep>(at, x, root.most_steps, root.all_steps);
      else
        traverse<false, 1, kLockstep>(at, x, root.most_steps, root.all_steps);
      for (int w = 0; w < kLockstep; ++w) vote(g * kLockstep + w, at[w]->leaf());
    }
  }
}

// Many rows: items are blocks of rows. The voting loop is specialized for the three common cases.
template <class Node>
Status by_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  using T = typename Node::Number;
  const auto& a = *static_cast<const TreesArgs*>(args);
  const Votes votes = votes_of(a, data);
  Block<T> b = block_of<T>(a, data.local);
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * a.block_groups, left = a.n_groups - first;
    b.n_groups = left < a.block_groups ? left : a.block_groups;
    fill_block(a, data.in[kX], first * kLockstep, b);
    if (a.counts_votes) {
      traverse_block<Node>(a, data, b, [&](int64_t row, uint32_t leaf) {
        double* scores = b.scores + row * b.pitch;
        count_votes(votes, a.aggregate, leaf, scores, b.voted + row * a.n_targets);
      });
    } else if (a.n_targets == 1 && !a.has_first) {
      traverse_block<Node>(a, data, b, [&](int64_t row, uint32_t leaf) {
        b.scores[row * b.pitch] += votes.weight[leaf];
      });
    } else {
      traverse_block<Node>(a, data, b, [&](int64_t row, uint32_t leaf) {
        add_votes(votes, leaf, b.scores + row * b.pitch);
      });
    }
    const int64_t last = first * kLockstep + b.n_groups * kLockstep;
    for (int64_t row = first * kLockstep; row < last && row < a.n_rows; ++row) {
      const int64_t i = row - first * kLockstep;
      const uint8_t* voted = a.counts_votes ? b.voted + i * a.n_targets : nullptr;
      finish_row(a, data, row, b.scores + i * b.pitch, voted);
    }
  }
  return {};
}

// Few rows, phase 1: items are (row, kTreesPerItem trees); writes the leaf of every tree.
template <class Node>
Status by_trees(const void* args, const Data& data, int64_t begin, int64_t end) {
  using T = typename Node::Number;
  const auto& a = *static_cast<const TreesArgs*>(args);
  const Node* nodes = input<Node>(data, kNodes);
  const Root* roots = input<Root>(data, kRoots);
  auto* leaves = reinterpret_cast<uint32_t*>(data.scratch);
  T* x = reinterpret_cast<T*>(data.local);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / a.tree_items, from = item % a.tree_items * kTreesPerItem;
    const int64_t to = from + kTreesPerItem < a.n_trees ? from + kTreesPerItem : a.n_trees;
    const bool has_nan = read_row(a, data.in[kX], row, x, 1) && a.has_nan_branches;
    for (int64_t t = from; t < to; t += kLockstep) {
      const Node* at[kLockstep];
      int most_steps = 0, all_steps = 0;
      for (int w = 0; w < kLockstep; ++w) {
        const Root& root = roots[t + w < to ? t + w : to - 1];
        at[w] = nodes + root.start;
        most_steps = root.most_steps > most_steps ? root.most_steps : most_steps;
        all_steps = root.all_steps > all_steps ? root.all_steps : all_steps;
      }
      if (has_nan)
        traverse<true, 0, 1>(at, x, most_steps, all_steps);
      else
        traverse<false, 0, 1>(at, x, most_steps, all_steps);
      for (int w = 0; w < kLockstep && t + w < to; ++w)
        leaves[row * a.n_trees + t + w] = at[w]->leaf();
    }
  }
  return {};
}

// Few rows, phase 2: items are rows; adds the votes of all leaves in tree order.
Status sum_leaves(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TreesArgs*>(args);
  const Votes votes = votes_of(a, data);
  auto* scores = reinterpret_cast<double*>(data.local);
  auto* voted = reinterpret_cast<uint8_t*>(scores + score_pitch(a));
  for (int64_t row = begin; row < end; ++row) {
    const uint32_t* leaves = reinterpret_cast<const uint32_t*>(data.scratch) + row * a.n_trees;
    memset(scores, 0, size_t(score_pitch(a)) * sizeof(double));
    memset(voted, 0, size_t(a.n_targets));
    for (int64_t t = 0; t < a.n_trees; ++t) {
      if (a.counts_votes)
        count_votes(votes, a.aggregate, leaves[t], scores, voted);
      else
        add_votes(votes, leaves[t], scores);
    }
    finish_row(a, data, row, scores, a.counts_votes ? voted : nullptr);
  }
  return {};
}

// ints: the rule, then aggregate, features, trees, average depth, whether a node sends missing
// values to its true branch, whether votes are counted.
SDX_INLINE TreesArgs* read_args(const Call& call, Plan& plan) {
  auto* a = plan.make<TreesArgs>();
  const View& x = call.in[kX];
  const int64_t* ints = call.ints + kOutputRuleInts;
  a->rule = read_output_rule(call.ints);
  a->aggregate = Aggregate(ints[0]);
  a->width = ints[1];
  a->n_trees = ints[2];
  a->has_nan_branches = ints[4] != 0;
  a->counts_votes = ints[5] != 0;
  a->n_targets = a->rule.n_scores;
  a->dtype = x.dtype;
  a->is_double = call.out[0].dtype == DType::f64;
  a->n_rows = x.rank == 1 ? 1 : x.dims[0];
  a->row_stride = x.rank == 1 ? 0 : x.strides[0];
  a->column_stride = x.stride(-1);
  a->has_first = call.in[kFirst].is_given();
  a->has_target = call.in[kTarget].is_given();
  return a;
}

template <class Node>
Status trees(const Call& call, Plan& plan) {
  using T = typename Node::Number;
  TreesArgs* a = read_args(call, plan);
  plan.args = a;
  const int64_t steps = call.ints[kOutputRuleInts + 3], pitch = score_pitch(*a);
  if (a->n_rows < kLockstep) {
    a->tree_items = (a->n_trees + kTreesPerItem - 1) / kTreesPerItem;
    plan.scratch_bytes = a->n_rows * a->n_trees * int64_t(sizeof(uint32_t));
    const int64_t row_bytes = a->width * int64_t(sizeof(T)), sum_bytes = pitch * 8 + a->n_targets;
    plan.local_bytes = row_bytes > sum_bytes ? row_bytes : sum_bytes;
    plan.add(by_trees<Node>, a->n_rows * a->tree_items, kTreesPerItem * steps);
    plan.add(sum_leaves, a->n_rows, a->n_trees);
    return {};
  }
  a->n_groups = (a->n_rows + kLockstep - 1) / kLockstep;
  const int64_t group_bytes = kLockstep * (a->width * int64_t(sizeof(T)) + pitch * 8);
  // At most a quarter of all groups per block: four threads get work even if all rows fit one
  // block.
  const int64_t fit = kBlockBytes / (group_bytes + 1), share = (a->n_groups + 3) / 4;
  const int64_t groups = fit < share ? fit : share;
  a->block_groups = groups < 1 ? 1 : groups;
  const int64_t n_blocks = (a->n_groups + a->block_groups - 1) / a->block_groups;
  plan.local_bytes = a->block_groups * (group_bytes + kLockstep * a->n_targets + 1);
  plan.add(by_rows<Node>, n_blocks, a->block_groups * kLockstep * a->n_trees * steps / 2);
  return {};
}

constexpr Kernel kKernels[] = {
    {"trees_compact", Accepts::any, trees<CompactNode>},
    {"trees_wide", Accepts::any, trees<WideNode>},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(trees, kKernels)
