// What direct 8-bit convolutions share: their output channels are the columns of gemm_int8.h, with
// the same parameters, but windows are read where they are.
#pragma once

#include "kernels/quantize/gemm_int8.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA::int8 {

struct DirectConv {
  Gemm product;  // only its operands and bounds are used
  Window window;
  int64_t channels, out_channels;  // of the image and of the output
  int64_t pitch;                   // elements between output pixels
  int64_t weight_bytes;  // of the packed weights, which the int32 sums of the columns follow
  int64_t n_params;      // elements of an array of column parameters
  int64_t (*position)(int64_t channel);  // in these arrays; null: the identity
  const std::byte* columns;              // the parameters, where they are constant
};

// Reads operands, window and sizes. ints: type of the weights, then the window.
void read_direct(DirectConv& c, const Call& call);

// Computes the column parameters now or, if they are not constant, in a phase before all others;
// plan.args must be the DirectConv.
Status plan_columns(DirectConv& c, const Call& call, Plan& plan);

SDX_INLINE std::byte* column_memory(const DirectConv& c, const Data& data) {
  return c.columns != nullptr ? const_cast<std::byte*>(c.columns) : data.scratch;
}
SDX_INLINE ColumnParams columns_of(const DirectConv& c, std::byte* memory) {
  auto* at = reinterpret_cast<float*>(memory) + 16;
  auto* whole = reinterpret_cast<int32_t*>(at + 2 * c.n_params);
  return {at, at + c.n_params, whole, whole + c.n_params};
}

// The line of an image that a line of an output's window meets; null in padding.
SDX_INLINE const uint8_t* locate_line(const DirectConv& c, const uint8_t* image, const Pixel& pixel,
                                      int64_t line) {
  const Axis *deep = c.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t depth = deep->input_index(pixel.at[0], line / high->taps);
  const int64_t height = high->input_index(pixel.at[1], line % high->taps);
  const bool is_in = depth >= 0 && depth < deep->in && height >= 0 && height < high->in;
  return is_in ? image + (depth * high->in + height) * wide->in * c.channels : nullptr;
}

}  // namespace sdx::SDX_ISA::int8
