#include "engine/formats/gguf/gguf_names.h"

#include <algorithm>
#include <array>

namespace tandem::engine {
namespace {

constexpr std::string_view kBlock = "blk.";

constexpr auto kLlamaParts = std::to_array<GgufPart>({
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj", GgufChange::kQueryPairs},
    {"attn_k", "self_attn.k_proj", GgufChange::kKeyPairs},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
});
constexpr auto kQwenParts = std::to_array<GgufPart>({
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
});
constexpr auto kGemmaParts = std::to_array<GgufPart>({
    {"attn_norm", "input_layernorm", GgufChange::kPlus1},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm", GgufChange::kPlus1},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
});
constexpr auto kGemma2Parts = std::to_array<GgufPart>({
    {"attn_norm", "input_layernorm", GgufChange::kPlus1},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm", GgufChange::kPlus1},
    {"attn_k_norm", "self_attn.k_norm", GgufChange::kPlus1},
    {"post_attention_norm", "post_attention_layernorm", GgufChange::kPlus1},
    {"ffn_norm", "pre_feedforward_layernorm", GgufChange::kPlus1},
    {"post_ffw_norm", "post_feedforward_layernorm", GgufChange::kPlus1},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
});
constexpr auto kGpt2Parts = std::to_array<GgufPart>({
    {"attn_norm", "ln_1"},
    {"attn_qkv", "attn.c_attn", GgufChange::kTransposed},
    {"attn_output", "attn.c_proj", GgufChange::kTransposed},
    {"ffn_norm", "ln_2"},
    {"ffn_up", "mlp.c_fc", GgufChange::kTransposed},
    {"ffn_down", "mlp.c_proj", GgufChange::kTransposed},
});
constexpr auto kDecoderEnds = std::to_array<GgufPart>({
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
});
constexpr auto kGemmaEnds = std::to_array<GgufPart>({
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm", GgufChange::kPlus1},
    {"output", "lm_head"},
});
constexpr auto kGpt2Ends = std::to_array<GgufPart>({
    {"token_embd", "wte"},
    {"position_embd", "wpe"},
    {"output_norm", "ln_f"},
    {"output", "lm_head"},
});

// The list of architectures, one entry each. gguf_model.cc has the config.json fields of each.
constexpr auto kArchitectures = std::to_array<GgufArchitecture>({
    {"llama", "LlamaForCausalLM", "llama", kLlamaParts, kDecoderEnds, "model.layers."},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", kQwenParts, kDecoderEnds, "model.layers."},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", kQwenParts, kDecoderEnds, "model.layers."},
    {"gemma", "GemmaForCausalLM", "gemma", kGemmaParts, kGemmaEnds, "model.layers.",
     "GemmaTokenizer"},
    {"gemma2", "Gemma2ForCausalLM", "gemma2", kGemma2Parts, kGemmaEnds, "model.layers.",
     "GemmaTokenizer"},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text", kGemma2Parts, kGemmaEnds, "model.layers.",
     "GemmaTokenizer"},
    {"gpt2", "GPT2LMHeadModel", "gpt2", kGpt2Parts, kGpt2Ends, "h."},
});

// Renames the part before the last dot and keeps the rest: "attn_q.weight" ->
// "self_attn.q_proj.weight".
std::optional<GgufName> Rename(std::span<const GgufPart> parts, std::string_view GgufPart::*from,
                               std::string_view GgufPart::*to, std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  for (const GgufPart& part : parts) {
    if (part.*from != name.substr(0, dot)) continue;
    return GgufName{std::string(part.*to) + std::string(name.substr(dot)), part.change};
  }
  return std::nullopt;
}

// Renames "blk.3.attn_q.weight" to "model.layers.3.self_attn.q_proj.weight", or back.
std::optional<GgufName> RenameInBlock(std::span<const GgufPart> parts,
                                      std::string_view GgufPart::*from,
                                      std::string_view GgufPart::*to, std::string_view old_block,
                                      std::string_view new_block, std::string_view name) {
  const std::string_view rest = name.substr(old_block.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  auto part = Rename(parts, from, to, rest.substr(dot + 1));
  if (part) part->name.insert(0, std::string(new_block) + std::string(rest.substr(0, dot + 1)));
  return part;
}

}  // namespace

std::span<const GgufArchitecture> GgufArchitectures() { return kArchitectures; }

const GgufArchitecture* FindGgufArchitecture(std::string_view name) {
  const auto found =
      std::find_if(kArchitectures.begin(), kArchitectures.end(),
                   [&](const GgufArchitecture& architecture) { return architecture.name == name; });
  return found == kArchitectures.end() ? nullptr : &*found;
}

GgufName HfNameOf(const GgufArchitecture& a, std::string_view gguf) {
  const auto renamed =
      gguf.starts_with(kBlock)
          ? RenameInBlock(a.parts, &GgufPart::gguf, &GgufPart::hf, kBlock, a.block, gguf)
          : Rename(a.ends, &GgufPart::gguf, &GgufPart::hf, gguf);
  return renamed.value_or(GgufName{std::string(gguf), GgufChange::kNone});
}

std::optional<GgufName> GgufNameOf(const GgufArchitecture& a, std::string_view hf) {
  return hf.starts_with(a.block)
             ? RenameInBlock(a.parts, &GgufPart::hf, &GgufPart::gguf, a.block, kBlock, hf)
             : Rename(a.ends, &GgufPart::hf, &GgufPart::gguf, hf);
}

}  // namespace tandem::engine
