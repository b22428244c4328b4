// Adafactor as torch.optim.Adafactor defines it. The second moment V of a matrix is kept as the
// means of its rows R and of its columns C:
//   R = lerp(R, mean of g^2 over columns, w), C = lerp(C, mean of g^2 over rows, w), w = t^decay,
//   V = R C / max(mean R, eps1), u = g / sqrt(max(V, eps1^2)),
//   p = p (1 - lr l2) - max(eps2, rms(p)) min(lr, 1 / sqrt(t)) u / max(1, rms(u) / d)
// Vectors keep V itself. With more than two axes the last two are matrices.
//
// A block is a part of a vector, several whole matrices, or rows of one matrix. Phases: sums of
// squares by block (of the parameter, of rows and columns of the gradient), the moments of each
// parameter, sums of u^2 by block, the updates by block. u is computed twice rather than stored.
#include "kernels/optimizer/kernels.h"
#include "kernels/optimizer/params.h"

namespace sdx::SDX_ISA {
namespace {

struct Group {
  double lr, beta2_decay, eps1, eps2, weight_decay, d, unused, sign;
};
static_assert(sizeof(Group) == kHyperparameters * sizeof(double));

// Each block of rows has a row of column sums of its own; with 32 rows or more in a block they are
// at most 1/32 of the parameter.
constexpr int64_t kMinRows = 32;

// How a parameter is cut into blocks, and where its sums are in the scratch memory (in floats).
struct Tiling {
  int64_t n_matrices = 0;     // 0: a vector
  int64_t matrices = 1;       // of a block
  int64_t rows = 0;           // of a block
  int64_t blocks = 1;         // of one matrix, or of the vector
  int64_t row_sums = 0;       // n_matrices * rows of the parameter
  int64_t column_sums = 0;    // one row per block and matrix
  int64_t inverse_means = 0;  // n_matrices
};

struct Constants {
  float factor, weight, alpha, floor, decay, d;
};

struct AdafactorArgs {
  StepArgs step;
  const Tiling* tilings = nullptr;
  int64_t n_sums = 0;
};

// Sums by block are double.
struct Scratch {
  double* data_squares;
  double* grad_squares;
  double* update_squares;
  Constants* constants;
  float* sums;

  Scratch(const AdafactorArgs& a, const Data& data)
      : data_squares(reinterpret_cast<double*>(data.scratch)),
        grad_squares(data_squares + a.step.n_blocks()),
        update_squares(grad_squares + a.step.n_blocks()),
        constants(reinterpret_cast<Constants*>(update_squares + a.step.n_blocks())),
        sums(reinterpret_cast<float*>(constants + a.step.n_params)) {}

  static int64_t bytes(const AdafactorArgs& a) {
    return a.step.n_blocks() * 3 * int64_t(sizeof(double)) +
           a.step.n_params * int64_t(sizeof(Constants)) + a.n_sums * int64_t(sizeof(float));
  }
};

// The elements of a block: rows [row, row + n_rows) counted over all matrices, or a part of a
// vector.
struct Range {
  int64_t from, n;  // elements
  int64_t row, n_rows;
  int64_t matrix;  // the first one

  Range(const Param& p, const Tiling& t, int64_t block) {
    if (t.n_matrices == 0) {
      from = block * kBlock, row = n_rows = matrix = 0;
      n = p.n - from < kBlock ? p.n - from : kBlock;
      return;
    }
    matrix = block / t.blocks * t.matrices;
    const int64_t first = block % t.blocks * t.rows;
    const int64_t last_matrix =
        matrix + t.matrices < t.n_matrices ? matrix + t.matrices : t.n_matrices;
    row = matrix * p.rows + first;
    n_rows = t.blocks == 1 ? (last_matrix - matrix) * p.rows
                           : (first + t.rows < p.rows ? t.rows : p.rows - first);
    from = row * p.columns, n = n_rows * p.columns;
  }
};

// The column sums of a matrix that a block contributes.
SDX_INLINE float* column_sums(const Scratch& s, const Param& p, const Tiling& t, int64_t matrix,
                              int64_t block_of_matrix) {
  return s.sums + t.column_sums + (matrix * t.blocks + block_of_matrix) * p.columns;
}

// Sum of the squares of a row, each of which is also added to its column's sum.
template <class T>
double square_row(const T* g, float* columns, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kSumBlock<float>) {
    f32v sum{};
    vloop(n - i < kSumBlock<float> ? n - i : kSumBlock<float>, [&](int64_t j, auto lanes) {
      const f32v x = load_float(g + i + j, lanes);
      sum += x * x;
      store(columns + i + j, load(columns + i + j, lanes) + x * x, lanes);
    });
    total += fold_sum(sum);
  }
  return total;
}

// Items: blocks.
Status square_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AdafactorArgs*>(args);
  const Scratch s(a, data);
  if (is_skipped(a.step, data)) return {};
  each_block(a.step, begin, end, [&](int64_t i, int64_t block) {
    const RunParam p(a.step, data, i);
    const Tiling& t = a.tilings[i];
    const Range r(p, t, block);
    const int64_t at = a.step.first_blocks[i] + block;
    visit_param(p, [&]<class T>() {
      s.data_squares[at] = sum_of_squares(static_cast<const T*>(p.data) + r.from, r.n);
      const T* grad = static_cast<const T*>(p.grad) + r.from;
      if (t.n_matrices == 0) {
        s.grad_squares[at] = sum_of_squares(grad, r.n);
        return;
      }
      double total = 0;
      for (int64_t j = 0; j < r.n_rows; ++j) {
        float* columns = column_sums(s, p, t, (r.row + j) / p.rows, block % t.blocks);
        const bool is_first = j == 0 || (r.row + j) % p.rows == 0;
        if (is_first) memset(columns, 0, size_t(p.columns) * sizeof(float));
        const double row = square_row(grad + j * p.columns, columns, p.columns);
        s.sums[t.row_sums + r.row + j] = float(row);
        total += row;
      }
      s.grad_squares[at] = total;
    });
  });
  return {};
}

