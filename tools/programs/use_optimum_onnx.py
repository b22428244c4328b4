# /// script
# dependencies = ["optimum-onnx[onnxruntime]==0.1.0", "torch==2.13.0", "pillow"]
# ///
"""optimum-onnx: ORTModelFor* of five kinds, exported from made-up transformers of torch."""

import tempfile

import torch
from optimum.onnxruntime import (
    ORTModelForCausalLM,
    ORTModelForFeatureExtraction,
    ORTModelForImageClassification,
    ORTModelForSeq2SeqLM,
    ORTModelForSequenceClassification,
)
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

BERT = BertConfig(
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    num_labels=3,
)
GPT2 = GPT2Config(vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=4)
T5 = T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
T5.decoder_start_token_id = 0
VIT = ViTConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
    num_labels=5,
)
KINDS = (
    (BertModel, BERT, ORTModelForFeatureExtraction),
    (BertForSequenceClassification, BERT, ORTModelForSequenceClassification),
    (GPT2LMHeadModel, GPT2, ORTModelForCausalLM),
    (T5ForConditionalGeneration, T5, ORTModelForSeq2SeqLM),
    (ViTForImageClassification, VIT, ORTModelForImageClassification),
)


def make():
    models = []
    for original, config, optimum in KINDS:
        torch.manual_seed(0)
        folder = tempfile.mkdtemp()
        original(config).eval().save_pretrained(folder)
        models.append(optimum.from_pretrained(folder, export=True))
    return models


def use(models):
    features, classes, causal, translation, images = models
    ids = torch.arange(2, 26).reshape(2, 12)
    tokens = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    picture = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
    greedy = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    return {
        "features": features(**tokens).last_hidden_state,
        "classes": classes(**tokens).logits,
        "continued": causal.generate(**tokens, pad_token_id=0, **greedy),
        "beams": causal.generate(**tokens, pad_token_id=0, num_beams=3, **greedy),
        "translated": translation.generate(**tokens, **greedy),
        "images": images(pixel_values=picture).logits,
    }
