/* A custom op in C: a function of this type, handed to sardonyx.native_op. */
#ifndef SARDONYX_OP_H
#define SARDONYX_OP_H

#include <stdint.h>

typedef struct {
  void* data;          /* row-major, without gaps; null for an input that is left out */
  const int64_t* dims; /* `rank` sizes */
  int32_t rank;
  int32_t type; /* TensorProto.DataType of ONNX: 1 float, 7 int64, ... */
} sardonyx_tensor;

/* Reads the inputs, fills the outputs, which have the shapes of the op's shape rule. `numbers` are
   the attributes that are ints or floats, in the order they were declared. Returns 0, or a number
   that the error then names. May run on several threads simultaneously, for different tensors.
   Must stay inside the tensors, write to outputs only, keep none of the addresses, and neither
   throw nor jump out. */
typedef int (*sardonyx_op)(const sardonyx_tensor* inputs, int n_inputs,
                           const sardonyx_tensor* outputs, int n_outputs, const double* numbers,
                           int n_numbers);

#endif