template <class T>
SDX_INLINE float lerp(T* state, float mean, float weight) {
  const float old = to_float(state);
  *state = element<T>(old + weight * (mean - old));
  return to_float(state);
}

// The means of rows and columns of one parameter.
template <class T>
void update_means(const Param& p, const Tiling& t, const Scratch& s, const Constants& c,
                  float eps1) {
  T *row_means = static_cast<T*>(p.states[0]), *column_means = static_cast<T*>(p.states[1]);
  const float square = c.factor * c.factor;
  for (int64_t m = 0; m < t.n_matrices; ++m) {
    double total = 0;
    for (int64_t i = m * p.rows; i < (m + 1) * p.rows; ++i)
      total += lerp(row_means + i, square * s.sums[t.row_sums + i] / float(p.columns), c.weight);
    const auto mean = float(total / double(p.rows));
    s.sums[t.inverse_means + m] = 1 / (mean < eps1 ? eps1 : mean);
    // Blocks are joined into the sums of the first one, in their order.
    float* sums = column_sums(s, p, t, m, 0);
    for (int64_t b = 1; b < t.blocks; ++b) {
      const float* more = column_sums(s, p, t, m, b);
      for (int64_t j = 0; j < p.columns; ++j) sums[j] += more[j];
    }
    for (int64_t j = 0; j < p.columns; ++j)
      lerp(column_means + m * p.columns + j, square * sums[j] / float(p.rows), c.weight);
  }
}

// The machine epsilon of a parameter's type, where eps1 is not given (negative).
SDX_INLINE double eps1_of(const Param& p, const Group& g) {
  if (g.eps1 >= 0) return g.eps1;
  return DType(p.dtype) == DType::f32 ? 0x1p-23 : DType(p.dtype) == DType::f16 ? 0x1p-10 : 0x1p-7;
}

// Items: parameters.
Status begin_params(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AdafactorArgs*>(args);
  const Scratch s(a, data);
  if (begin == 0) report_update(a.step, data);
  if (is_skipped(a.step, data)) return {};
  const double factor =
      a.step.inverse_scale * clip_factor(a.step, data, s.grad_squares, begin == 0);
  for (int64_t i = begin; i < end; ++i) {
    const RunParam p(a.step, data, i);
    const auto g = group_of<Group>(a.step, data, p);
    double squares = 0;
    for (int64_t b = a.step.first_blocks[i]; b < a.step.first_blocks[i + 1]; ++b)
      squares += s.data_squares[b];
    const double t = *p.step += 1, slowing = 1 / __builtin_sqrt(t), eps1 = eps1_of(p, g);
    const double rms = p.n == 0 ? 0 : __builtin_sqrt(squares / double(p.n));
    Constants& c = s.constants[i];
    c.factor = float(factor * g.sign);
    c.weight = float(__builtin_pow(t, g.beta2_decay));
    c.alpha = float((rms < g.eps2 ? g.eps2 : rms) * (g.lr < slowing ? g.lr : slowing));
    c.floor = float(eps1 * eps1);
    c.decay = float(1 - g.lr * g.weight_decay);
    c.d = float(g.d);
    if (p.n > 0)
      visit_param(p, [&]<class T>() { update_means<T>(p, a.tilings[i], s, c, float(eps1)); });
  }
  return {};
}

SDX_INLINE f32v scaled_update(f32v g, f32v second_moment, const Constants& c) {
  return g * c.factor / vsqrt(at_least(second_moment, splat(c.floor)));
}

