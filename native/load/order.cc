#include "load/order.h"

#include <functional>
#include <unordered_map>
#include <unordered_set>

namespace sdx {
namespace {

// Calls f with each name that the node, or a body in it, reads and does not make itself.
void each_read(const Node& node, const std::function<void(Text)>& f) {
  for (const Text& name : node.inputs) f(name);
  for (const Attribute& attribute : node.attributes) {
    const auto* bodies = std::get_if<std::vector<Graph>>(&attribute.value);
    if (!bodies) continue;
    for (const Graph& body : *bodies) {
      std::unordered_set<Text> own;
      for (const ValueInfo& input : body.inputs) own.emplace(input.name);
      for (const Tensor& tensor : body.initializers) own.emplace(tensor.name);
      for (const Node& inner : body.nodes)
        for (const Text& name : inner.outputs) own.emplace(name);
      const std::function<void(Text)> outer = [&](Text name) {
        if (!own.count(name)) f(name);
      };
      for (const Node& inner : body.nodes) each_read(inner, outer);
      for (const ValueInfo& output : body.outputs) outer(output.name);
    }
  }
}

}  // namespace

bool is_sorted(const std::vector<Node>& nodes) {
  std::unordered_map<Text, size_t> makers;
  for (size_t i = 0; i < nodes.size(); ++i)
    for (const Text& name : nodes[i].outputs)
      if (!name.empty()) makers.emplace(name, i);
  for (size_t i = 0; i < nodes.size(); ++i) {
    bool is_early = false;
    each_read(nodes[i], [&](Text name) {
      const auto maker = makers.find(name);
      is_early |= maker != makers.end() && maker->second >= i;
    });
    if (is_early) return false;
  }
  return true;
}

}  // namespace sdx
