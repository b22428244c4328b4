// Tree ensembles. Many rows go down one tree together, or one row goes down many trees.
#include "kernels/kernel.h"
#include "kernels/scores.h"
#include "kernels/trees/forest.h"

namespace sdx::SDX_ISA {
namespace {

enum Slot { kX, kNodes, kRoots, kFirst, kTarget, kWeight, kBase, kLabels };
enum class Aggregate : int64_t { average, sum, min, max };

constexpr int64_t kTreesPerItem = 64;
constexpr int64_t kBlockBytes = 24 * 1024;  // features of the rows that go down a tree together

struct TreesArgs {
  Verdict verdict;
  Aggregate aggregate;
  DType dtype;  // of x
  int64_t row_step, column_step;
  int64_t n_rows, n_trees, width, n_targets, n_groups, block_groups, tree_items;
  bool is_asking_nan, is_counting;        // which targets got votes matters
  bool has_first, has_target, is_double;  // is_double: what goes out
};

// The forest and what its leaves say, as pointers of this run.
struct Votes {
  const int32_t* first;   // by leaf, one more behind; null where each leaf has as many votes
  const int32_t* target;  // null where each leaf speaks of all targets in order
  const double* weight;
  int64_t n_targets;
};

SDX_INLINE Votes votes_of(const TreesArgs& a, const Data& data) {
  return {a.has_first ? input<int32_t>(data, kFirst) : nullptr,
          a.has_target ? input<int32_t>(data, kTarget) : nullptr, input<double>(data, kWeight),
          a.n_targets};
}

// Adds the votes of a leaf to the sums of a row.
SDX_INLINE void add_votes(const Votes& v, uint32_t leaf, double* sums) {
  if (v.first != nullptr) {
    for (int32_t i = v.first[leaf]; i < v.first[leaf + 1]; ++i) sums[v.target[i]] += v.weight[i];
  } else if (v.target != nullptr) {
    sums[v.target[leaf]] += v.weight[leaf];
  } else {
    const double* weight = v.weight + int64_t(leaf) * v.n_targets;
    for (int64_t t = 0; t < v.n_targets; ++t) sums[t] += weight[t];
  }
}

SDX_INLINE double extreme(double a, double b, bool is_min) {
  if (a != a) return a;
  return (is_min ? a < b : a > b) ? a : b;
}

// The same for all aggregates, and says which targets had votes.
SDX_INLINE void count_votes(const Votes& v, Aggregate how, uint32_t leaf, double* sums,
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
    sums[t] = is_sum      ? sums[t] + weight
              : !voted[t] ? weight
                          : extreme(sums[t], weight, how == Aggregate::min);
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

// The features that trees ask of one row, `step` apart. Says whether one is missing.
template <class T>
bool read_row(const TreesArgs& a, const void* x, int64_t row, T* out, int64_t step) {
  bool has_nan = false;
  for (int64_t f = 0; f < a.width; ++f) {
    const T value = number_at<T>(x, a.dtype, row * a.row_step + f * a.column_step);
    has_nan |= value != value;
    out[f * step] = value;
  }
  return has_nan;
}

// Ends one row whose sums are complete.
void end_sums(const TreesArgs& a, const Data& data, int64_t row, double* sums,
              const uint8_t* voted) {
  const double* base = input<double>(data, kBase);
  for (int64_t t = 0; t < a.n_targets; ++t) {
    if (a.aggregate == Aggregate::average) sums[t] /= double(a.n_trees);
    sums[t] += base[t];
  }
  const int64_t n = a.verdict.n_columns;
  if (a.verdict.ending != Ending::values) {
    int64_t* label = output<int64_t>(data, 0);
    end_row(a.verdict, sums, voted, input<int64_t>(data, kLabels), label + row,
            output<float>(data, 1) + row * n);
  } else if (a.is_double) {
    end_row(a.verdict, sums, voted, nullptr, nullptr, output<double>(data) + row * n);
  } else {
    end_row(a.verdict, sums, voted, nullptr, nullptr, output<float>(data) + row * n);
  }
}

// Rows of one block, in groups of kWalks, with their features side by side in each group.
template <class T>
struct Block {
  T* x;
  double* sums;    // [rows, room]
  uint8_t* voted;  // [rows, n_targets]
  bool* has_nan;   // by group
  int64_t room;    // for sums and columns of a row
  int64_t n_groups;
};

SDX_INLINE int64_t room_of(const TreesArgs& a) {
  return a.n_targets > a.verdict.n_columns ? a.n_targets : a.verdict.n_columns;
}

template <class T>
Block<T> block_of(const TreesArgs& a, std::byte* local) {
  const int64_t rows = a.block_groups * kWalks;
  Block<T> b{};
  b.room = room_of(a);
  b.sums = reinterpret_cast<double*>(local);
  b.x = reinterpret_cast<T*>(b.sums + rows * b.room);
  b.voted = reinterpret_cast<uint8_t*>(b.x + rows * a.width);
  b.has_nan = reinterpret_cast<bool*>(b.voted + rows * a.n_targets);
  return b;
}

// Rows behind the last are copies of it: a walk must have somewhere to go.
template <class T>
void fill_block(const TreesArgs& a, const void* x, int64_t row, Block<T>& b) {
  for (int64_t g = 0; g < b.n_groups; ++g) {
    bool has_nan = false;
    for (int64_t w = 0; w < kWalks; ++w) {
      const int64_t at = row + g * kWalks + w;
      T* to = b.x + g * kWalks * a.width + w;
      has_nan |= read_row(a, x, at < a.n_rows ? at : a.n_rows - 1, to, kWalks);
    }
    b.has_nan[g] = has_nan && a.is_asking_nan;
  }
  memset(b.sums, 0, size_t(b.n_groups * kWalks * b.room) * sizeof(double));
  memset(b.voted, 0, size_t(b.n_groups * kWalks * a.n_targets));
}

template <class Node, class Vote>
SDX_INLINE void walk_block(const TreesArgs& a, const Data& data,
                           const Block<typename Node::Number>& b, Vote&& vote) {
  const Node* nodes = input<Node>(data, kNodes);
  const Root* roots = input<Root>(data, kRoots);
  for (int64_t t = 0; t < a.n_trees; ++t) {
    const Root root = roots[t];
    for (int64_t g = 0; g < b.n_groups; ++g) {
      const Node* at[kWalks];
      for (const Node*& p : at) p = nodes + root.start;
      const auto* x = b.x + g * kWalks * a.width;
      if (b.has_nan[g])
        walk<true, 1, kWalks>(at, x, root.most, root.all);
      else
        walk<false, 1, kWalks>(at, x, root.most, root.all);
      for (int w = 0; w < kWalks; ++w) vote(g * kWalks + w, at[w]->leaf());
    }
  }
}

// Blocks [begin, end) of rows.
template <class Node>
Status by_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  using T = typename Node::Number;
  const auto& a = *static_cast<const TreesArgs*>(args);
  const Votes votes = votes_of(a, data);
  Block<T> b = block_of<T>(a, data.local);
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * a.block_groups, left = a.n_groups - first;
    b.n_groups = left < a.block_groups ? left : a.block_groups;
    fill_block(a, data.in[kX], first * kWalks, b);
    if (a.is_counting) {
      walk_block<Node>(a, data, b, [&](int64_t row, uint32_t leaf) {
        double* sums = b.sums + row * b.room;
        count_votes(votes, a.aggregate, leaf, sums, b.voted + row * a.n_targets);
      });
    } else if (a.n_targets == 1 && !a.has_first) {
      walk_block<Node>(a, data, b, [&](int64_t row, uint32_t leaf) {
        b.sums[row * b.room] += votes.weight[leaf];
      });
    } else {
      walk_block<Node>(a, data, b, [&](int64_t row, uint32_t leaf) {
        add_votes(votes, leaf, b.sums + row * b.room);
      });
    }
    const int64_t last = first * kWalks + b.n_groups * kWalks;
    for (int64_t row = first * kWalks; row < last && row < a.n_rows; ++row) {
      const int64_t i = row - first * kWalks;
      const uint8_t* voted = a.is_counting ? b.voted + i * a.n_targets : nullptr;
      end_sums(a, data, row, b.sums + i * b.room, voted);
    }
  }
  return {};
}

// Items [begin, end) are fixed runs of trees for one row each: which leaf each of them leads to.
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
    const bool has_nan = read_row(a, data.in[kX], row, x, 1) && a.is_asking_nan;
    for (int64_t t = from; t < to; t += kWalks) {
      const Node* at[kWalks];
      int most = 0, all = 0;
      for (int w = 0; w < kWalks; ++w) {
        const Root& root = roots[t + w < to ? t + w : to - 1];
        at[w] = nodes + root.start;
        most = root.most > most ? root.most : most;
        all = root.all > all ? root.all : all;
      }
      if (has_nan)
        walk<true, 0, 1>(at, x, most, all);
      else
        walk<false, 0, 1>(at, x, most, all);
      for (int w = 0; w < kWalks && t + w < to; ++w)
        leaves[row * a.n_trees + t + w] = at[w]->leaf();
    }
  }
  return {};
}

