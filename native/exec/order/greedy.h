// An order of a part of any size, found by looking one step ahead.
#pragma once

#include "exec/order/search.h"

namespace sdx {

// Takes the piece that changes the level most to the good, the first of equals.
Found search_greedily(const Part& part);

}  // namespace sdx