// Calls body(element, u, lanes) for the elements of a block. kUpdates: a vector's second moment is
// updated first.
template <class T, bool kUpdates, class Body>
SDX_INLINE void each_update(const Param& p, const Tiling& t, const Scratch& s, const Constants& c,
                            int64_t block, Body&& body) {
  const Range r(p, t, block);
  const T* grad = static_cast<const T*>(p.grad);
  if (t.n_matrices == 0) {
    T* moment = static_cast<T*>(p.states[2]);
    vloop(r.n, [&](int64_t i, auto lanes) {
      const f32v g = load_float(grad + r.from + i, lanes), f = g * c.factor;
      f32v v = load_float(moment + r.from + i, lanes);
      if (kUpdates) {
        store_float(moment + r.from + i, v + c.weight * (f * f - v), lanes);
        v = load_float(moment + r.from + i, lanes);
      }
      body(r.from + i, scaled_update(g, v, c), lanes);
    });
    return;
  }
  for (int64_t row = r.row; row < r.row + r.n_rows; ++row) {
    const int64_t matrix = row / p.rows, from = row * p.columns;
    const float mean =
        to_float(static_cast<const T*>(p.states[0]) + row) * s.sums[t.inverse_means + matrix];
    const T* columns = static_cast<const T*>(p.states[1]) + matrix * p.columns;
    vloop(p.columns, [&](int64_t i, auto lanes) {
      const f32v v = mean * load_float(columns + i, lanes);
      body(from + i, scaled_update(load_float(grad + from + i, lanes), v, c), lanes);
    });
  }
}

// Items: blocks.
Status square_updates(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AdafactorArgs*>(args);
  const Scratch s(a, data);
  if (is_skipped(a.step, data)) return {};
  each_block(a.step, begin, end, [&](int64_t i, int64_t block) {
    const RunParam p(a.step, data, i);
    visit_param(p, [&]<class T>() {
      Vec<double> total{};
      each_update<T, true>(p, a.tilings[i], s, s.constants[i], block,
                           [&](int64_t, f32v u, auto lanes) {
                             if constexpr (std::is_same_v<decltype(lanes), Part>)
                               for (int k = lanes.n; k < kLanes; ++k) u[k] = 0;
                             total += widened<0>(u * u) + widened<1>(u * u);
                           });
      s.update_squares[a.step.first_blocks[i] + block] = fold_sum(total);
    });
  });
  return {};
}

// Items: blocks.
Status update_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AdafactorArgs*>(args);
  const Scratch s(a, data);
  if (is_skipped(a.step, data)) return {};
  each_block(a.step, begin, end, [&](int64_t i, int64_t block) {
    const RunParam p(a.step, data, i);
    const Constants& c = s.constants[i];
    double squares = 0;
    for (int64_t b = a.step.first_blocks[i]; b < a.step.first_blocks[i + 1]; ++b)
      squares += s.update_squares[b];
    const double excess = __builtin_sqrt(squares / double(p.n)) / double(c.d);
    const auto rate = float(double(c.alpha) / (excess < 1 ? 1 : excess));
    visit_param(p, [&]<class T>() {
      T* to = static_cast<T*>(p.data);
      each_update<T, false>(p, a.tilings[i], s, c, block, [&](int64_t at, f32v u, auto lanes) {
        store_float(to + at, load_float(to + at, lanes) * c.decay - rate * u, lanes);
      });
    });
  });
  return {};
}

// Cuts a parameter into blocks, and assigns the memory of its sums from `n_sums` on.
int64_t cut(const Param& p, Tiling& t, int64_t& n_sums) {
  if (p.n == 0) return 0;
  if (p.rows == 0) return t.blocks = (p.n + kBlock - 1) / kBlock;
  const int64_t size = p.rows * p.columns;
  t.n_matrices = p.n / size;
  t.rows = p.rows;
  if (size <= kBlock) {
    t.matrices = kBlock / size;
  } else {
    t.rows = kBlock / p.columns > kMinRows ? kBlock / p.columns : kMinRows;
    t.blocks = (p.rows + t.rows - 1) / t.rows;
  }
  t.row_sums = n_sums;
  t.column_sums = t.row_sums + t.n_matrices * p.rows;
  t.inverse_means = t.column_sums + t.n_matrices * t.blocks * p.columns;
  n_sums = t.inverse_means + t.n_matrices;
  return (t.n_matrices + t.matrices - 1) / t.matrices * t.blocks;
}

Status prepare_step(const StepArgs& tables, Plan& plan) {
  auto* args = plan.make<AdafactorArgs>();
  args->step = tables;
  const auto n = size_t(args->step.n_params);
  auto* first_blocks = plan.table<int64_t>(n + 1);
  auto* tilings = plan.table<Tiling>(n);
  if (first_blocks == nullptr || tilings == nullptr) return no_table();
  for (size_t i = 0; i < n; ++i)
    first_blocks[i + 1] = first_blocks[i] + cut(args->step.params[i], tilings[i], args->n_sums);
  args->step.first_blocks = first_blocks;
  args->tilings = tilings;
  plan.args = args;
  plan.scratch_bytes = Scratch::bytes(*args);
  plan.add(square_blocks, args->step.n_blocks(), kBlock);
  plan.add(begin_params, args->step.n_params, 2000);
  plan.add(square_updates, args->step.n_blocks(), kBlock);
  plan.add(update_blocks, args->step.n_blocks(), kBlock);
  return {};
}

}  // namespace

Status adafactor_step(const Call& call, Plan& plan) {
  return prepare_step(read_tables(call), plan);
}
Status adafactor_update(const Call& call, Plan& plan) {
  return prepare_step(read_operands(call, plan), plan);
}

}  // namespace sdx::SDX_ISA
