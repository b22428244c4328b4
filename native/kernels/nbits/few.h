// Products of few rows, which are as fast as weights are read: these are multiplied as they lie.
//
// Rows of x are first brought into an order in which they meet the fields of whole vectors of
// weights, in float or, at level 4, in 127 steps either way for each block.
#pragma once

#include "kernels/nbits/blocks.h"
#include "kernels/nbits/product.h"
#include "simd/dot.h"

namespace sdx::SDX_ISA::nbits {

enum class Order : uint8_t {
  straight,
  fields,  // of vectors of weights along k: the first ones of all lanes or bytes, the second
           // ones...
  words,   // the same within every 32 bits of weights
};

// How rows of x lie in the scratch: values, then the steps of blocks, then sums of blocks. Sums are
// those of the values, in steps or not.
struct Arranged {
  bool is_bytes;
  Order order;
  uint8_t flip;         // turns signed bytes into unsigned ones
  int64_t block;        // values that share a step and a sum: a block of weights, or a part of one
  int64_t n_blocks;     // whole vectors of them
  int64_t k;            // values, zeros at the end included
  int64_t value_bytes;  // of a row
  int64_t step_at, sum_at, flag_at;

  SDX_INLINE const float* steps(const Data& data, int64_t row) const {
    return reinterpret_cast<const float*>(data.scratch + step_at) + row * n_blocks;
  }
  SDX_INLINE const float* sums(const Data& data, int64_t row) const {
    return reinterpret_cast<const float*>(data.scratch + sum_at) + row * n_blocks;
  }
  template <class T>
  SDX_INLINE const T* values(const Data& data, int64_t row) const {
    return reinterpret_cast<const T*>(data.scratch + row * value_bytes);
  }
  // Whether a row holds no NaN or infinity, and can be multiplied before zero points are taken off.
  SDX_INLINE bool is_finite(const Data& data, int64_t row) const {
    return data.scratch[flag_at + row] == std::byte{0};
  }
};

struct Few {
  Product p;
  Arranged x;
  // For weights with k outside: sums of parts of k, [parts][m][width], are added up at the end.
  int64_t parts_at, n_parts, part_k, width;
};

// Rows of k, about 256, whose sums are added up by themselves.
SDX_INLINE int64_t part_of_k(int64_t rows) { return (256 + rows - 1) / rows * rows; }

// What a block adds to its column: the sum of steps times values, the zero points taken off.
SDX_INLINE f32v block_sum(f32v sum, f32v scale, f32v zero, f32v values) {
  const f32v off = zero * values;
  return sum * scale - off;
}

// Rows up to which this is faster than unpacking.
constexpr int64_t kFewFloats = 5, kFewBytes = 12;

// Phase: the rows of x. Items are rows.
Status arrange(const void* args, const Data& data, int64_t begin, int64_t end);
// Adds the areas of x to the scratch.
void place_rows(Few& f, Plan& plan);

// The end of a row's sums: those of a row that is not finite are made again, as they are defined.
void finish_sums(const Few& f, const Data& data, int64_t row, int64_t column, int64_t n,
                 float* sums);

// Plans for weights whose rows run along k, or hold all columns of one k. False where weights lie
// in a way that these cannot read.
bool plan_along(const Product& p, bool is_bytes, Plan& plan);
bool plan_ordered(const Product& p, Plan& plan);  // of bytes
bool plan_across(const Product& p, bool is_bytes, Plan& plan);

// Products of many rows in bytes.
bool plan_bytes(const Product& p, Plan& plan);

}  // namespace sdx::SDX_ISA::nbits
