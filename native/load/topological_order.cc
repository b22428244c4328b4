#include "load/topological_order.h"

#include <functional>
#include <unordered_map>
#include <unordered_set>

namespace sdx {
namespace {

// Calls f with each outer name that the node or a body in it reads: bodies capture outer values,
// and their own inputs, initializers and outputs shadow outer names.
void each_read(const Node& node, const std::function<void(std::string_view)>& f) {
  for (const std::string_view& name : node.inputs) f(name);
  for (const Attribute& attribute : node.attributes) {
    const auto* bodies = std::get_if<std::vector<Graph>>(&attribute.value);
    if (!bodies) continue;
    for (const Graph& body : *bodies) {
      std::unordered_set<std::string_view> own;
      for (const ValueInfo& input : body.inputs) own.emplace(input.name);
      for (const Tensor& tensor : body.initializers) own.emplace(tensor.name);
      for (const Node& inner : body.nodes)
        for (const std::string_view& name : inner.outputs) own.emplace(name);
      const std::function<void(std::string_view)> outer = [&](std::string_view name) {
        if (!own.count(name)) f(name);
      };
      for (const Node& inner : body.nodes) each_read(inner, outer);
      for (const ValueInfo& output : body.outputs) outer(output.name);
    }
  }
}

}  // namespace

bool is_sorted(const std::vector<Node>& nodes) {
  std::unordered_map<std::string_view, size_t> producers;
  for (size_t i = 0; i < nodes.size(); ++i)
    for (const std::string_view& name : nodes[i].outputs)
      if (!name.empty()) producers.emplace(name, i);
  for (size_t i = 0; i < nodes.size(); ++i) {
    bool reads_ahead = false;
    each_read(nodes[i], [&](std::string_view name) {
      const auto producer = producers.find(name);
      reads_ahead |= producer != producers.end() && producer->second >= i;
    });
    if (reads_ahead) return false;
  }
  return true;
}

}  // namespace sdx
