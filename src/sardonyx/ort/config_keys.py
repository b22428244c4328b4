"""Known config keys of sessions and runs; unknown ones are reported with the closest match."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final


class Keys:
    """Session config keys that have an effect and are not properties of SessionOptions."""

    ALLOW_SPINNING: Final = "session.intra_op.allow_spinning"
    CUDA_PARTITIONING: Final = "session.resource_cuda_partitioning_settings"
    DISABLE_PREPACKING: Final = "session.disable_prepacking"
    EXTERNAL_DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"
    FLUSH_DENORMALS: Final = "session.set_denormal_as_zero"
    FUNCTION_BYTE_LIMIT: Final = "session.function_expansion_byte_limit"
    FUNCTION_NODE_LIMIT: Final = "session.function_expansion_node_limit"
    KEEP_QDQ: Final = "session.disable_quant_qdq"
    LAYER_ASSIGNMENT: Final = "session.layer_assignment_settings"
    LOAD_FORMAT: Final = "session.load_model_format"
    NAMED_LAYER_ASSIGNMENT: Final = "session.name_based_layer_assignment"
    NBITS_ACCURACY: Final = "session.qdq_matmulnbits_accuracy_level"
    NBITS_BLOCK_SIZE: Final = "session.qdq_matmulnbits_block_size"
    NODE_STATS: Final = "session.collect_node_memory_stats_to_file"
    NO_CPU_FALLBACK: Final = "session.disable_cpu_ep_fallback"
    RECORD_ASSIGNMENT: Final = "session.record_ep_graph_assignment_info"
    SAVED_DATA_FILE: Final = "session.optimized_model_external_initializers_file_name"
    SAVED_DATA_MIN_BYTES: Final = "session.optimized_model_external_initializers_min_size_in_bytes"
    SAVE_FORMAT: Final = "session.save_model_format"
    SAVE_PACK: Final = "session.save_external_prepacked_constant_initializers"
    SHARE_BLOCK_POOL: Final = "session.use_env_allocators"
    SPIN_US: Final = "session.intra_op.spin_duration_us"
    STOP_SPINNING: Final = "session.force_spinning_stop"
    STRICT_INFERENCE: Final = "session.strict_shape_type_inference"
    THREAD_AFFINITIES: Final = "session.intra_op_thread_affinities"
    APPROXIMATE_GELU: Final = "optimization.enable_gelu_approximation"
    DISABLED_OPTIMIZERS: Final = "optimization.disable_specified_optimizers"
    FOLD_LIMIT: Final = "optimization.constant_folding_max_output_size_in_bytes"
    CACHE_PAGES: Final = "sardonyx.cache_pages"  # share a pool that caches pages, not blocks
    CONSUME_INPUTS: Final = "sardonyx.consume_inputs"  # release each input after its last use
    DEFER_WEIGHTS: Final = "sardonyx.defer_weights"  # to the first run
    DIM_HINTS: Final = "sardonyx.dim_hints"
    EXECUTION_ORDER: Final = "sardonyx.execution_order"
    HELD_INPUTS: Final = "sardonyx.held_inputs"  # names, separated by commas: not ours to release
    GROW_IN_PLACE: Final = "sardonyx.grow_in_place"  # key/value caches that are fed back
    MAX_ARENA_BYTES: Final = "sardonyx.max_arena_bytes"
    ORDER_EFFORT: Final = "sardonyx.order_effort"
    PACK_CACHE: Final = "sardonyx.pack_cache"
    PACK_CHECK: Final = "sardonyx.pack_check"
    PACK_VERIFY: Final = "sardonyx.pack_verify"
    PLACEMENT: Final = "sardonyx.placement"
    PRECISION: Final = "sardonyx.precision"
    STOP_AFTER_PASS: Final = "sardonyx.stop_after_pass"  # a number in passes/pipeline.py
    USE_PACK: Final = "sardonyx.use_pack"
    WEIGHTS: Final = "sardonyx.weights"


# Session keys that stand for a property of SessionOptions, which they set.
PROPERTIES: Final = {
    "session.log_id": "logid",
    **{
        f"session.{name}": name
        for name in (
            "enable_cpu_mem_arena", "enable_mem_pattern", "enable_profiling", "execution_mode",
            "graph_optimization_level", "inter_op_num_threads", "intra_op_num_threads",
            "log_severity_level", "log_verbosity_level", "optimized_model_filepath",
            "use_deterministic_compute", "use_per_session_threads",
        )
    },
}  # fmt: skip
SUPPORTED: Final = frozenset((*(v for k, v in vars(Keys).items() if k.isupper()), *PROPERTIES))

_MAPPED = "files are always mapped, and buffers never copied"
_MINIMAL = "it is for builds of onnxruntime that cannot optimize"
_NO_GPU = "it is for GPUs, and sessions run on the CPU"
_NO_CONTEXT = "no provider here compiles nodes to data of its own (EPContext)"
_NO_INTER = "parallel nodes (execution_mode) use the intra-op threads"
_EXACT = "quantized weights are read as they are stored"
_ORT_KERNELS = "it tunes onnxruntime's own kernels"
_EXPERTS = "there are no statistics of experts"

# Session keys of onnxruntime without an effect here, with the reason.
IGNORED: Final = {
    "session.use_device_allocator_for_initializers":
        "weights are always mapped or packed, in memory of their own",
    "session.use_ort_model_bytes_directly": _MAPPED,
    "session.use_ort_model_bytes_for_initializers": _MAPPED,
    "session.use_memory_mapped_ort_model": _MAPPED,
    "session.enable_saved_runtime_optimizations": _MINIMAL,
    "optimization.minimal_build_optimizations": _MINIMAL,
    "session.qdqisint8allowed": _MINIMAL,
    "session.max_shape_override": "workspaces have the size that each run needs",
    "session.enable_dq_matmulnbits_fusion": _EXACT,
    "session.disable_qdq_constant_folding": "DequantizeLinear is never folded",
    "session.disable_double_qdq_remover": "QDQ pairs are removed only if results stay the same",
    "session.enable_quant_qdq_cleanup": "QDQ pairs are removed only if results stay the same",
    "session.x64quantprecision": "integer matrix products do not saturate on any CPU",
    "optimization.enable_cast_chain_elimination": "casts are removed if that is exact",
    "optimization.memory_optimizer_config": "sardonyx.train chooses what to recompute by arguments",
    "optimization.enable_memory_probe_recompute_config":
        "sardonyx.train chooses what to recompute by arguments",
    "session.graph_optimizations_loop_level": "the worklist driver runs to the fixpoint",
    "session.disable_aot_function_inlining": "functions are always inlined while loading",
    "session.inter_op.allow_spinning": _NO_INTER,
    "session.inter_op.spin_duration_us": _NO_INTER,
    "session.inter_op.spin_backoff_max": _NO_INTER,
    "session.intra_op.spin_backoff_max": "spinning threads do not back off",
    "session.dynamic_block_base": "work is always split into four chunks per thread",
    "session.allow_released_opsets_only": "unreleased opsets are always rejected",
    "session.node_partition_config_file": "there is one stream",
    "session.debug_layout_transformation": "passes log their changes at severity 0",
    "session.disable_model_compile": _NO_CONTEXT,
    "session.fail_on_suboptimal_compiled_model": _NO_CONTEXT,
    "session.compile_only": _NO_CONTEXT,
    "ep.context_enable": _NO_CONTEXT,
    "ep.context_file_path": _NO_CONTEXT,
    "ep.context_embed_mode": _NO_CONTEXT,
    "ep.context_node_name_prefix": _NO_CONTEXT,
    "ep.share_ep_contexts": _NO_CONTEXT,
    "ep.stop_share_ep_contexts": _NO_CONTEXT,
    "ep.context_model_external_initializers_file_name": _NO_CONTEXT,
    "ep.context_source_model_path": _NO_CONTEXT,
    "ep.enable_weightless": _NO_CONTEXT,
    "ep.enable_weightless_ep_context_nodes": _NO_CONTEXT,
    "ep.nnapi.partitioning_stop_ops": "there is no NNAPI",
    "ep.dynamic.workload_type": "the CPU provider has no workload types",
    "ep.dynamic.qnn_htp_performance_mode": "there is no QNN",
    "mlas.enable_gemm_fastmath_arm64_bfloat16": "float32 matrix products are computed in float32",
    "mlas.use_lut_gemm": _ORT_KERNELS,
    "mlas.disable_kleidiai": _ORT_KERNELS,
    "mlas.kleidiai.conv_igemm_max_work": _ORT_KERNELS,
    "mlas.nchwc_pointwise_conv_max_input_channel_batch": _ORT_KERNELS,
    "mlas.nchwc_depthwise_sliding": _ORT_KERNELS,
    "mlas.qnbit.force_fp32": "accuracy levels under 4 multiply in float32 already",
    "session.use_external_initializer_file_buffers_directly": "buffers are never copied",
    "session.prepack.enable_parallel": "each weight is packed by all threads",
    "session.gqa_value_layout": "values have the layout of the model",
    "session.strict_workspace_verification": "the memory plan is exact",
    "session.enable_moe_expert_counting": _EXPERTS,
    "session.enable_moe_expert_statistics": _EXPERTS,
    "session.moe_expert_counter_alpha": _EXPERTS,
    "session.moe_expert_counter_beta": _EXPERTS,
    "session.moe_expert_counter_state_file": _EXPERTS,
    "ep.cuda.fpa_intb_gemm": _NO_GPU,
    "ep.cuda.fpa_intb_profile_m": _NO_GPU,
    "ep.cuda.gqa_workspace_max_total_sequence_length": _NO_GPU,
}  # fmt: skip


# Keys of RunOptions; all but the first are onnxruntime's.
RUN_KEYS: Final = frozenset((
    "sardonyx.outputs",
    "memory.enable_memory_arena_shrinkage", "disable_synchronize_execution_providers",
    "gpu_graph_id", "qnn.htp_perf_mode", "qnn.htp_perf_mode_post_run", "qnn.rpc_control_latency",
    "qnn.lora_config", "session.disable_cpu_ep_fallback",
))  # fmt: skip


def run_key_warning(key: str) -> str | None:
    """Return a warning for a misspelled key of a run; None if it is known or like no other."""
    hint = "" if key in RUN_KEYS else _hint(key, RUN_KEYS)
    return f"unknown run config key {key}{hint}" if hint else None


def session_key_warning(key: str) -> str | None:
    """Return a message about a session key; None if it is supported."""
    if key in SUPPORTED:
        return None
    if key in IGNORED:
        return f"the session config key {key} has no effect: {IGNORED[key]}"
    return f"unknown session config key {key}{_hint(key, SUPPORTED | IGNORED.keys())}"


def _hint(key: str, known: Iterable[str]) -> str:
    import difflib  # needed only for a wrong key

    near = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
