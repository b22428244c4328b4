// Whether nodes stand in an order in which they can be built.
#pragma once

#include "load/records.h"

namespace sdx {

// Every node reads only what nodes before it make, those in its bodies included.
bool is_sorted(const std::vector<Node>& nodes);

}  // namespace sdx
