#include "server/wire/unserved_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kNoConstraint =
    "use response_format, structured_outputs, guided_regex or guided_grammar (Lark)";
constexpr std::string_view kNoTools = "use tools and tool_choice of /v1/chat/completions";
constexpr std::string_view kNoSampler =
    "use temperature, top_k, top_p, min_p and the penalties instead";
constexpr std::string_view kNoTruncation =
    "this server never cuts a prompt; send a shorter prompt, or count it with /tokenize";
constexpr std::string_view kLimitTokens = "use max_tokens or max_completion_tokens";
constexpr std::string_view kStopStrings = "use stop or stop_token_ids";
constexpr std::string_view kThinking =
    "use reasoning_effort, or chat_template_kwargs with variables of the model's template";
constexpr std::string_view kTemplate =
    "the model's own template is used; start the server with --chat-template to change it";
constexpr std::string_view kTextOnly = "this server takes text and token ids only";
constexpr std::string_view kAdapters = "name the adapter in the field model";
constexpr std::string_view kReasoning = "this server always returns reasoning in its own field";

constexpr UnservedField kFields[] = {
    // Constrained output.
    {"guided_json_object", "[false]", kNoConstraint},
    {"grammar", R"([""])", kNoConstraint},
    {"regex", R"([""])", kNoConstraint},
    {"ebnf", R"([""])", kNoConstraint},
    {"structural_tag", R"([""])", kNoConstraint},
    {"bad_words", "[[]]", "use logit_bias with -100 for the token ids to avoid"},
    {"allowed_token_ids", "[]", "use logit_bias with 100 for the token ids to allow"},
    {"logits_processors", "[[]]", "use logit_bias"},
    {"custom_logit_processor", R"([""])", "use logit_bias"},
    {"vllm_xargs", "[{}]", "use logit_bias"},
    {"custom_params", "[{}]", "use logit_bias"},
    // Tools, functions, other modalities.
    {"functions", "[]", kNoTools},
    {"function_call", "[]", kNoTools},
    {"tools", "[[]]", kNoTools, false, true},
    {"tool_choice", R"(["none", "auto"])", kNoTools, false, true},
    {"documents", "[[]]", "put the documents into a message"},
    {"audio", "[]", kTextOnly},
    {"image_data", "[[]]", kTextOnly},
    {"prompt_embeds", "[]", kTextOnly},
    {"input_embeds", "[]", kTextOnly},
    {"web_search_options", "[]", "this server makes no requests of its own"},
    // Prompt.
    {"truncate_prompt_tokens", "[]", kNoTruncation},
    {"truncate", "[]", kNoTruncation},
    {"add_special_tokens", "[false]", "the chat template writes the special tokens", true, false},
    {"chat_template", R"([""])", kTemplate, true, false},
    {"echo", "[false]", "use continue_final_message to continue an answer", true, false},
    {"suffix", R"([""])", "this server does not fill in text between prompt and suffix", true,
     false},
    {"system_prompt", R"([""])", "send a message with the role system"},
    // Limits and stops.
    {"max_output_tokens", "[]", kLimitTokens},
    {"max_new_tokens", "[]", kLimitTokens},
    {"n_predict", "[-1]", kLimitTokens},
    {"min_new_tokens", "[0]", "use min_tokens"},
    {"t_max_predict_ms", "[0, -1]", kLimitTokens},
    {"n_indent", "[0]", kStopStrings},
    {"stop_sequences", "[[]]", kStopStrings},
    {"stop_regex", R"(["", []])", kStopStrings},
    {"no_stop_trim", "[false]", "use include_stop_str_in_output"},
    {"repetition_detection", "[]", "use repetition_penalty or frequency_penalty"},
    // Reasoning.
    {"thinking", "[]", kThinking},
    {"enable_thinking", "[]", kThinking},
    {"thinking_budget", "[]", kThinking},
    {"thinking_budget_tokens", "[-1]", kThinking},
    {"thinking_token_budget", "[]", kThinking},
    {"reasoning", "[{}]", kThinking},
    {"reasoning_format", R"(["auto", "deepseek"])", kReasoning},
    {"include_reasoning", "[true]", kReasoning},
    {"separate_reasoning", "[true]", kReasoning},
    // Choice between candidates.
    {"best_of", "[1]", "use n, or best_of of /v1/completions", true, false},
    {"n_cmpl", "[1]", "use n"},
    {"use_beam_search", "[false]", "use best_of of /v1/completions"},
    {"beam_width", "[1]", "use best_of of /v1/completions"},
    {"length_penalty", "[1]", "this server has no beam search"},
    {"early_stopping", "[false]", "this server has no beam search"},
    // Sampling.
    {"do_sample", "[true]", "use temperature 0 for the likeliest tokens"},
    {"repeat_penalty", "[1]", "use repetition_penalty"},
    {"mirostat", "[0]", kNoSampler},
    {"dry_multiplier", "[0]", kNoSampler},
    {"xtc_probability", "[0]", kNoSampler},
    {"typical_p", "[1]", kNoSampler},
    {"tfs_z", "[1]", kNoSampler},
    {"top_a", "[0]", kNoSampler},
    {"top_n_sigma", "[0, -1]", kNoSampler},
    {"dynatemp_range", "[0]", kNoSampler},
    {"adaptive_target", "[-1]", kNoSampler},
    {"min_keep", "[0, 1]", kNoSampler},
    {"samplers", "[]", "this server applies its samplers in one order"},
    {"no_repeat_ngram_size", "[0]", kNoSampler},
    {"watermark", "[false]", "this server does not mark its text"},
    // Text of the answer, and adapters.
    {"spaces_between_special_tokens", "[true]", "this server joins tokens as the tokenizer says"},
    {"lora", "[[]]", kAdapters},
    {"lora_path", R"([""])", kAdapters},
    {"adapter_id", R"([""])", kAdapters},
};

bool IsNeutral(const Json& value, std::string_view neutral_values) {
  const Json neutral = Json::parse(neutral_values);
  return std::find(neutral.begin(), neutral.end(), value) != neutral.end();
}

}  // namespace

std::span<const UnservedField> UnservedFields() { return kFields; }

void RefuseUnservedFields(FieldReader& reader, GenerationRoute route) {
  for (const UnservedField& field : kFields) {
    if (!(route == GenerationRoute::kChat ? field.in_chat : field.in_completions)) continue;
    const Json* value = reader.Any(field.name);
    if (value == nullptr || IsNeutral(*value, field.neutral_values)) continue;
    const std::string name(field.name);
    throw UnsupportedField(name, name + " is not supported: " + std::string(field.advice));
  }
}

}  // namespace tandem::server
