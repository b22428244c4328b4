#include "exec/execution_order/cluster_graph.h"

#include <algorithm>

#include "exec/execution_order/merge_tasks.h"

namespace sdx::ordering {
namespace {

// Computes the stages of each cluster of a clustering.
class ClusterGraphBuilder {
 public:
  ClusterGraphBuilder(const TaskGraph& graph, Clustering clustering)
      : graph_(graph),
        seen_(graph.sizes.size(), -1),
        last_task_(graph.sizes.size()),
        n_clusters_(graph.sizes.size()) {
    clusters_.sizes = graph.sizes;
    clusters_.members = std::move(clustering.members);
    clusters_.preds = std::move(clustering.preds);
  }

  ClusterGraph run() {
    list_touches();
    for (int32_t p = 0; p < clusters_.count(); ++p) add_cluster(p);
    stages_.open();  // sentinel: where the lists of the last stage end
    clusters_.stages = std::move(stages_);
    clusters_.succs = inverse(clusters_.preds, clusters_.count());
    clusters_.users = inverse(clusters_.touches, graph_.n_buffers());
    return std::move(clusters_);
  }

 private:
  bool is_own(int32_t b) const { return n_clusters_[size_t(b)] == 1; }

  void list_touches();
  void add_cluster(int32_t cluster);
  void add_task(int32_t task);
  void add_pairs(int32_t task);
  void merge_stages();

  const TaskGraph& graph_;
  ClusterGraph clusters_;
  Stages stages_;
  std::vector<int32_t> seen_;        // by buffer: the last cluster that touched it
  std::vector<int32_t> last_task_;   // by buffer: the last task of the current cluster to touch it
  std::vector<int32_t> n_clusters_;  // by buffer: how many clusters touch it
  std::vector<int32_t> first_task_;  // by buffer: the first task of the current cluster to touch it
};

void ClusterGraphBuilder::list_touches() {
  for (int32_t p = 0; p < clusters_.count(); ++p)
    for (const int32_t t : clusters_.members[p])
      for (const int32_t b : graph_.touches[t])
        if (std::exchange(seen_[size_t(b)], p) != p) ++n_clusters_[size_t(b)];
  std::fill(seen_.begin(), seen_.end(), -1);
  for (int32_t p = 0; p < clusters_.count(); ++p) {
    for (const int32_t t : clusters_.members[p])
      for (const int32_t b : graph_.touches[t])
        if (std::exchange(seen_[size_t(b)], p) != p && !is_own(b))
          clusters_.touches.items.push_back(b);
    clusters_.touches.close();
  }
  std::fill(seen_.begin(), seen_.end(), -1);
  first_task_.resize(graph_.sizes.size());
}

void ClusterGraphBuilder::add_cluster(int32_t cluster) {
  for (const int32_t t : clusters_.members[cluster])
    for (const int32_t b : graph_.touches[t]) {
      if (std::exchange(seen_[size_t(b)], cluster) != cluster) first_task_[size_t(b)] = t;
      last_task_[size_t(b)] = t;
    }
  for (const int32_t t : clusters_.members[cluster]) {
    add_task(t);
    if (t != clusters_.members[cluster].front()) merge_stages();
  }
  stages_.close_cluster();
}

void ClusterGraphBuilder::add_pairs(int32_t task) {
  const auto number = [&](int32_t b) { return is_own(b) ? ~b : b; };  // ~b: own buffer (StagePair)
  for (const InPlacePair& pair : graph_.in_place_of(task))
    if (last_task_[size_t(pair.from)] == task && first_task_[size_t(pair.to)] == task)
      stages_.pairs.push_back({number(pair.from), number(pair.to), graph_.sizes[size_t(pair.to)]});
  // A single pair of buffers that no other cluster touches always shares: a fixed cost. Several
  // pairs may exclude each other, which Stages::shared_in resolves.
  Stage& stage = stages_.stages.back();
  if (int32_t(stages_.pairs.size()) != stage.in_place + 1) return;
  const StagePair pair = stages_.pairs.back();
  if (pair.from >= 0 || pair.to >= 0) return;
  stage.peak_increase -= pair.size;
  stages_.pairs.pop_back();
}

void ClusterGraphBuilder::add_task(int32_t task) {
  Stage& stage = stages_.open();
  stage.peak_increase = graph_.scratch[size_t(task)];
  add_pairs(task);
  for (const int32_t b : graph_.touches[task]) {
    const int64_t size = graph_.sizes[size_t(b)];
    const bool starts = first_task_[size_t(b)] == task, ends = last_task_[size_t(b)] == task;
    if (is_own(b)) {
      stage.peak_increase += starts ? size : 0;
      stage.change += (starts ? size : 0) - (ends ? size : 0);
      continue;
    }
    if (starts) stages_.starts.push_back(b);
    if (ends) stages_.ends.push_back(b);
  }
}

// Merges the last two stages if nothing between them depends on other clusters: then the later one
// only shifts by the earlier one's change.
void ClusterGraphBuilder::merge_stages() {
  const Stage last = stages_.stages.back();
  Stage& before = stages_.stages[stages_.stages.size() - 2];
  const bool has_pairs = before.in_place != int32_t(stages_.pairs.size());
  const bool has_starts = last.starts != int32_t(stages_.starts.size());
  if (has_pairs || has_starts || before.ends != last.ends) return;
  before.peak_increase = std::max(before.peak_increase, before.change + last.peak_increase);
  before.change += last.change;
  stages_.stages.pop_back();
}

}  // namespace

ClusterGraph contract(const TaskGraph& graph) {
  return ClusterGraphBuilder(graph, merge(graph)).run();
}

}  // namespace sdx::ordering
