"""`BertOnnxModel`: a model with fused ops, and how many of each it has."""

from __future__ import annotations

import logging

import onnx

from sardonyx.convert import to_bytes
from sardonyx.convert.inference import infer_again
from sardonyx.errors import SardonyxError
from sardonyx.graph.graph import Graph
from sardonyx.passes import PassOptions, optimize
from sardonyx.passes.options import GraphOptimizationLevel
from sardonyx.transformers import activation_fusions, embedding_fusion, norm_fusions
from sardonyx.transformers.attention_fusion import attention, attention_options
from sardonyx.transformers.clean_graph import clean_graph
from sardonyx.transformers.fusion import Fuser, Fusion
from sardonyx.transformers.fusion_options import AttentionMaskFormat, FusionOptions
from sardonyx.transformers.gemm_fusion import fuse_gemm_fast_gelu
from sardonyx.transformers.onnx_model import OnnxModel
from sardonyx.transformers.original_forms import restore
from sardonyx.transformers.rms_norm_fusion import fuse_rms_norms
from sardonyx.transformers.rotary_fusion import rotary_embedding
from sardonyx.transformers.set_aside import Partial, partial

logger = logging.getLogger(__name__)

_FUSED = (
    "EmbedLayerNormalization", "Attention", "MultiHeadAttention", "Gelu", "FastGelu", "BiasGelu",
    "GemmFastGelu", "LayerNormalization", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "RotaryEmbedding",
)  # fmt: skip
_NORM_ATTRIBUTES = {"axis", "epsilon", "stash_type"}
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_QUANTIZED = (
    "QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization", "QOrderedMatMul",
)  # fmt: skip