// Rows [begin, end): adds up what the leaves say, in the order of the trees.
Status sum_leaves(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TreesArgs*>(args);
  const Votes votes = votes_of(a, data);
  auto* sums = reinterpret_cast<double*>(data.local);
  auto* voted = reinterpret_cast<uint8_t*>(sums + room_of(a));
  for (int64_t row = begin; row < end; ++row) {
    const uint32_t* leaves = reinterpret_cast<const uint32_t*>(data.scratch) + row * a.n_trees;
    memset(sums, 0, size_t(room_of(a)) * sizeof(double));
    memset(voted, 0, size_t(a.n_targets));
    for (int64_t t = 0; t < a.n_trees; ++t) {
      if (a.is_counting)
        count_votes(votes, a.aggregate, leaves[t], sums, voted);
      else
        add_votes(votes, leaves[t], sums);
    }
    end_sums(a, data, row, sums, a.is_counting ? voted : nullptr);
  }
  return {};
}

// ints: the verdict, then aggregate, features asked for, trees, steps to walk on average, whether
// missing values have a way of their own, whether votes are counted.
SDX_INLINE TreesArgs* read_args(const Call& call, Plan& plan) {
  auto* a = plan.make<TreesArgs>();
  const View& x = call.in[kX];
  const int64_t* ints = call.ints + kVerdictInts;
  a->verdict = verdict_of(call.ints);
  a->aggregate = Aggregate(ints[0]);
  a->width = ints[1];
  a->n_trees = ints[2];
  a->is_asking_nan = ints[4] != 0;
  a->is_counting = ints[5] != 0;
  a->n_targets = a->verdict.n_scores;
  a->dtype = x.dtype;
  a->is_double = call.out[0].dtype == DType::f64;
  a->n_rows = x.rank == 1 ? 1 : x.dims[0];
  a->row_step = x.rank == 1 ? 0 : x.strides[0];
  a->column_step = x.stride(-1);
  a->has_first = call.in[kFirst].is_given();
  a->has_target = call.in[kTarget].is_given();
  return a;
}

