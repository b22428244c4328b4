// The rows of the family, each prepared in a file of its own kind.
//
// attention      softmax(q k^T) v, see attention.cc
// append         key, value, past key?, past value?, spans?, total?, query?, cos?, sin?, positions?
// append_at_run  the same, where only `total` says how long the new cache is
//   outputs  present key, present value, the query rotated by the angles of its places
//   ints     pairs of features are neighbours
// linear_attention  query, key, value, past state?, decay?, rate?
//   outputs  what tokens read, present state
//   ints     heads of the query, heads of keys and values; floats: scale
// rotary         x, cos, sin, positions?
//   ints     heads of an x of three axes, pairs of features are neighbours
// spans          lengths less 1, total, query (for its sizes)
//                or counts, none, query, keys (for their sizes)
//   output   for each of the batch the place of its first new row, and how many keys there are
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

Status attention(const Call& call, Plan& plan);
Status attention_bf16(const Call& call, Plan& plan);
Status append(const Call& call, Plan& plan);
Status resolve_append(const Call& call, const Data& data, View* out);
Status linear_attention(const Call& call, Plan& plan);
Status rotary(const Call& call, Plan& plan);
Status spans(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
