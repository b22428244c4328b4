// Support vector machines: how alike rows and vectors are, weighed; classes meet in pairs.
#include "kernels/linear_ml/rows.h"
#include "kernels/scores.h"

namespace sdx::SDX_ISA {
namespace {

enum Slot { kX, kVectors, kSquares, kWeights, kRho, kSizes, kLabels, kSlopes, kShifts };
enum class Likeness : int64_t { linear, poly, rbf, sigmoid };

struct SvmArgs {
  Verdict verdict;
  Batch batch;
  Likeness likeness;
  int64_t n_vectors, n_classes, n_pairs;
  bool is_one_class, is_probable;
  double gamma, shift, degree;
};

// What an item needs for one row.
struct Room {
  double* row;      // as numbers
  double* alike;    // by vector
  double* share;    // [class, opponent]
  double* duels;    // by pair
  double* columns;  // what goes out
  double* r;        // [class, class]
  double* q;        // [class, class]
  double* qp;       // by class
};

SDX_INLINE int64_t room_of(const SvmArgs& a, Room* room, double* at) {
  double* const first = at;
  const auto take = [&](int64_t n) {
    double* from = at;
    at += n;
    return from;
  };
  const int64_t n = a.n_classes, columns = a.verdict.n_columns;
  const int64_t widest = columns > a.n_pairs ? columns : a.n_pairs;
  *room = {take(a.batch.width),           take(a.n_vectors), take(n * n), take(a.n_pairs),
           take(widest < 2 ? 2 : widest), take(n * n),       take(n * n), take(n)};
  return at - first;
}

SDX_INLINE double dot(const double* a, const double* b, int64_t n) {
  Vec<double> sums[2] = {};
  int64_t i = 0;
  constexpr int64_t lanes = kLanesOf<double>;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    sums[0] += load(a + i) * load(b + i);
    sums[1] += load(a + i + lanes) * load(b + i + lanes);
  }
  double total = reduce_sum(sums[0] + sums[1]);
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

void read_features(const Batch& batch, const void* x, int64_t row, double* to) {
  visit_features(batch.dtype, [&](auto* type) {
    using X = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    const X* from = static_cast<const X*>(x) + row * batch.row_step;
    for (int64_t i = 0; i < batch.width; ++i) to[i] = double(from[i]);
  });
}

void compare(const SvmArgs& a, const Data& data, const Room& room) {
  const double* vectors = input<double>(data, kVectors);
  const double* squares = input<double>(data, kSquares);
  const int64_t n = a.batch.width;
  const double square = a.likeness == Likeness::rbf ? dot(room.row, room.row, n) : 0;
  for (int64_t v = 0; v < a.n_vectors; ++v) {
    double y = dot(room.row, vectors + v * n, n);
    if (a.likeness == Likeness::rbf) {
      const double distance = square - 2 * y + squares[v];
      y = __builtin_exp(-a.gamma * (distance < 0 ? 0 : distance));
    } else if (a.likeness != Likeness::linear) {
      y = a.gamma * y + a.shift;
      y = a.likeness == Likeness::sigmoid ? __builtin_tanh(y) : __builtin_pow(y, a.degree);
    }
    room.alike[v] = y;
  }
}

// The decision value of each pair of classes: positive where the first of them wins.
void fight(const SvmArgs& a, const Data& data, const Room& room) {
  const double* weights = input<double>(data, kWeights);  // [opponent, vector]
  const double* rho = input<double>(data, kRho);
  const int64_t* sizes = input<int64_t>(data, kSizes);
  const int64_t n = a.n_classes;
  for (int64_t c = 0, first = 0; c < n; first += sizes[c++])
    for (int64_t j = 0; j < n - 1; ++j)
      room.share[c * n + j] = dot(room.alike + first, weights + j * a.n_vectors + first, sizes[c]);
  for (int64_t i = 0, pair = 0; i < n; ++i)
    for (int64_t j = i + 1; j < n; ++j, ++pair)
      room.duels[pair] = room.share[i * n + j - 1] + room.share[j * n + i] + rho[pair];
}

// The class that wins most duels, the first of equal ones.
int64_t winner(const SvmArgs& a, const Room& room) {
  const int64_t n = a.n_classes;
  double* won = room.qp;
  memset(won, 0, size_t(n) * sizeof(double));
  for (int64_t i = 0, pair = 0; i < n; ++i)
    for (int64_t j = i + 1; j < n; ++j, ++pair) won[room.duels[pair] > 0 ? i : j] += 1;
  return top_of(won, n, nullptr);
}

// The matrix of Wu, Lin and Weng's second method, from the chances of each pair.
void pair_matrix(const SvmArgs& a, const Data& data, const Room& room) {
  const float* slopes = input<float>(data, kSlopes);
  const float* shifts = input<float>(data, kShifts);
  const int64_t n = a.n_classes;
  for (int64_t i = 0, pair = 0; i < n; ++i) {
    room.r[i * n + i] = 0;
    for (int64_t j = i + 1; j < n; ++j, ++pair) {
      double beats = 1 - logistic(room.duels[pair] * double(slopes[pair]) + double(shifts[pair]));
      beats = beats < 1e-7 ? 1e-7 : beats > 1 - 1e-7 ? 1 - 1e-7 : beats;
      room.r[i * n + j] = beats;
      room.r[j * n + i] = 1 - beats;
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    double own = 0;
    for (int64_t j = 0; j < n; ++j) {
      room.q[i * n + j] = -room.r[i * n + j] * room.r[j * n + i];
      own += room.r[j * n + i] * room.r[j * n + i];
    }
    room.q[i * n + i] = own;
  }
}

// Probabilities that fit all pairs best: one class after the other is set to its optimum.
void couple(int64_t n, const Room& room, double* p) {
  for (int64_t i = 0; i < n; ++i) p[i] = 1.0 / double(n);
  for (int64_t round = 0; round < (n > 100 ? n : 100); ++round) {
    double energy = 0, worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      room.qp[i] = 0;
      for (int64_t j = 0; j < n; ++j) room.qp[i] += room.q[i * n + j] * p[j];
      energy += p[i] * room.qp[i];
    }
    for (int64_t i = 0; i < n; ++i) {
      const double gap = __builtin_fabs(room.qp[i] - energy);
      worst = gap > worst || gap != gap ? gap : worst;
    }
    if (!(worst >= 0.005 / double(n))) return;
    for (int64_t t = 0; t < n; ++t) {
      const double own = room.q[t * n + t], step = (energy - room.qp[t]) / own, by = 1 + step;
      energy = (energy + step * (step * own + 2 * room.qp[t])) / (by * by);
      for (int64_t j = 0; j < n; ++j) room.qp[j] = (room.qp[j] + step * room.q[t * n + j]) / by;
      p[t] += step;
      for (int64_t j = 0; j < n; ++j) p[j] /= by;
    }
  }
}

void classify(const SvmArgs& a, const Data& data, const Room& room, int64_t row) {
  fight(a, data, room);
  output<int64_t>(data, 0)[row] = input<int64_t>(data, kLabels)[winner(a, room)];
  if (a.is_probable) {
    pair_matrix(a, data, room);
    couple(a.n_classes, room, room.columns);
  } else {
    memcpy(room.columns, room.duels, size_t(a.n_pairs) * sizeof(double));
  }
  end_row<float>(a.verdict, room.columns, nullptr, nullptr, nullptr,
                 output<float>(data, 1) + row * a.verdict.n_columns);
}

Status svm_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const SvmArgs*>(args);
  Room room;
  room_of(a, &room, reinterpret_cast<double*>(data.local));
  each_row(a.batch.n_rows, begin, end, [&](int64_t row) {
    read_features(a.batch, data.in[kX], row, room.row);
    compare(a, data, room);
    if (a.n_classes > 0) return classify(a, data, room, row);
    const double y =
        dot(room.alike, input<double>(data, kWeights), a.n_vectors) + input<double>(data, kRho)[0];
    output<float>(data)[row] = a.is_one_class ? (y > 0 ? 1.0f : -1.0f) : float(y);
  });
  return {};
}

}  // namespace

// ints: the verdict, then how rows and vectors are compared, classes (none: a regressor), whether
// there is one class, whether probabilities are asked for. floats: gamma, shift and degree.
Status svm(const Call& call, Plan& plan) {
  auto* a = plan.make<SvmArgs>();
  const int64_t* ints = call.ints + kVerdictInts;
  a->verdict = verdict_of(call.ints);
  a->batch = batch_of(call.in[kX]);
  a->likeness = Likeness(ints[0]);
  a->n_classes = ints[1];
  a->is_one_class = ints[2] != 0;
  a->is_probable = ints[3] != 0;
  a->n_vectors = call.in[kSquares].count();
  a->n_pairs = a->n_classes * (a->n_classes - 1) / 2;
  a->gamma = call.floats[0], a->shift = call.floats[1], a->degree = call.floats[2];
  plan.args = a;
  Room room;
  plan.local_bytes = room_of(*a, &room, nullptr) * int64_t(sizeof(double));
  const int64_t row_work = a->n_vectors * (20 + a->batch.width / 4);
  plan.add(svm_rows, items_of(a->batch.n_rows), kRowsPerItem * row_work);
  return {};
}

}  // namespace sdx::SDX_ISA
