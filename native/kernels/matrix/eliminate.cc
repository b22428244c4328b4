// Det and Inverse by Gaussian elimination with partial pivoting, in double.
#include "kernels/elements.h"
#include "kernels/matrix/kernels.h"

namespace sdx::SDX_ISA {
namespace {

struct MatrixArgs {
  int64_t n = 0;
};

// The row from k on with the largest element of column k; the first NaN counts as the largest.
int64_t pivot_row(const double* a, int64_t n, int64_t k) {
  int64_t best = k;
  for (int64_t i = k; i < n; ++i) {
    const double x = __builtin_fabs(a[i * n + k]);
    if (x != x) return i;
    if (x > __builtin_fabs(a[best * n + k])) best = i;
  }
  return best;
}

void swap_rows(double* a, double* b, int64_t n) {
  if (a == b) return;
  vloop<double>(n, [&](int64_t j, auto lanes) {
    const Vec<double> other = load(b + j, lanes);
    store(b + j, load(a + j, lanes), lanes);
    store(a + j, other, lanes);
  });
}

// y -= factor x
SDX_INLINE void subtract_row(double* y, const double* x, double factor, int64_t n) {
  vloop<double>(n, [&](int64_t j, auto lanes) {
    store(y + j, load(y + j, lanes) - load(x + j, lanes) * factor, lanes);
  });
}

double determinant_of(double* a, int64_t n) {
  double product = 1;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t pivot = pivot_row(a, n, k);
    if (a[pivot * n + k] == 0) return 0;
    if (pivot != k) product = -product;
    swap_rows(a + k * n + k, a + pivot * n + k, n - k);
    const double *row = a + k * n + k, diagonal = row[0];
    product *= diagonal;
    for (int64_t i = k + 1; i < n; ++i) {
      double* y = a + i * n + k;
      subtract_row(y + 1, row + 1, y[0] / diagonal, n - k - 1);
    }
  }
  return product;
}

// Gauss-Jordan elimination in place; false if a matrix is singular. `pivots` has n elements.
bool invert(double* a, int64_t* pivots, int64_t n) {
  for (int64_t k = 0; k < n; ++k) {
    const int64_t pivot = pivots[k] = pivot_row(a, n, k);
    if (a[pivot * n + k] == 0) return false;
    swap_rows(a + k * n, a + pivot * n, n);
    double* row = a + k * n;
    // Single elements are stored after vectors: a vector with a fresh element waits for its store.
    const double factor = 1 / row[k];
    vloop<double>(
        n, [&](int64_t j, auto lanes) { store(row + j, load(row + j, lanes) * factor, lanes); });
    row[k] = factor;
    for (int64_t i = 0; i < n; ++i) {
      if (i == k) continue;
      double* y = a + i * n;
      const double below = y[k];
      subtract_row(y, row, below, n);
      y[k] = -below * factor;
    }
  }
  for (int64_t k = n - 1; k >= 0; --k)  // exchanged rows are columns of the inverse
    for (int64_t i = 0; i < n && pivots[k] != k; ++i) {
      const double other = a[i * n + k];
      a[i * n + k] = a[i * n + pivots[k]], a[i * n + pivots[k]] = other;
    }
  return true;
}

// The matrix of an item as numbers of local memory.
template <class T>
double* read_matrix(const Data& data, int64_t item, int64_t n) {
  auto* a = reinterpret_cast<double*>(data.local);
  const T* x = input<T>(data, 0) + item * n * n;
  for (int64_t i = 0; i < n * n; ++i) a[i] = number<double>(x[i]);
  return a;
}

// Items: matrices.
template <class T>
Status find_determinants(const void* args, const Data& data, int64_t begin, int64_t end) {
  const int64_t n = static_cast<const MatrixArgs*>(args)->n;
  for (int64_t m = begin; m < end; ++m)
    output<T>(data)[m] = element<T>(determinant_of(read_matrix<T>(data, m, n), n));
  return {};
}

template <class T>
Status invert_matrices(const void* args, const Data& data, int64_t begin, int64_t end) {
  const int64_t n = static_cast<const MatrixArgs*>(args)->n;
  for (int64_t m = begin; m < end; ++m) {
    double* a = read_matrix<T>(data, m, n);
    if (!invert(a, reinterpret_cast<int64_t*>(a + n * n), n))
      return Status::fail("one of the matrices is singular: it has no inverse");
    T* y = output<T>(data) + m * n * n;
    for (int64_t i = 0; i < n * n; ++i) y[i] = element<T>(a[i]);
  }
  return {};
}

int64_t make_args(const Call& call, Plan& plan) {
  const View& x = call.in[0];
  auto* args = plan.make<MatrixArgs>();
  args->n = x.dims[x.rank - 1];
  plan.args = args;
  plan.local_bytes = (args->n + 1) * args->n * int64_t(sizeof(double));
  return args->n;
}

}  // namespace

Status determinant(const Call& call, Plan& plan) {
  const int64_t n = make_args(call, plan);
  return visit(call.in[0].dtype, Floats{}, [&]<class T>() -> Status {
    plan.add(find_determinants<T>, call.out[0].count(), n * n * n / 16 + 4 * n * n);
    return {};
  });
}

Status inverse(const Call& call, Plan& plan) {
  const int64_t n = make_args(call, plan);
  return visit(call.in[0].dtype, Floats{}, [&]<class T>() -> Status {
    const int64_t matrices = n == 0 ? 0 : call.in[0].count() / (n * n);
    plan.add(invert_matrices<T>, matrices, n * n * n / 8 + 8 * n * n);
    return {};
  });
}

}  // namespace sdx::SDX_ISA
