// Which tasks belong together.
#pragma once

#include "exec/order/flow.h"

namespace sdx::ordering {

struct Groups {
  Lists members;  // tasks, in the order in which they run
  Lists preds;    // groups with lower numbers
};

// Merges neighbours between which no other task needs to run. Levels and needs of sets of tasks are
// submodular, so a task that can only lower the level, and needs no more than the one before it
// did, may follow at once; and one that can only raise it, and needs no more than its only
// successor, may wait for that.
Groups merge(const Flow& flow);

}  // namespace sdx::ordering
