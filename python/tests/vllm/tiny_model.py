"""A Qwen3-MoE checkpoint of random weights with a byte-level BPE tokenizer, made on the spot."""

import pathlib

TEXT = ["The mixture of experts routes every token to a few of its experts.",
        "A rank sums what the others sent and normalises the residual stream.",
        "Numbers: 0 1 2 3 4 5 6 7 8 9; letters: a b c d e f g h i j k l m n o p q r s t u v w x y z."]
PROMPTS = ["The mixture of experts", "A rank sums", "Numbers: 0 1 2", "letters: x y z", "the residual stream",
           "every token", "what the others sent", "a few of its experts routes"]


def make(folder, layers=4, hidden=128, experts=8, top_k=2, seed=0):
    """Writes config, weights (bfloat16) and tokenizer into `folder`; returns it as a string."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=384, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>",
                                         pad_token="<|end|>").save_pretrained(folder)
    torch.manual_seed(seed)
    config = transformers.Qwen3MoeConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=hidden, intermediate_size=2 * hidden,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        moe_intermediate_size=64, num_experts=experts, num_experts_per_tok=top_k, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[], max_position_embeddings=512, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=0, initializer_range=0.2)
    model = transformers.Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return str(folder)
