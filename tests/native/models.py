"""Models that between them use every field of the ONNX format that the decoder reads."""

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, TypeProto, helper, numpy_helper


def dense(name: str, array: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(array, name)


def tensors() -> list[TensorProto]:
    """One per way of storing the data."""
    external = TensorProto(name="external", data_type=TensorProto.FLOAT, dims=[3])
    external.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "4096"), ("length", "12")):
        external.external_data.add(key=key, value=value)
    segment = helper.make_tensor("segment", TensorProto.FLOAT, [2], [1.0, 2.0])
    segment.segment.begin = 1
    wide = [0, 1, -1, 2**31 - 1, -(2**31), 127, 128, -128]
    return [
        dense("raw", np.arange(6, dtype=np.int16).reshape(2, 3)),
        dense("raw_empty", np.zeros((0, 4), np.float32)),
        TensorProto(name="nothing", data_type=TensorProto.FLOAT, dims=[0]),
        helper.make_tensor("float", TensorProto.FLOAT, [3], [1.5, -0.0, float("nan")]),
        helper.make_tensor("double", TensorProto.DOUBLE, [2], [1e300, -2.5]),
        helper.make_tensor("int32", TensorProto.INT32, [8], wide),
        helper.make_tensor("int64", TensorProto.INT64, [10], [*wide, 2**63 - 1, -(2**63)]),
        helper.make_tensor("uint64", TensorProto.UINT64, [3], [0, 2**64 - 1, 300]),
        helper.make_tensor("half", TensorProto.FLOAT16, [2], [1.0, -2.0]),
        helper.make_tensor("string", TensorProto.STRING, [3], [b"", b"a\xff\0", "π".encode()]),
        external,
        segment,
    ]


def sparse() -> onnx.SparseTensorProto:
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("indices", TensorProto.INT64, [2], [3, 900])
    return helper.make_sparse_tensor(values, indices, [40, 50])


def types() -> list[TypeProto]:
    shape = ["batch", 3, None, -1]
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, shape, ["DATA_BATCH", "c", "", "d"])
    opaque = TypeProto()
    opaque.opaque_type.name = "handle"
    unnamed = helper.make_tensor_type_proto(TensorProto.INT8, [4])
    unnamed.tensor_type.shape.dim[0].dim_param = ""
    return [
        tensor,
        helper.make_tensor_type_proto(TensorProto.INT64, []),
        helper.make_tensor_type_proto(TensorProto.BOOL, None),
        helper.make_sparse_tensor_type_proto(TensorProto.DOUBLE, [5, "n"]),
        helper.make_sequence_type_proto(tensor),
        helper.make_optional_type_proto(helper.make_sequence_type_proto(tensor)),
        helper.make_map_type_proto(TensorProto.STRING, tensor),
        opaque,
        unnamed,
        TypeProto(),
    ]


def body(depth: int) -> onnx.GraphProto:
    """A graph that holds itself `depth` times."""
    inner = {"then_branch": body(depth - 1)} if depth else {"value_int": 1}
    node = helper.make_node("If" if depth else "Constant", ["c"] if depth else [], ["y"], **inner)
    info = helper.make_value_info("y", types()[0])
    return helper.make_graph([node], f"body{depth}", [], [info], doc_string="ein Körper")


def attributes() -> list[AttributeProto]:
    """One per AttributeType, then the odd ones."""
    return [
        helper.make_attribute("f", float("nan")),
        helper.make_attribute("i", -(2**63)),
        helper.make_attribute("s", b"\xff bytes"),
        helper.make_attribute("t", tensors()[0]),
        helper.make_attribute("g", body(2)),
        helper.make_attribute("floats", [1.0, 2.5, float("inf")]),
        helper.make_attribute("ints", [1, -2, 2**40]),
        helper.make_attribute("strings", [b"", b"a", b"\xfe"]),
        helper.make_attribute("tensors", tensors()),
        helper.make_attribute("graphs", [body(0), body(1)]),
        helper.make_attribute("sparse", sparse()),
        helper.make_attribute("sparses", [sparse(), sparse()]),
        helper.make_attribute("tp", types()[4]),
        helper.make_attribute("type_protos", types()),
        helper.make_attribute("none", [], attr_type=AttributeProto.INTS),
        AttributeProto(name="zero", type=AttributeProto.INT),
        AttributeProto(name="empty", type=AttributeProto.STRING),
        AttributeProto(name="nothing"),
        AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="outer"),
    ]


def function() -> onnx.FunctionProto:
    made = helper.make_function(
        "local",
        "Twice",
        ["x"],
        ["y"],
        [helper.make_node("Mul", ["x", "two"], ["y"], name="mul")],
        [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
        attributes=["beta"],
        attribute_protos=[helper.make_attribute("alpha", 2.0)],
        overload="f32",
    )
    made.value_info.append(helper.make_value_info("y", types()[0]))
    return made


def everything() -> onnx.ModelProto:
    """One model with each field set."""
    node = helper.make_node("Op", ["x", "", "z"], ["", "y"], name="n/ö", domain="my", overload="v")
    node.attribute.extend(attributes())
    node.metadata_props.add(key="k", value="v")
    node.doc_string = "skipped"
    infos = [helper.make_value_info(f"v{i}", t) for i, t in enumerate(types())]
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["y"], ["r"])],
        "größe",
        infos,
        [onnx.ValueInfoProto(name="untyped")],
        tensors(),
        doc_string="words",
        value_info=infos[:2],
        sparse_initializer=[sparse()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("my", 3)],
        functions=[function()],
        producer_name="p",
        producer_version="1.2",
        domain="d",
        model_version=-7,
        doc_string="doc",
    )
    helper.set_model_props(model, {"author": "jemand", "": "no key"})
    return model


def standard_functions() -> onnx.ModelProto:
    """Every function body that the onnx package defines, as functions of one model."""
    model = onnx.ModelProto(ir_version=10)
    for schema in onnx.defs.get_all_schemas():
        if schema.has_function:
            model.functions.append(schema.function_body)
    return model
