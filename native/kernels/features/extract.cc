// ArrayFeatureExtractor (columns selected by index) and FeatureVectorizer (columns of several
// inputs concatenated as float).
#include "kernels/features/batch.h"
#include "kernels/features/kernels.h"

namespace sdx::SDX_ISA {
namespace {

struct ExtractArgs {
  int64_t n_rows, width, n_indices, size_bytes;
};

Status extract_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ExtractArgs*>(args);
  const int64_t* indices = input<int64_t>(data, 1);
  for (int64_t i = 0; i < a.n_indices; ++i)
    if (indices[i] < 0 || indices[i] >= a.width)
      return Status::fail("feature %ld is outside [0, %ld)", long(indices[i]), long(a.width));
  const auto copy = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    each_row(a.n_rows, begin, end, [&](int64_t row) {
      const T* x = input<T>(data, 0) + row * a.width;
      T* y = output<T>(data) + row * a.n_indices;
      for (int64_t i = 0; i < a.n_indices; ++i) y[i] = x[indices[i]];
    });
  };
  switch (a.size_bytes) {
    case 4: copy(static_cast<uint32_t*>(nullptr)); break;
    case 8: copy(static_cast<uint64_t*>(nullptr)); break;
    default: copy(static_cast<Text*>(nullptr));
  }
  return {};
}

// One input of FeatureVectorizer: columns in the output, and columns that it has.
struct VectorInput {
  DType dtype;
  int64_t width, n_columns;
};

struct VectorizeArgs {
  int64_t n_rows, width;
  int n_inputs;
  const VectorInput* inputs;
};

// Inputs are truncated or padded with zeros to the widths that the model declares.
Status vectorize_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const VectorizeArgs*>(args);
  int64_t at = 0;
  for (int p = 0; p < a.n_inputs; at += a.inputs[p++].width) {
    const VectorInput& source = a.inputs[p];
    const int64_t n = source.n_columns < source.width ? source.n_columns : source.width;
    visit_features(source.dtype, [&](auto* type) {
      using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
      each_row(a.n_rows, begin, end, [&](int64_t row) {
        const T* x = input<T>(data, p) + row * source.n_columns;
        float* y = output<float>(data) + row * a.width + at;
        for (int64_t i = 0; i < n; ++i) y[i] = float(x[i]);
        for (int64_t i = n; i < source.width; ++i) y[i] = 0;
      });
    });
  }
  return {};
}

}  // namespace

Status array_feature_extractor(const Call& call, Plan& plan) {
  auto* a = plan.make<ExtractArgs>();
  const View& x = call.in[0];
  *a = {x.count(0, x.rank - 1), x.dim(-1), call.in[1].count(), size_of(x.dtype)};
  plan.args = a;
  plan.add(extract_rows, items_of(a->n_rows), kRowsPerItem * a->n_indices);
  return {};
}

// ints: the output columns of each input.
Status feature_vectorizer(const Call& call, Plan& plan) {
  auto* a = plan.make<VectorizeArgs>();
  auto* inputs = plan.make<VectorInput>(size_t(call.n_in));
  for (int p = 0; p < call.n_in; ++p) {
    const View& x = call.in[p];
    inputs[p] = {x.dtype, call.ints[p], x.rank > 1 ? x.count(1, x.rank) : x.count()};
  }
  *a = {call.out[0].dims[0], call.out[0].dims[1], call.n_in, inputs};
  plan.args = a;
  plan.add(vectorize_rows, items_of(a->n_rows), kRowsPerItem * (call.n_in * 4 + a->width));
  return {};
}

}  // namespace sdx::SDX_ISA
