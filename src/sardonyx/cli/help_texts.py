"""What `sardonyx --help` and the help of each command say."""

from __future__ import annotations

from typing import Final

DESCRIPTION: Final = "Run, inspect, measure and train ONNX models."
EXAMPLES: Final = """\
examples:
  sardonyx run                                    the built-in model on its samples
  sardonyx run model.onnx --dims batch=8          on random inputs of that size
  sardonyx run model.onnx --inputs x.npz --outputs y.npz
  sardonyx info model.onnx                        inputs, ops, weights and kernels
  sardonyx plan model.onnx --html plan.html       where the memory of a run goes
  sardonyx profile model.onnx                     where the time of a run goes
  sardonyx bench model.onnx --rivals onnxruntime  latency, start-up time and memory
  sardonyx pack model.onnx                        prepack weights: later starts are fast
  sardonyx train model.onnx data.npz -o out.onnx  train a model on arrays
  sardonyx bisect model.onnx                      find a pass that changes outputs
  sardonyx diff a.onnx b.onnx                     the first node where two models part
  sardonyx trace model.onnx -o values.npz         every value of a run
  sardonyx optimize model.onnx -o fast.onnx       save the optimized model
  sardonyx quantize model.onnx --data samples     quantize it within a loss

`sardonyx COMMAND --help` describes a command.
"""
RUN: Final = """\
Without MODEL, run the built-in classifier of handwritten digits on images outside its training
set. Inputs come from --inputs, else from a .npz file of the same name beside the model, else they
are generated: random floats, integers of 0 and 1, strings "a"; symbolic dims are 1.
"""
RUN_EXAMPLES: Final = """\
examples:
  sardonyx run
  sardonyx run bert.onnx --dims batch=1,sequence=128
  sardonyx run detector.onnx --shapes images=1x3x640x640 --profile trace.json
  sardonyx run model.onnx --inputs inputs.npz --outputs outputs.npz --json
  sardonyx run model.onnx --provider cuda --provider-option gpu_mem_limit=4000000000

A sequence is stored as the arrays NAME.0, NAME.1 and so on. Open a profile in
https://ui.perfetto.dev or chrome://tracing.
"""
INFO: Final = """\
Show a model's inputs and outputs, its ops and weights, which provider runs each node, and the
planned memory of a run. Weights are not read, so large models open quickly.
"""
INFO_EXAMPLES: Final = """\
examples:
  sardonyx info model.onnx
  sardonyx info model.onnx --nodes --why         each node, and why providers refused it
  sardonyx info model.onnx --dims batch=32       memory for that batch size
  sardonyx info model.onnx --html graph.html     the graph, by op, provider, time and memory
  sardonyx info model.onnx --provider cuda --why which nodes run on the GPU, and why not
  sardonyx info model.onnx --weights --all       each weight: mapped, packed or copied
  sardonyx info model.onnx --json | jq .python_steps
"""
BISECT: Final = """\
Find the graph pass that changes a model's outputs: run the model without any pass, then with
the first N passes of the pipeline, and search for the smallest N whose outputs differ from
those without passes. Inputs are chosen as by `sardonyx run`.
"""
BISECT_EXAMPLES: Final = """\
examples:
  sardonyx bisect model.onnx
  sardonyx bisect model.onnx --inputs inputs.npz --tolerance 1e-5
  sardonyx info model.onnx --stop-after 7 --dump    the graph after the first 7 passes
"""
BENCH: Final = """\
Measure models in sardonyx and in other runtimes: onnxruntime, openvino (on the CPU, in
float32), and any module with onnxruntime's interface. Each runtime has its own process, and
rounds alternate between them, so that other load on the machine affects all alike. Latency is
the median over rounds of each round's best run; start is the time to create a session, and memory
the anonymous memory that it adds, both medians over fresh processes. A rival with 1.14x takes 1.14
times as long as sardonyx: above 1x sardonyx is faster, below 1x it is slower.
"""
BENCH_EXAMPLES: Final = """\
examples:
  sardonyx bench model.onnx
  sardonyx bench *.onnx --rivals onnxruntime,openvino --threads 4 --rounds 9
  sardonyx bench model.onnx --rivals '' --json   sardonyx alone
"""
PLAN: Final = """\
Show where the memory of a run goes: the peak of each execution order, the tensors that are live at
the peak, and what would lower it. Nothing is run: all figures are those of the memory plan that a
run with these sizes uses, to the byte. Weights are not counted (see `sardonyx info --weights`), and
neither are inputs, which belong to the caller.
With SCRIPT.py:FUNCTION, show the same of a training step of a PyTorch module, with three memory
budgets. The function returns a module and its inputs (a tensor, a tuple, or a dict of keyword
arguments) and, as a third value, a loss function of the result; without one, the loss is the
result's `loss`, or the sum of its elements. The step is run.
"""
PLAN_EXAMPLES: Final = """\
examples:
  sardonyx plan model.onnx --dims batch=8
  sardonyx plan model.onnx --shapes image=2x3x224x224 --html plan.html
  sardonyx plan model.onnx --order reverse_depth_first --top 30
  sardonyx plan model.onnx --json | jq '.orders[] | {order, peak_bytes}'
  sardonyx plan train.py:example --html step.html        a training step of a PyTorch module
  sardonyx plan train.py:example --memory-budget 0.3

A session's config entry sardonyx.execution_order selects an order; least_peak is the default.
Sizes that depend on data, such as the number of detected boxes, are assumed to be 1 unless --dims
names them. The page of --html works offline and shows the lifetime of every tensor.
"""
PROFILE: Final = """\
Run a model and show where the time goes, by kernel family and by step, with the rates of each
(GFLOP/s: billions of multiplications and additions; GB/s: bytes read and written, each once) as a
share of this machine's roofline, which is measured between the runs. A step that computes at the
peak rate or moves bytes at the peak bandwidth has 100 % of its limit; with its data in a cache, or
with an algorithm that multiplies less, it can have more. Inputs are chosen as by `sardonyx run`.
"""
PROFILE_EXAMPLES: Final = """\
examples:
  sardonyx profile model.onnx
  sardonyx profile bert.onnx --dims batch=1,sequence=128 --threads 1 --top 30
  sardonyx profile model.onnx --trace trace.json      open it in https://ui.perfetto.dev
  sardonyx profile model.onnx --start                 where the start-up time goes
  sardonyx profile model.onnx --json | jq '.steps[] | select(.of_limit < 0.5) | .name'
"""
PACK: Final = """\
Write a model's optimized graph and its prepacked weights to a file beside the model. A session
that finds this pack maps it: it neither optimizes the graph nor prepacks weights, and processes
share one copy in the page cache. Weights that kernels read in their original layout stay in the
model's files.
A pack that does not match the model is reported and not used: a session verifies the digests of
files whose inode, size and times it does not know, once, and caches the result (in the folder of
sardonyx.pack_cache, else ~/.cache/sardonyx). The pack itself is verified in the same way; --verify
verifies all bytes again.
"""
PACK_EXAMPLES: Final = """\
examples:
  sardonyx pack model.onnx                        writes model.onnx.pack
  sardonyx pack model.onnx --verify               verifies every byte of pack and weights
  sardonyx pack model.onnx --standalone -o small/model.onnx
"""
TRAIN: Final = """\
Train a model on arrays, which a .npz file has by the names of the model's inputs, all with the same
number of samples. The output --loss is minimized; with --cross-entropy or --mse, a loss of that
output is added, and the arrays have its targets as `labels`. What was trained is written to
--output: the model with its new weights, without an added loss, or, with --lora, an adapter
(.onnx_adapter).
"""
TRAIN_EXAMPLES: Final = """\
examples:
  sardonyx train model.onnx data.npz --loss loss --epochs 5 -o trained.onnx
  sardonyx train classifier.onnx data.npz --cross-entropy scores --parameters 'head.*'
      --evaluation validation.npz --patience 3 --curve loss.svg -o trained.onnx
  sardonyx train model.onnx data.npz --loss loss --lora '*q_proj*' --rank 8 -o a.onnx_adapter
  sardonyx train model.onnx data.npz --loss loss --checkpoints run --save-every 100 -o out.onnx
      Ctrl-C writes a checkpoint; the same command with --resume continues
"""
SERVE: Final = """\
Answer inference requests over HTTP and gRPC, in the Open Inference Protocol v2 of KServe and
Triton, and for text models in OpenAI's interface for embeddings. Requests are batched
dynamically where that saves time. The server listens on this machine alone unless --host says
otherwise, and loads models only from the files and folders that are named. Its status page is
at /.
docs/serve.md has the configuration file.
"""
SERVE_EXAMPLES: Final = """\
examples:
  sardonyx serve resnet50.onnx bert=bert/model.onnx --port 8000 --grpc-port 8001
  sardonyx serve --folders models --load request --memory-limit 8000000000
  sardonyx serve --config serve.toml --workers 4
  sardonyx serve model.onnx --host 0.0.0.0 --token-file tokens --certificate c.pem --key k.pem
"""
DIFF: Final = """\
Run two models, or one model in two ways, on the same inputs, and find the first node, in the
topological order of A, whose values part. Nodes of two models are matched by name and by structure;
attributes, operands and weights that differ are reported with what they change. Values are compared
in groups, so that about twice the model's memory is used. The exit status is 0 if all values are
equal within the tolerance, 1 if some differ, 2 after an error. Inputs are chosen as by
`sardonyx run`.
"""
DIFF_EXAMPLES: Final = """\
examples:
  sardonyx diff model.onnx converted.onnx
  sardonyx diff model.onnx --with onnxruntime --dims batch=2
  sardonyx diff model.onnx --levels all,none --inputs inputs.npz
  sardonyx diff model.onnx --precisions exact,bf16 --tolerance 0.01
  sardonyx diff model.onnx --providers cpu,cuda
  sardonyx diff model.onnx --isas base,avx512 --json | jq .first
"""
TRACE: Final = """\
Run a model and save the values that its nodes compute, by name, with a table of their statistics.
Values are computed in groups and written as they are computed, so that about twice the model's
memory is used. Inputs are chosen as by `sardonyx run`. Without --output, only the table is printed.
"""
TRACE_EXAMPLES: Final = """\
examples:
  sardonyx trace model.onnx -o values.npz
  sardonyx trace model.onnx --nodes '*attention*' --dims batch=2 -o folder
  sardonyx trace model.onnx --level none --json | jq '.values[] | select(.nan > 0) | .name'
"""
OPTIMIZE: Final = """\
Save a model as the portable graph passes leave it: constants folded, common subexpressions merged,
patterns fused into standard ops and ops of com.microsoft. Other runtimes can load it. The weights
of a large model are written to a file of their own beside it.
"""
OPTIMIZE_EXAMPLES: Final = """\
examples:
  sardonyx optimize model.onnx -o optimized.onnx
  sardonyx optimize model.onnx --level basic -o optimized.onnx
  sardonyx optimize model.onnx -o optimized.onnx --external-data weights.bin
"""
CONVERT: Final = """\
Write a model with other element types, in another opset, with fixed sizes, with its weights inside
or beside it, or in the .ort format. Nothing else is changed or optimized. With --to, nodes compute
in 16 bits where their ops allow it, and Casts are added where types meet; weights beyond the limits
of the type are lowered to them.
"""
CONVERT_EXAMPLES: Final = """\
examples:
  sardonyx convert model.onnx --to float16 -o half.onnx
  sardonyx convert model.onnx --to float16 --keep-io-types --keep-ops Softmax,Pow -o half.onnx
  sardonyx convert model.onnx --dims batch=1,sequence=128 -o fixed.onnx
  sardonyx convert model.onnx --opset 17 -o old.onnx
  sardonyx convert model.onnx --external-data weights.bin -o small.onnx
  sardonyx convert model.onnx -o model.ort
"""
QUANTIZE: Final = """\
Quantize a model as far as --max-loss allows, on representative samples. Half of them are used for
calibration: the sensitivity of each layer is measured, schemes are compared, and the layers that
lose too much stay in float. The other half is held out to validate the result against the original.
Nothing is written unless the result loses at most --max-loss and is --min-speedup times as fast as
the original, measured interleaved in this process; the exit status is then 1. The loss is the
share of changed answers of a classifier (top1), lost accuracy if there are labels, growth of the
perplexity of a language model, or else the relative error of the outputs. Ctrl-C interrupts; the
same command continues.
"""
QUANTIZE_EXAMPLES: Final = """\
examples:
  sardonyx quantize model.onnx --data samples.npz --max-loss 0.5%
  sardonyx quantize detector.onnx --data samples/ --metric error --max-loss 5% --html report.html
  sardonyx quantize decoder.onnx --data tokens/ --goal size --bits 4 --max-loss 3%
  sardonyx quantize model.onnx --data samples.npz --json | jq '.layers[] | {name, error, choice}'

samples.npz has an array per input, by name, whose first axis are the samples, and may have labels.
"""
