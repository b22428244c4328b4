// CropAndResize: boxes of images, resampled to one size at nearest elements or bilinearly.
#include "kernels/elements.h"
#include "kernels/sample/kernels.h"

namespace sdx::SDX_ISA {
namespace {

struct CropArgs {
  int64_t images, channels, height, width, rows, columns;
  bool is_nearest;
  double outside;  // value of samples outside of the image
};

// A sample along one axis: its neighbours, and the weight of the second one.
template <class C>
struct CropSample {
  int64_t low, high;  // low is -1 outside of the image
  C weight;
};

// The samples of a box along one axis; the outermost are its corners.
template <class C>
void find_samples(C first, C last, int64_t size, int64_t count, bool is_nearest,
                  CropSample<C>* out) {
  const C top = C(size - 1), step = count > 1 ? (last - first) * top / C(count - 1) : C(0);
  const C start = count > 1 ? first * top : C(0.5) * (first + last) * top;
  for (int64_t i = 0; i < count; ++i) {
    const C at = start + C(i) * step;
    if (!(at >= 0 && at <= top)) {
      out[i] = {-1, -1, 0};
      continue;
    }
    // Of large sizes `top` is rounded, and a sum of `at` and a half would be. A neighbour of weight
    // 0 is not read: it may be infinite.
    const int64_t low = at < C(size) ? int64_t(at) : size - 1;
    const C weight = at - C(low);
    const int64_t high = weight > 0 ? low + 1 : low;
    out[i] = {is_nearest && weight >= C(0.5) ? high : low, high, weight};
  }
}

// One channel of one box.
template <class T, class C>
void crop_channel(const CropArgs& a, const CropSample<C>* down, const CropSample<C>* across,
                  const T* x, T* y) {
  const T outside = element<T>(C(a.outside));
  for (int64_t i = 0; i < a.rows; ++i, y += a.columns) {
    const CropSample<C>& row = down[i];
    const T *above = x + row.low * a.width, *below = x + row.high * a.width;
    for (int64_t j = 0; j < a.columns; ++j) {
      const CropSample<C>& column = across[j];
      if (row.low < 0 || column.low < 0) {
        y[j] = outside;
      } else if (a.is_nearest) {
        y[j] = above[column.low];
      } else {
        const C left = 1 - column.weight, right = column.weight;
        const C over = number<C>(above[column.low]) * left + number<C>(above[column.high]) * right;
        const C under = number<C>(below[column.low]) * left + number<C>(below[column.high]) * right;
        y[j] = element<T>(over * (1 - row.weight) + under * row.weight);
      }
    }
  }
}

// Items: boxes.
template <class T>
Status crop_boxes(const void* args, const Data& data, int64_t begin, int64_t end) {
  using C = Wide<T>;
  const auto& a = *static_cast<const CropArgs*>(args);
  auto* down = reinterpret_cast<CropSample<C>*>(data.local);
  CropSample<C>* across = down + a.rows;
  const int64_t plane = a.height * a.width, made = a.rows * a.columns;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t image = input<int32_t>(data, 2)[r];
    if (image < 0 || image >= a.images)
      return Status::fail("batch index %ld is outside [0, %ld)", long(image), long(a.images));
    C box[4];
    for (int i = 0; i < 4; ++i) box[i] = number<C>(input<T>(data, 1)[4 * r + i]);
    find_samples(box[0], box[2], a.height, a.rows, a.is_nearest, down);
    find_samples(box[1], box[3], a.width, a.columns, a.is_nearest, across);
    const T* x = input<T>(data, 0) + image * a.channels * plane;
    T* y = output<T>(data) + r * a.channels * made;
    for (int64_t c = 0; c < a.channels; ++c)
      crop_channel(a, down, across, x + c * plane, y + c * made);
  }
  return {};
}

}  // namespace

Status crop_and_resize(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  auto* a = plan.make<CropArgs>();
  *a = {x.dims[0], x.dims[1], x.dims[2],         x.dims[3],
        y.dims[2], y.dims[3], call.ints[0] != 0, call.floats[0]};
  plan.args = a;
  return visit(x.dtype, Floats{}, [&]<class T>() -> Status {
    plan.local_bytes = (a->rows + a->columns) * int64_t(sizeof(CropSample<Wide<T>>));
    plan.add(crop_boxes<T>, y.dims[0], (a->is_nearest ? 1 : 3) * y.count(1, 4));
    return {};
  });
}

}  // namespace sdx::SDX_ISA
