"""Session config keys, onnxruntime's and ours; any other is reported with the nearest one."""

from __future__ import annotations

from typing import Final

# Keys that change what a session does here.
HONOURED: Final = frozenset((
    "session.model_external_initializers_file_folder_path",
    "session.optimized_model_external_initializers_file_name",
    "session.optimized_model_external_initializers_min_size_in_bytes",
    "optimization.disable_specified_optimizers",
    "optimization.constant_folding_max_output_size_in_bytes",
    "session.graph_optimization_level",
    "session.enable_profiling",
    "session.optimized_model_filepath",
    "session.log_id",
    "session.log_severity_level",
    "session.log_verbosity_level",
    "sardonyx.defer_weights",
    "sardonyx.weights",
    "sardonyx.pack_cache",
    "sardonyx.pack_verify",
    "sardonyx.use_pack",
    "session.save_external_prepacked_constant_initializers",
    "sardonyx.grow_in_place",
    "sardonyx.execution_order",
    "sardonyx.order_effort",
    "sardonyx.dim_hints",
    "sardonyx.max_arena_bytes",
    "session.intra_op.allow_spinning",
    "session.intra_op_num_threads",
    "session.intra_op_thread_affinities",
    "session.inter_op_num_threads",
    "session.execution_mode",
    "session.enable_cpu_mem_arena",
    "session.enable_mem_pattern",
    "session.use_env_allocators",
    "session.use_per_session_threads",
    "session.use_deterministic_compute",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdq_matmulnbits_block_size",
    "session.collect_node_memory_stats_to_file",
))  # fmt: skip

# Keys that onnxruntime knows and that change nothing here.
ACCEPTED: Final = frozenset((
    "session.disable_prepacking",
    "session.use_device_allocator_for_initializers", "session.load_model_format",
    "session.save_model_format", "session.use_ort_model_bytes_directly",
    "session.use_ort_model_bytes_for_initializers", "session.use_memory_mapped_ort_model",
    "session.resource_cuda_partitioning_settings",
    "session.layer_assignment_settings", "session.name_based_layer_assignment",
    "session.max_shape_override", "session.enable_dq_matmulnbits_fusion",
    "session.disable_quant_qdq", "session.disable_qdq_constant_folding",
    "session.disable_double_qdq_remover", "session.enable_quant_qdq_cleanup",
    "session.qdqisint8allowed", "session.x64quantprecision",
    "optimization.enable_gelu_approximation", "optimization.enable_cast_chain_elimination",
    "optimization.minimal_build_optimizations", "optimization.memory_optimizer_config",
    "optimization.enable_memory_probe_recompute_config",
    "session.enable_saved_runtime_optimizations", "session.graph_optimizations_loop_level",
    "session.disable_aot_function_inlining", "session.set_denormal_as_zero",
    "session.inter_op.allow_spinning",
    "session.intra_op.spin_duration_us", "session.inter_op.spin_duration_us",
    "session.intra_op.spin_backoff_max", "session.inter_op.spin_backoff_max",
    "session.force_spinning_stop", "session.dynamic_block_base",
    "session.strict_shape_type_inference",
    "session.allow_released_opsets_only", "session.node_partition_config_file",
    "session.debug_layout_transformation", "session.disable_cpu_ep_fallback",
    "session.disable_model_compile", "session.fail_on_suboptimal_compiled_model",
    "session.record_ep_graph_assignment_info", "ep.context_enable", "ep.context_file_path",
    "ep.context_embed_mode", "ep.context_node_name_prefix", "ep.share_ep_contexts",
    "ep.stop_share_ep_contexts", "ep.context_model_external_initializers_file_name",
    "ep.context_source_model_path", "ep.enable_weightless",
    "ep.enable_weightless_ep_context_nodes", "ep.nnapi.partitioning_stop_ops",
    "ep.dynamic.workload_type", "ep.dynamic.qnn_htp_performance_mode",
    "mlas.enable_gemm_fastmath_arm64_bfloat16", "mlas.use_lut_gemm", "mlas.disable_kleidiai",
    "mlas.kleidiai.conv_igemm_max_work", "mlas.nchwc_pointwise_conv_max_input_channel_batch",
    "session.use_external_initializer_file_buffers_directly", "session.prepack.enable_parallel",
    "session.function_expansion_byte_limit", "session.function_expansion_node_limit",
    "session.gqa_value_layout", "session.strict_workspace_verification",
    "session.enable_moe_expert_counting", "mlas.qnbit.force_fp32", "mlas.nchwc_depthwise_sliding",
    "ep.cuda.fpa_intb_gemm", "ep.cuda.fpa_intb_profile_m",
    "ep.cuda.gqa_workspace_max_total_sequence_length",
))  # fmt: skip


# Keys of runs, onnxruntime's; the first one changes something here.
OF_RUNS: Final = frozenset((
    "memory.enable_memory_arena_shrinkage", "disable_synchronize_execution_providers",
    "gpu_graph_id", "qnn.htp_perf_mode", "qnn.htp_perf_mode_post_run", "qnn.rpc_control_latency",
    "qnn.lora_config", "session.disable_cpu_ep_fallback",
))  # fmt: skip


def advice_of_run(key: str) -> str | None:
    """What to tell the user of a key of a run: None if it is known, or like none that is."""
    if key in OF_RUNS:
        return None
    import difflib  # only a wrong key needs it

    near = difflib.get_close_matches(key, OF_RUNS, 1)
    return f"unknown run config key {key}; did you mean {near[0]}?" if near else None


def advice(key: str) -> str | None:
    """What to tell the user of a key: None if it is honoured."""
    if key in HONOURED:
        return None
    if key in ACCEPTED:
        return f"the session config key {key} changes nothing here"
    import difflib  # only a wrong key needs it

    near = difflib.get_close_matches(key, HONOURED | ACCEPTED, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown session config key {key}{hint}"
