// Orders of a part of any size that are found without looking far.
#pragma once

#include "exec/order/search.h"

namespace sdx::ordering {

// Takes the piece that changes the level most to the good, the first of equals.
Found greedy(const Part& part);

// Goes on with what reads the values that were made first, and runs what else that needs right
// before it: little waits where pieces read what is near.
Found oldest_first(const Part& part);

}  // namespace sdx::ordering
