#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/infill_tokens.h"
#include "engine/api/pooling.h"
#include "engine/base/ids.h"
#include "engine/base/memory_ledger.h"
#include "engine/sampling/sampling_params.h"

namespace tandem::engine {

class ChatTemplate;
class GrammarCompiler;
class Model;
class Tokenizer;
struct ToolFormat;

// All parts of a model directory that serving needs. Immutable; shared.
struct LoadedModel {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Model> draft;          // guesses next tokens (AttachDraft); null: none
  std::shared_ptr<const Tokenizer> tokenizer;  // null: token ids only
  std::shared_ptr<const ChatTemplate> chat_template;  // null: chat requires --chat-template
  std::string chat_template_error;  // why the model's own template is unusable; empty if usable
  const ToolFormat* tool_format = nullptr;  // how the template writes tool calls; null: it does not
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::string bos_text;  // as chat templates expect them
  std::string eos_text;
  bool add_bos = false;  // plain-string prompts begin with BOS
  std::vector<TokenId>
      end_tokens;  // union over config.json, generation_config.json and tokenizer_config.json
  // Tokens that the tokenizer's post-processor puts behind a text; only embeddings have them.
  std::vector<TokenId> text_suffix;
  std::optional<InfillTokens> infill;  // nullopt: the model does not fill in text
  Pooling pooling = Pooling::kLast;    // of embeddings, unless the request names one
  std::string pooling_error;  // the model's own pooling, which is not supported; empty if it is
  SamplingParams default_sampling;                  // generation_config.json
  std::shared_ptr<const GrammarCompiler> grammars;  // for GenerationRequest::grammar; never null
  std::string format;                               // ModelDir::format
  std::string weights_dtype;  // Model::weights_type: "f32", "bf16", "int8", "gguf-int4-int8"
  std::string kv_dtype;       // the compute dtype, "f32" or "bf16"; or "int8"
  int64_t vocab_size = 0;
  int64_t hidden_dim = 0;     // length of an embedding
  int64_t max_model_len = 0;  // the smaller of the model's and the option's
  std::string fingerprint;    // changes with weights, build or numeric settings
  int64_t weight_bytes = 0;
  // Active parameters are those that one token uses: a model with experts has fewer than all.
  int64_t parameters = 0;
  int64_t active_parameters = 0;
  int64_t active_weight_bytes = 0;
  bool has_state = false;       // some layers are recurrent
  bool weights_mapped = false;  // the weights' file is shared between processes
};

// Memory needs of serving a model, from its config and tensor headers alone.
struct MemoryPlan {
  MemoryClaim least;    // with the KV cache of one sequence of max_model_len tokens
  int64_t most_kv = 0;  // KV cache of max_seqs such sequences
  int64_t max_model_len = 0;
  int64_t parameters = 0;
  int64_t active_parameters = 0;  // as in LoadedModel
  int64_t active_weights = 0;     // bytes of `least.weights` that one token reads
  std::string format;             // this and the next as in LoadedModel
  std::string weights_dtype;
};

}  // namespace tandem::engine
