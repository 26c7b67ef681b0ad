"""Writes a tiny Llama with random weights and a tokenizer of its own: run by vLLM's Python.

Head size 64: with 16 the CPU kernel of vLLM 0.32.0 fails at the first request.
"""

import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = sys.argv[1]

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(
    vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
)
tokenizer.train_from_iterator(["hello world"], trainer)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
fast.save_pretrained(folder)

config = LlamaConfig(
    vocab_size=len(fast),
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=256,
    bos_token_id=fast.bos_token_id,
    eos_token_id=fast.eos_token_id,
)
LlamaForCausalLM(config).save_pretrained(folder)
