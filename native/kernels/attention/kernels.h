// The kernels of the family and their operands.
//
//   attention      softmax(q k^T) v, see attention.cc
//   attention_training, attention_gradient
//                  the same for training, see attention.cc and gradient.cc
//   append         updates a KV cache: key, value, past key?, past value?, spans?, total?, query?,
//                  cos?, sin?, positions?
//   append_at_run  the same, where only the value of `total` gives the length of the new cache
//     outputs  present key, present value, the query after rotary embedding
//     ints     whether rotary pairs are interleaved features
//   linear_attention  query, key, value, past state?, decay?, rate?
//     outputs  the result for each token, present state
//     ints     heads of the query, heads of keys and values; floats: scale
//   rotary         x, cos, sin, positions?
//     ints     heads of an x with three axes, whether rotary pairs are interleaved features
//   spans          lengths less 1, total, query (for its sizes)
//                  or counts, none, query, keys (for their sizes)
//     output   for each batch entry the position of its first new row, and its number of keys
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

Status attention(const Call& call, Plan& plan);
Status attention_bf16(const Call& call, Plan& plan);
Status attention_gradient(const Call& call, Plan& plan);
Status append(const Call& call, Plan& plan);
Status resolve_append(const Call& call, const Data& data, View* out);
Status linear_attention(const Call& call, Plan& plan);
Status rotary(const Call& call, Plan& plan);
Status spans(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
