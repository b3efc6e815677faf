"""Compares llama.cpp with transformers on GGUF files of random models, through `tandem convert`.

`llama_transformers.py BINARY [NAME]...`; README.md says which packages it needs and what it checks.
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers as tf
from transformers.models.gemma3n import modeling_gemma3n

from llama_logits import LIMIT, library, logits_of

TOKENS = 40
DEVIATIONS = 1.6448533535003662  # above the mean, of 95 % of a normal distribution
SMALL = {"vocab_size": 160, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2}
SCAN = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 32, "mamba_n_groups": 2, "mamba_d_conv": 4}


class HalfGelu(torch.nn.Module):
    """llama.cpp's GELU is a table of f16."""

    def forward(self, x):
        return torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()


def above_cut(_, gates):
    """As in llama.cpp, which divides the variance by n - 1; transformers divides by n."""
    return torch.relu(gates - gates.mean(-1, keepdim=True) - DEVIATIONS * gates.std(-1, keepdim=True))


def gemma3n():
    """llama.cpp takes these numbers of layers, streams and ranks from E2B, whatever the file says."""
    layers = 30
    modeling_gemma3n.Gemma3nTextMLP._gaussian_topk = above_cut
    model = tf.Gemma3nForCausalLM(tf.Gemma3nTextConfig(**{
        **SMALL, "intermediate_size": [96] * layers, "num_hidden_layers": layers, "num_kv_shared_layers": 10,
        "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 160, "sliding_window": 12,
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20}))
    for module in model.modules():
        if hasattr(module, "act_fn"):
            module.act_fn = HalfGelu()
    return model


def falcon_h1(norm):
    return tf.FalconH1ForCausalLM(tf.FalconH1Config(**{
        **SMALL, **SCAN, "intermediate_size": 96, "num_hidden_layers": 3, "mamba_d_ssm": 128, "mamba_rms_norm": norm,
        "mamba_norm_before_gate": False, "embedding_multiplier": 5.0, "lm_head_multiplier": 0.5,
        "attention_in_multiplier": 0.75, "attention_out_multiplier": 0.9, "key_multiplier": 0.4,
        "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.2, "mlp_multipliers": [0.9, 0.3],
        "ssm_multipliers": [0.3, 0.25, 0.2, 0.5, 0.35], "tie_word_embeddings": False}))


def nemotron_h(latent):
    return tf.NemotronHForCausalLM(tf.NemotronHConfig(**{
        **SMALL, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "num_hidden_layers": 4,
        "mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 32, "conv_kernel": 4,
        "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 56, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5,
        "moe_latent_size": latent, "tie_word_embeddings": False}))


CASES = {
    "gemma-3n": gemma3n,
    "falcon-h1": lambda: falcon_h1(False),
    "falcon-h1, norm": lambda: falcon_h1(True),
    "nemotron-h, experts": lambda: nemotron_h(None),
    "nemotron-h, latent experts": lambda: nemotron_h(32),
}

GAIN = {"gemma-3n": 0.15}  # of matrices: thirty layers enlarge the table's errors


def build(make, gain):
    torch.manual_seed(1)
    model = make().eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.dim() > 1 and "conv" not in name:
                tensor.normal_(0, gain / tensor.shape[-1] ** 0.5 if "embed" not in name else 0.5)
            elif name.endswith(("norm.weight", "norm_f.weight")):
                tensor.uniform_(0.8, 1.2)
            elif name.endswith("dt_bias"):
                tensor.uniform_(0.5, 1.0)  # steps above time_step_min
            elif name.endswith("e_score_correction_bias"):
                tensor.uniform_(-0.1, 0.1)
    return model


def check(lib, binary, model, scratch):
    model.save_pretrained(scratch / "model")
    path = scratch / "model.gguf"
    subprocess.run([binary, "convert", str(scratch / "model"), str(path), "--to", "gguf", "--dtype", "f32"],
                   capture_output=True, text=True, check=True)
    ids = [(7 * i * i + 3 * i + 5) % 150 + 3 for i in range(TOKENS)]
    with torch.no_grad():
        wanted = model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
    worst = 0.0
    for at_once in (False, True):
        rows = logits_of(lib, path, ids, wanted.shape[1], at_once)
        if rows is None:
            return None
        worst = max(worst, float(abs(rows - wanted[-len(rows):]).max()) / float(abs(wanted).max()))
    return worst


def main():
    binary, only = sys.argv[1], sys.argv[2:]
    lib = library()
    faults = compared = 0
    for name, make in CASES.items():
        if only and not any(part in name for part in only):
            continue
        compared += 1
        with tempfile.TemporaryDirectory() as scratch:
            try:
                worst = check(lib, binary, build(make, GAIN.get(name, 0.5)), pathlib.Path(scratch))
            except subprocess.CalledProcessError as refused:
                print(f"{name}: {refused.stderr.strip()} WRONG", flush=True)
                faults += 1
                continue
        line = "llama.cpp does not load the file" if worst is None else f"{worst:.1e} of the largest logit"
        is_wrong = worst is None or worst > LIMIT
        faults += is_wrong
        print(f"{name}: {line}{' WRONG' if is_wrong else ''}", flush=True)
    print(f"{compared} models compared, {faults} faults")
    return 1 if faults or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
