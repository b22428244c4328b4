// One decoder per ONNX message. Each merges into its record, as protobuf merges a message that is
// given twice; tensors are replaced, since their data are found through the last message's bytes.
#pragma once

#include "load/records.h"

namespace sdx {

void decode_graph(Reader r, Graph& graph);
void decode_node(Reader r, Node& node);
void decode_attribute(Reader r, Attribute& attribute);
void decode_tensor(Reader r, Tensor& tensor);
void decode_sparse_tensor(Reader r, SparseTensor& tensor);
void decode_type(Reader r, Type& type);
void decode_value_info(Reader r, ValueInfo& info);

// Documentation and metadata may be any bytes; names and file paths must be UTF-8.
StringEntry decode_entry(Reader r);
StringEntry decode_utf8_entry(Reader r);

}  // namespace sdx
