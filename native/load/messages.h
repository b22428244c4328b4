// One decoder per ONNX message. Each adds to its record, so a message given twice is merged;
// tensors alone start anew, since their data are found again through the last message's bytes.
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

// Free text (documentation, metadata) may be any bytes; names and file paths must be UTF-8.
Entry decode_entry(Reader r);
Entry decode_strict_entry(Reader r);

}  // namespace sdx
