// Whether nodes are in topological order. ONNX requires it, but not all exporters comply.
#pragma once

#include "load/records.h"

namespace sdx {

// Whether every node, its bodies included, reads only outputs of nodes before it.
bool is_sorted(const std::vector<Node>& nodes);

}  // namespace sdx
