// Exact contraction: merges tasks that some order of least peak runs one right after the other,
// which shrinks the graph that search.h explores, often to a fraction.
#pragma once

#include "exec/execution_order/task_graph.h"

namespace sdx::ordering {

struct Clustering {
  ListOfLists members;  // by cluster: tasks, in execution order
  ListOfLists preds;    // by cluster: clusters with lower numbers
};

// The number of live bytes after a set of finished tasks is a submodular function of the set:
// running other tasks before a task can only lower what it adds. Two exchange arguments follow from
// that.
//   - A task that never raises the live bytes, and needs no more than its only predecessor did, can
//     run right after it: moving it forward raises no step between them.
//   - A task that never lowers the live bytes, and needs no more than its only successor, can wait
//     and run right before it.
// Both are applied to clusters too, in a few rounds, until nothing merges.
Clustering merge(const TaskGraph& graph);

}  // namespace sdx::ordering
