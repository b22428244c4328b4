// Lowers the peak of an order, part by part.
#pragma once

#include "exec/order/part.h"

namespace sdx::ordering {

// Leaves the order with the lowest peak that is found; a peak of `floor` is low enough.
void improve(Line& line, const Pieces& pieces, int64_t floor, int effort);

}  // namespace sdx::ordering