template <class Node>
Status trees(const Call& call, Plan& plan) {
  using T = typename Node::Number;
  TreesArgs* a = read_args(call, plan);
  plan.args = a;
  const int64_t steps = call.ints[kVerdictInts + 3], room = room_of(*a);
  if (a->n_rows < kWalks) {
    a->tree_items = (a->n_trees + kTreesPerItem - 1) / kTreesPerItem;
    plan.scratch_bytes = a->n_rows * a->n_trees * int64_t(sizeof(uint32_t));
    const int64_t row_bytes = a->width * int64_t(sizeof(T)), sum_bytes = room * 8 + a->n_targets;
    plan.local_bytes = row_bytes > sum_bytes ? row_bytes : sum_bytes;
    plan.add(by_trees<Node>, a->n_rows * a->tree_items, kTreesPerItem * steps);
    plan.add(sum_leaves, a->n_rows, a->n_trees);
    return {};
  }
  a->n_groups = (a->n_rows + kWalks - 1) / kWalks;
  const int64_t group_bytes = kWalks * (a->width * int64_t(sizeof(T)) + room * 8);
  const int64_t fit = kBlockBytes / (group_bytes + 1), share = (a->n_groups + 3) / 4;
  const int64_t groups = fit < share ? fit : share;
  a->block_groups = groups < 1 ? 1 : groups;
  const int64_t n_blocks = (a->n_groups + a->block_groups - 1) / a->block_groups;
  plan.local_bytes = a->block_groups * (group_bytes + kWalks * a->n_targets + 1);
  plan.add(by_rows<Node>, n_blocks, a->block_groups * kWalks * a->n_trees * steps / 2);
  return {};
}

constexpr Kernel kRows[] = {
    {"trees_compact", Accepts::any, trees<Compact>},
    {"trees_wide", Accepts::any, trees<Wide>},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(trees, kRows)
