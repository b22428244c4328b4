// The contents of an ONNX file as records of string views and offsets into its bytes: nothing here
// owns text or tensor data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "load/wire.h"

namespace sdx {

using StringEntry = std::pair<std::string_view, std::string_view>;  // key, value
using OpsetImport = std::pair<std::string_view, int64_t>;           // domain, version

// Which field of a TensorProto has the elements.
enum class TensorStorage : uint8_t { none, raw, float32, int32, int64, float64, uint64, string };

struct Tensor {
  std::string_view name;
  int32_t data_type = 0;
  int32_t location = 0;  // 1: external
  bool has_segment = false;
  bool is_in_place = false;  // [offset, offset + length) holds the elements, little-endian
  TensorStorage storage = TensorStorage::none;
  uint64_t offset = 0;
  uint64_t length = 0;
  std::vector<int64_t> dims;
  std::vector<StringEntry> external_data;
  Reader body;  // over the whole message: typed data are decoded on demand
};

struct SparseTensor {
  Tensor values;
  Tensor indices;
  std::vector<int64_t> dims;
};

struct Dim {
  std::variant<std::monostate, int64_t, std::string_view> size;
  std::string_view denotation;
};

enum class TypeKind : uint8_t { none, tensor, sparse, sequence, map, optional, opaque };

struct Type {
  TypeKind kind = TypeKind::none;
  int32_t elem_type = 0;
  int32_t key_type = 0;
  std::optional<std::vector<Dim>> shape;
  std::unique_ptr<Type> elem;
};

struct ValueInfo {
  std::string_view name;
  std::optional<Type> type;
};

struct Graph;

// The numbers of ONNX's AttributeProto.AttributeType.
enum AttributeType : int32_t {
  kUndefined = 0,
  kFloat = 1,
  kInt = 2,
  kString = 3,
  kTensor = 4,
  kGraph = 5,
  kFloats = 6,
  kInts = 7,
  kStrings = 8,
  kTensors = 9,
  kGraphs = 10,
  kSparseTensor = 11,
  kSparseTensors = 12,
  kType = 13,
  kTypes = 14,
};

struct Attribute {
  // A single tensor, graph or type is a vector of one, since Graph is incomplete here; `type`
  // distinguishes it from a list of one.
  using Value =
      std::variant<std::monostate, float, int64_t, std::string_view, std::vector<float>,
                   std::vector<int64_t>, std::vector<std::string_view>, std::vector<Tensor>,
                   std::vector<Graph>, std::vector<SparseTensor>, std::vector<Type>>;

  std::string_view name;
  std::string_view ref_attr_name;
  int32_t type = kUndefined;
  Value value;
};

struct Node {
  std::string_view op_type;
  std::string_view domain;
  std::string_view overload;
  std::string_view name;
  std::vector<std::string_view> inputs;
  std::vector<std::string_view> outputs;
  std::vector<Attribute> attributes;
  std::vector<StringEntry> metadata;
};

struct Graph {
  std::string_view name;
  std::string_view doc_string;
  std::vector<Node> nodes;
  std::vector<Tensor> initializers;
  std::vector<SparseTensor> sparse_initializers;
  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> outputs;
  std::vector<ValueInfo> value_infos;
};

struct Function {
  std::string_view domain;
  std::string_view name;
  std::string_view overload;
  std::vector<std::string_view> inputs;
  std::vector<std::string_view> outputs;
  std::vector<std::string_view> attributes;
  std::vector<Attribute> attribute_protos;
  std::vector<Node> nodes;
  std::vector<OpsetImport> opset_imports;
  std::vector<ValueInfo> value_infos;
};

struct Model {
  int64_t ir_version = 0;
  int64_t model_version = 0;
  std::string_view producer_name;
  std::string_view producer_version;
  std::string_view domain;
  std::string_view doc_string;
  std::vector<OpsetImport> opset_imports;
  std::vector<StringEntry> metadata;
  std::optional<Graph> graph;
  std::vector<Function> functions;
};

}  // namespace sdx