class BertOnnxModel(OnnxModel):
    """A transformer, which `optimize` fuses."""

    def __init__(
        self,
        model: onnx.ModelProto,
        num_heads: int = 0,
        hidden_size: int = 0,
        model_type: str = "bert",
    ) -> None:
        """The number of heads and the hidden size are found in the graph."""
        super().__init__(model)
        self.model_type = model_type
        self.num_heads = num_heads
        self.hidden_size = hidden_size

    def optimize(
        self, options: FusionOptions | None = None, add_dynamic_axes: bool = False
    ) -> None:
        """Fuse what the options enable; with `add_dynamic_axes`, sizes of inputs are symbolic."""
        options = options or FusionOptions("bert")
        self._import_domains()
        try:
            part = partial(self.model)
        except SardonyxError as error:
            logger.warning("the model is returned as it is: %s", error)
            return
        self._fuse(part, options)
        if add_dynamic_axes:
            self.use_dynamic_axes()

    def _fuse(self, part: Partial, options: FusionOptions) -> None:
        """Let the model be the part of it that can be inferred, with fused ops, and the rest."""
        graph, basic = part.model.graph, GraphOptimizationLevel.ORT_ENABLE_BASIC
        opset = next((e.version for e in self.model.opset_import if _is_onnx(e.domain)), 0)
        disabled = {
            name
            for name, is_enabled in (
                ("GeluFusion", options.enable_gelu),
                ("FastGeluFusion", options.enable_gelu),
                ("LayerNormFusion", options.enable_layer_norm),
            )
            if not is_enabled
        }
        optimize(graph, PassOptions(level=basic, disabled=frozenset({"MatMulAddFusion"})))
        portable = frozenset({"MatMulAddFusion", "ConvActivationFusion", *disabled})
        extended = GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        optimize(graph, PassOptions(level=extended, disabled=portable))
        self._name_norms(graph)
        if options.enable_layer_norm:
            fuse_rms_norms(graph)
        fuser = Fuser(graph)
        for prefix, fusion in self._fusions(options, is_whole=not part.nodes):
            count = fuser.apply(fusion, prefix)
            logger.info("%s: %d", prefix, count)
            if count and prefix == "Attention":
                infer_again(graph)  # without the dims of masks, which may be less simple
        optimize(graph, PassOptions(level=basic, disabled=frozenset({"MatMulAddFusion"})))
        part.model.opsets.setdefault("com.microsoft", 1)
        result = onnx.ModelProto()
        result.ParseFromString(to_bytes(part.model, opset))
        part.put_back(result, self.model)
        restore(result, self.model)
        result.producer_name, result.producer_version = "sardonyx.transformers", ""
        self.initialize(result)
        if options.enable_gemm_fast_gelu:
            logger.info("GemmFastGelu: %d", fuse_gemm_fast_gelu(self))
        self.postprocess()

    def _name_norms(self, graph: Graph) -> None:
        """Name fused normalizations as onnxruntime does."""
        given = {node.output[0] for node in self.get_nodes_by_op_type("LayerNormalization")}
        norms = (node for node in graph.sorted_nodes() if node.op.key == ("", "LayerNormalization"))
        fused = [node for node in norms if node.outputs[0].name not in given]
        for number, node in enumerate(fused):
            node.name = f"LayerNorm_{number}"

    def _fusions(self, options: FusionOptions, is_whole: bool) -> list[tuple[str, Fusion]]:
        """Return the fusions that are enabled, in the order in which they run.

        As in onnxruntime, sums are fused only if the shapes of the whole model are known.
        """
        fuse_attention = attention(attention_options(self.model_type, options))
        skips = options.enable_skip_layer_norm and is_whole
        biases = options.enable_bias_skip_layer_norm
        mask_format = options.attention_mask_format
        takes_lengths = mask_format == AttentionMaskFormat.MaskIndexEnd
        implicit = [
            node.output[0]
            for node in self.get_nodes_by_op_type("LayerNormalization")
            if {attribute.name for attribute in node.attribute} - _NORM_ATTRIBUTES
            and self.get_node_attribute(node, "epsilon") is None
        ]
        table: list[tuple[bool, str, Fusion]] = [
            (options.enable_rotary_embeddings, "RotaryEmbedding", rotary_embedding()),
            (options.enable_attention, "Attention", fuse_attention),
            (options.enable_embed_layer_norm, "EmbedLayerNormalization",
             embedding_fusion.embed_layer_norm),
            (takes_lengths and options.enable_embed_layer_norm, "EmbedLayerNormalization",
             embedding_fusion.embedding_mask),
            (options.enable_gelu, "Gelu", activation_fusions.gelu),
            (options.enable_gelu, "QuickGelu", activation_fusions.quick_gelu),
            (options.enable_gelu_approximation, "FastGelu", activation_fusions.approximate_gelu),
            (options.enable_bias_gelu, "Gelu_AddBias", activation_fusions.bias_gelu),
            (skips, "SkipLayerNorm", norm_fusions.skip_layer_norm(implicit)),
            (skips and biases, "SkipLayerNorm_AddBias", norm_fusions.bias_skip_layer_norm),
        ]  # fmt: skip
        return [(prefix, fusion) for is_enabled, prefix, fusion in table if is_enabled]

    def clean_graph(self) -> None:
        """Simplify masks that are made of the shape of an input."""
        clean_graph(self)

    def postprocess(self) -> None:
        """Clean up, and remove what nothing reads."""
        self.clean_graph()
        self.prune_graph(allow_remove_graph_inputs=False)

    def _import_domains(self) -> None:
        """Import the domains of all nodes, which fusions of other tools may have left out."""
        imported = {entry.domain for entry in self.model.opset_import}
        for domain in sorted({node.domain for node in self.nodes()} - imported - {"", "ai.onnx"}):
            self.model.opset_import.append(onnx.helper.make_opsetid(domain, 1))

    def use_dynamic_axes(
        self, dynamic_batch_dim: str = "batch_size", dynamic_seq_len: str = "max_seq_len"
    ) -> None:
        """Name the first two dims of inputs, and the first one of outputs."""
        for value in self.model.graph.input:
            for dim, name in zip(
                value.type.tensor_type.shape.dim, (dynamic_batch_dim, dynamic_seq_len), strict=False
            ):
                dim.dim_param = name
        for value in self.model.graph.output:
            for dim in value.type.tensor_type.shape.dim[:1]:
                dim.dim_param = dynamic_batch_dim

    def change_graph_inputs_to_int32(self) -> None:
        """Make the ids that embeddings read int32 inputs, without the Casts between them."""
        makers = self.output_name_to_node()
        for node in self.get_nodes_by_op_type("EmbedLayerNormalization"):
            for name in node.input:
                cast = makers.get(name)
                source = cast.input[0] if cast is not None and cast.op_type == "Cast" else name
                value = self.find_graph_input(source)
                if value is not None and value.type.tensor_type.elem_type in _INTEGERS:
                    self.change_graph_input_type(value, onnx.TensorProto.INT32)

    def get_fused_operator_statistics(self) -> dict[str, int]:
        """Return the number of nodes of each fused op, also of those without any."""
        counts = self.get_operator_statistics()
        return {op: counts.get(op, 0) for op in (*_FUSED, *_QUANTIZED)}

    def is_fully_optimized(self, fused_op_count: dict[str, int] | None = None) -> bool:
        """Return whether there is attention, with a Gelu and normalizations for each."""
        counts = fused_op_count or self.get_fused_operator_statistics()
        attention = counts["Attention"] + counts["MultiHeadAttention"]
        gelu = counts["Gelu"] + counts["BiasGelu"] + counts["FastGelu"]
        norms = sum(counts[op] for op in _FUSED if op.endswith("Normalization"))
        return attention > 0 and gelu >= attention and norms >= 2 * attention


def _is_onnx(domain: str) -> bool:
    return domain in ("", "ai.onnx")
