#include "training/spec.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "engine/base/edit_distance.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"

namespace tandem::training {
namespace {

constexpr size_t kMaxSpecBytes = 4 << 20;

// What one key was given: a scalar, or a list of scalars.
struct Given {
  std::vector<std::string> words;
  bool is_list = false;
};

// A value that does not suit its key; caught by the reader, which collects all of them.
class BadValue : public Error {
 public:
  explicit BadValue(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

using Setter = std::function<void(TrainSpec&, const Given&)>;

const std::string& Scalar(const Given& given) {
  if (given.is_list) throw BadValue("must be a single value, not a list");
  return given.words[0];
}

double ParseNumber(const std::string& word) {
  double value = 0;
  const char* end = word.data() + word.size();
  const auto [stop, failed] = std::from_chars(word.data(), end, value);
  if (failed != std::errc() || stop != end || !std::isfinite(value)) {
    throw BadValue("must be a number, got \"" + word + "\"");
  }
  return value;
}

int64_t ParseInteger(const std::string& word) {
  const double value = ParseNumber(word);  // so that 1e4 is welcome
  if (value != std::floor(value) || std::abs(value) > 0x1p53) {
    throw BadValue("must be a whole number, got " + word);
  }
  return static_cast<int64_t>(value);
}

std::string Shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

void CheckRange(double value, double min, double max) {
  if (value >= min && value <= max) return;
  throw BadValue("must be in [" + Shown(min) + ", " + Shown(max) + "], got " + Shown(value));
}

// `field` finds the place in the spec: a lambda returning a reference.
template <class Field>
Setter Integer(Field field, double min, double max) {
  return [=](TrainSpec& spec, const Given& given) {
    const int64_t value = ParseInteger(Scalar(given));
    CheckRange(static_cast<double>(value), min, max);
    using Target = std::remove_reference_t<decltype(field(spec))>;
    field(spec) = static_cast<Target>(value);
  };
}

template <class Field>
Setter Number(Field field, double min, double max) {
  return [=](TrainSpec& spec, const Given& given) {
    const double value = ParseNumber(Scalar(given));
    CheckRange(value, min, max);
    field(spec) = value;
  };
}

bool ParseBool(const std::string& word) {
  if (word == "true" || word == "True" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "False" || word == "no" || word == "off") return false;
  throw BadValue("must be true or false, got \"" + word + "\"");
}

template <class Field>
Setter Bool(Field field) {
  return [=](TrainSpec& spec, const Given& given) { field(spec) = ParseBool(Scalar(given)); };
}

template <class Field>
Setter Text(Field field) {  // also paths
  return [=](TrainSpec& spec, const Given& given) { field(spec) = Scalar(given); };
}

template <class Field>
Setter List(Field field) {
  return [=](TrainSpec& spec, const Given& given) { field(spec) = given.words; };
}

template <class Field, class Enum>
Setter Choice(Field field, std::vector<std::pair<std::string, Enum>> choices) {
  return [=](TrainSpec& spec, const Given& given) {
    const std::string& word = Scalar(given);
    std::string names;
    for (const auto& [name, value] : choices) {
      if (name == word) {
        field(spec) = value;
        return;
      }
      names.append(names.empty() ? "" : ", ").append(name);
    }
    throw BadValue("must be one of " + names + "; got \"" + word + "\"");
  };
}

template <class Field>
Setter Compute(Field field) {
  const Setter choice = Choice(
      field, std::vector<std::pair<std::string, engine::DType>>{{"bf16", engine::DType::kBF16},
                                                                {"bfloat16", engine::DType::kBF16},
                                                                {"f32", engine::DType::kF32},
                                                                {"float32", engine::DType::kF32}});
  return [=](TrainSpec& spec, const Given& given) {
    const std::string& word = Scalar(given);
    if (word == "int8" || word == "int4") {
      throw BadValue(word + " weights can be served but not trained: train in bf16 and serve the " +
                     "result with --dtype " + word +
                     ", or train an adapter beside them with lora.base_dtype: " + word);
    }
    choice(spec, given);
  };
}

template <class Field>
Setter BaseType(Field field) {
  const Setter choice =
      Choice(field, std::vector<std::pair<std::string, LoraBase>>{{"auto", LoraBase::kAuto},
                                                                  {"f32", LoraBase::kF32},
                                                                  {"float32", LoraBase::kF32},
                                                                  {"bf16", LoraBase::kBF16},
                                                                  {"bfloat16", LoraBase::kBF16},
                                                                  {"int8", LoraBase::kInt8},
                                                                  {"int4", LoraBase::kInt4}});
  return [=](TrainSpec& spec, const Given& given) {
    if (Scalar(given) == "nf4") {
      throw BadValue("nf4 is no format here; int4 takes as much memory and is served as well");
    }
    choice(spec, given);
  };
}

// MaxText writes -1 where we write 0: "choose for me" or "never".
template <class Field>
Setter IntegerOrMinusOne(Field field, double max) {
  return [=](TrainSpec& spec, const Given& given) {
    const int64_t value = ParseInteger(Scalar(given));
    CheckRange(static_cast<double>(value), -1, max);
    field(spec) = std::max<int64_t>(value, 0);
  };
}

struct Key {
  std::vector<std::string> names;  // ours, then the aliases
  Setter set;
};

constexpr double kBig = 1e12;

// Every key there is.
const std::vector<Key>& Keys() {
#define FIELD(path) \
  [](TrainSpec & s) -> auto& { return s.path; }
  static const std::vector<Key>
      keys =
          {
              {{"version"},
               [](TrainSpec&, const Given& given) {
                 if (ParseInteger(Scalar(given)) != 1) throw BadValue("must be 1");
               }},
              {{"kind"},
               Choice(FIELD(kind),
                      std::vector<std::pair<std::string, std::string>>{
                          {"train.pretrain", "train.pretrain"}})},
              {{"run_name"}, Text(FIELD(run_name))},
              {{"base_output_directory"}, Text(FIELD(base_output_directory))},

              {{"model.load_parameters_path", "load_parameters_path"},
               Text(FIELD(model.load_parameters_path))},
              {{"model.config", "model.config_path"}, Text(FIELD(model.config_path))},
              {{"model.family", "decoder_block"}, Text(FIELD(model.family))},
              {{"model.n_layers", "base_num_decoder_layers", "num_hidden_layers"},
               Integer(FIELD(model.n_layers), 1, 1000)},
              {{"model.hidden_dim", "base_emb_dim", "hidden_size"},
               Integer(FIELD(model.hidden_dim), 1, 1 << 20)},
              {{"model.ffn_dim", "base_mlp_dim", "intermediate_size"},
               Integer(FIELD(model.ffn_dim), 0, 1 << 20)},
              {{"model.n_heads", "base_num_query_heads", "num_attention_heads"},
               Integer(FIELD(model.n_heads), 1, 4096)},
              {{"model.n_kv_heads", "base_num_kv_heads", "num_key_value_heads"},
               Integer(FIELD(model.n_kv_heads), 0, 4096)},
              {{"model.head_dim", "head_dim"}, Integer(FIELD(model.head_dim), 0, 4096)},
              {{"model.vocab_size", "vocab_size"}, Integer(FIELD(model.vocab_size), 0, 1 << 24)},
              {{"model.max_context_len", "max_position_embeddings"},
               Integer(FIELD(model.max_context_len), 0, 1 << 24)},
              {{"model.norm_eps", "normalization_layer_epsilon"},
               Number(FIELD(model.norm_eps), 0, 1)},
              {{"model.rope_theta", "rope_max_timescale"},
               Number(FIELD(model.rope_theta), 1, kBig)},
              {{"model.tied_embeddings", "logits_via_embedding"},
               Bool(FIELD(model.tied_embeddings))},
              {{"model.dropout", "dropout_rate"}, Number(FIELD(model.dropout), 0, 0.99)},
              {{"model.init_std"}, Number(FIELD(model.init_std), 0, 1)},
              {{"model.init_seed", "init_weights_seed"}, Integer(FIELD(model.init_seed), 0, kBig)},
              {{"model.tokenizer_path", "tokenizer_path"}, Text(FIELD(model.tokenizer_path))},
              {{"model.chat_template", "data.chat_template", "chat_template_path"},
               Text(FIELD(model.chat_template))},
              {{"model.trainable", "trainable_parameters_mask"}, List(FIELD(model.trainable))},

              {{"lora.enable", "lora.enable_lora"}, Bool(FIELD(lora.enable))},
              {{"lora.rank", "lora.lora_rank"}, Integer(FIELD(lora.rank), 1, 4096)},
              {{"lora.alpha", "lora.lora_alpha"}, Number(FIELD(lora.alpha), 1e-6, 1e6)},
              {{"lora.rank_stabilized", "lora.use_rslora"}, Bool(FIELD(lora.rank_stabilized))},
              {{"lora.module_path", "lora.lora_module_path"}, Text(FIELD(lora.module_path))},
              {{"lora.match"},
               Choice(
                   FIELD(lora.full_match),
                   std::vector<std::pair<std::string, bool>>{{"search", false}, {"full", true}})},
              {{"lora.init"},
               Choice(FIELD(lora.init),
                      std::vector<std::pair<std::string, LoraInit>>{
                          {"kaiming_uniform", LoraInit::kKaimingUniform},
                          {"he_uniform", LoraInit::kHeUniform}})},
              {{"lora.dropout", "lora.lora_dropout"}, Number(FIELD(lora.dropout), 0, 0.99)},
              {{"lora.base_dtype", "lora.base_qtype", "lora.lora_weight_qtype"},
               BaseType(FIELD(lora.base))},
              {{"lora.lora_tile_size"},
               [](TrainSpec&, const Given& given) {
                 if (ParseInteger(Scalar(given)) != 32) {
                   throw BadValue("must be 32: groups of weights that share a scale have that size");
                 }
               }},

              {{"data.train", "data.path", "dataset_path", "train_files"}, Text(FIELD(data.train))},
              {{"data.eval", "eval_dataset_path", "eval_files"}, Text(FIELD(data.eval))},
              {{"data.delimiter"}, Text(FIELD(data.delimiter))},
              {{"data.header"},
               Choice(
                   FIELD(data.header),
                   std::vector<std::pair<std::string, Header>>{
                       {"none", Header::kNone}, {"content_words", Header::kContentWords}})},
              {{"data.add_bos", "add_bos"}, Bool(FIELD(data.add_bos))},
              {{"data.add_eos", "add_eos"}, Bool(FIELD(data.add_eos))},
              {{"data.eos_token"}, Text(FIELD(data.eos_token))},
              {{"data.bos_token"}, Text(FIELD(data.bos_token))},
              {{"data.max_target_length", "max_target_length"},
               Integer(FIELD(data.max_target_length), 2, 1 << 24)},
              {{"data.packing", "grain_packing_type"},
               Choice(
                   FIELD(data.packing),
                   std::vector<std::pair<std::string, Packing>>{
                       {"none", Packing::kNone},
                       {"concat_then_split", Packing::kConcatThenSplit},
                       {"first_fit", Packing::kFirstFit},
                       {"best_fit", Packing::kBestFit}})},
              {{"packing"},  // MaxText's switch
               [](TrainSpec& spec, const Given& given) {
                 if (!ParseBool(Scalar(given))) spec.data.packing = Packing::kNone;
               }},
              {{"data.overflow"},
               Choice(
                   FIELD(data.overflow),
                   std::vector<std::pair<std::string, Overflow>>{
                       {"truncate", Overflow::kTruncate},
                       {"drop", Overflow::kDrop},
                       {"error", Overflow::kError},
                       {"split", Overflow::kSplit}})},
              {{"data.max_segments_per_seq", "max_segments_per_seq"},
               IntegerOrMinusOne(FIELD(data.max_segments_per_seq), 1 << 20)},
              {{"data.shuffle", "enable_data_shuffling"}, Bool(FIELD(data.shuffle))},
              {{"data.seed", "data_shuffle_seed"}, Integer(FIELD(data.seed), 0, kBig)},
              {{"data.num_epoch", "num_epoch"}, Integer(FIELD(data.num_epoch), 0, kBig)},

              {{"train.steps", "steps"}, Integer(FIELD(train.steps), 1, kBig)},
              {{"train.per_device_batch_size", "per_device_batch_size"},
               Integer(FIELD(train.per_device_batch_size), 1, 1 << 20)},
              {{"train.gradient_accumulation_steps", "gradient_accumulation_steps"},
               Integer(FIELD(train.gradient_accumulation_steps), 1, 1 << 20)},
              {{"train.learning_rate", "learning_rate"},
               Number(FIELD(train.schedule.learning_rate), 0, 100)},
              {{"train.schedule.type", "lr_schedule_type"},
               [](TrainSpec& spec, const Given& given) {
                 Choice(FIELD(train.schedule.constant),
                        std::vector<std::pair<std::string, bool>>{{"cosine", false},
                                                                  {"constant", true}})(spec, given);
               }},
              {{"train.schedule.schedule_steps", "learning_rate_schedule_steps"},
               IntegerOrMinusOne(FIELD(train.schedule.schedule_steps), kBig)},
              {{"train.schedule.warmup_fraction", "warmup_steps_fraction"},
               Number(FIELD(train.schedule.warmup_fraction), 0, 1)},
              {{"train.schedule.final_fraction", "learning_rate_final_fraction",
                "cosine_learning_rate_final_fraction"},
               Number(FIELD(train.schedule.final_fraction), 0, 1)},
              {{"train.optimizer.type", "opt_type"},
               Choice(FIELD(train.optimizer.kind),
                      std::vector<std::pair<std::string, OptimizerKind>>{
                          {"adam", OptimizerKind::kAdam}, {"adamw", OptimizerKind::kAdamW}})},
              {{"train.optimizer.b1", "adam_b1"}, Number(FIELD(train.optimizer.b1), 0, 1)},
              {{"train.optimizer.b2", "adam_b2"}, Number(FIELD(train.optimizer.b2), 0, 1)},
              {{"train.optimizer.eps", "adam_eps"}, Number(FIELD(train.optimizer.eps), 0, 1)},
              {{"train.optimizer.eps_root", "adam_eps_root"},
               Number(FIELD(train.optimizer.eps_root), 0, 1)},
              {{"train.optimizer.weight_decay", "adam_weight_decay"},
               Number(FIELD(train.optimizer.weight_decay), 0, 100)},
              {{"train.gradient_clipping_threshold", "gradient_clipping_threshold"},
               Number(FIELD(train.optimizer.clip_norm), 0, kBig)},
              {{"train.abort_on_nan_loss", "abort_on_nan_loss", "abort_on_inf_loss"},
               [](TrainSpec&, const Given& given) {
                 if (!ParseBool(Scalar(given))) {
                   throw BadValue(
                       "must be true: an update from a loss that is not a number would "
                       "spoil the weights");
                 }
               }},
              {{"train.eval_interval", "eval_interval"},
               IntegerOrMinusOne(FIELD(train.eval_interval), kBig)},
              {{"train.eval_steps", "eval_steps"},
               IntegerOrMinusOne(FIELD(train.eval_steps), kBig)},
              {{"train.target_eval_loss", "target_eval_loss"},
               Number(FIELD(train.target_eval_loss), 0, kBig)},
              {{"train.early_stopping_patience", "early_stopping_patience"},
               Integer(FIELD(train.early_stopping_patience), 0, kBig)},
              {{"train.sample.every", "sample_period"},
               Integer(FIELD(train.sample.every), 0, kBig)},
              {{"train.sample.prompts", "prompt"}, List(FIELD(train.sample.prompts))},
              {{"train.sample.max_tokens"}, Integer(FIELD(train.sample.max_tokens), 1, 1 << 20)},
              {{"train.sample.temperature", "decode_sampling_temperature"},
               Number(FIELD(train.sample.temperature), 0, 2)},
              {{"train.sample.top_k", "decode_sampling_top_k"},
               Integer(FIELD(train.sample.top_k), 0, 1 << 24)},
              {{"train.sample.seed"}, Integer(FIELD(train.sample.seed), 0, kBig)},

              {{"checkpoint.period", "checkpoint_period"},
               Integer(FIELD(checkpoint.period), 0, kBig)},
              {{"checkpoint.keep", "max_num_checkpoints_to_keep"},
               Integer(FIELD(checkpoint.keep), 1, 1 << 20)},
              {{"checkpoint.resume"}, Bool(FIELD(checkpoint.resume))},
              {{"checkpoint.export"}, Bool(FIELD(checkpoint.export_model))},
              {{"checkpoint.export_best"}, Bool(FIELD(checkpoint.export_best))},

              {{"precision.compute", "dtype"}, Compute(FIELD(compute))},
              {{"resources.threads"}, Integer(FIELD(resources.threads), 0, 1024)},
              {{"resources.lower_priority"}, Bool(FIELD(resources.lower_priority))},
              {{"resources.memory_max_bytes"},
               Integer(FIELD(resources.memory_max_bytes), 0, 0x1p52)},
              {{"observe.log_period", "log_period"}, Integer(FIELD(log_period), 1, kBig)},
          };
#undef FIELD
  return keys;
}

// MaxText keys that steer its backend and mean nothing here; accepted with a note, so that its
// files can be used as they are.
const std::set<std::string>& IgnoredKeys() {
  static const std::set<std::string> keys = {
      "hardware",
      "dataset_type",
      "async_checkpointing",
      "enable_checkpointing",
      "scan_layers",
      "attention",
      "remat_policy",
      "ici_fsdp_parallelism",
      "dcn_data_parallelism",
      "jax_cache_dir",
      "enable_goodput_recording",
      "monitor_goodput",
      "weight_dtype",
      "tokenizer_type",
      "model_name",
      "base_config",
      "compiled_trainstep_file",
      "steps_per_eval",
  };
  return keys;
}

const Key* FindKey(const std::string& name) {
  for (const Key& key : Keys()) {
    if (std::find(key.names.begin(), key.names.end(), name) != key.names.end()) return &key;
  }
  return nullptr;
}

std::string NearestKey(const std::string& name) {
  std::string nearest;
  size_t best = SIZE_MAX;
  for (const Key& key : Keys()) {
    for (const std::string& known : key.names) {
      const size_t distance = EditDistance(name, known);
      if (distance < best) {
        best = distance;
        nearest = known;
      }
    }
  }
  return nearest;
}

// Reads one source of keys after the other and collects what is wrong.
class SpecReader {
 public:
  TrainSpec spec;

  void ReadYaml(const std::string& text, const std::string& source) {
    YAML::Node root;
    try {
      root = YAML::Load(text);
    } catch (const YAML::Exception& error) {
      Fault(source + ": " + error.what());
      return;
    }
    if (!root.IsMap()) {
      Fault(source + ": must be a mapping of keys to values");
      return;
    }
    seen_.clear();
    Walk(root, "");
  }

  void ReadOverride(const std::string& word) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      Fault("\"" + word + "\": an override is key=value");
      return;
    }
    seen_.clear();
    const std::string value = word.substr(equals + 1);
    if (value.starts_with("[")) {
      try {
        YAML::Node node;
        node[word.substr(0, equals)] = YAML::Load(value);
        Walk(node, "");
      } catch (const YAML::Exception& error) {
        Fault(word + ": " + error.what());
      }
      return;
    }
    Set(word.substr(0, equals), {{value}, false});
  }

  void Fault(const std::string& message) { faults_.push_back(message); }

  TrainSpec Finish(const std::string& source) {
    CheckWhole();
    if (faults_.empty()) return std::move(spec);
    std::string message = source + ":";
    for (const std::string& fault : faults_) message += "\n  " + fault;
    throw Error(ErrorCode::kInvalidArgument, message);
  }

 private:
  void Walk(const YAML::Node& node, const std::string& prefix) {
    for (const auto& entry : node) {
      const std::string name = prefix + entry.first.as<std::string>("");
      const YAML::Node& value = entry.second;
      if (value.IsMap()) {
        Walk(value, name + ".");
      } else if (value.IsNull()) {
        continue;  // "key:" leaves the default
      } else if (value.IsSequence()) {
        Given given{{}, true};
        for (const YAML::Node& item : value) given.words.push_back(item.as<std::string>(""));
        Set(name, std::move(given));
      } else {
        Set(name, {{value.Scalar()}, false});
      }
    }
  }

  void Set(const std::string& name, Given given) {
    const Key* key = FindKey(name);
    if (key == nullptr) {
      if (IgnoredKeys().contains(name)) {
        spec.notes.push_back(name + " has no effect here");
      } else {
        Fault(name + ": unknown key; did you mean " + NearestKey(name) + "?");
      }
      return;
    }
    if (!seen_.insert(key->names[0]).second) {
      Fault(name + ": given twice (also as " + key->names[0] + ")");
      return;
    }
    if (key->names[0] == "lora.enable") {
      says_whether_lora_ = true;
    } else if (key->names[0].starts_with("lora.")) {
      says_which_lora_ = true;
    }
    try {
      for (std::string& word : given.words) word = Expand(word);
      key->set(spec, given);
    } catch (const BadValue& bad) {
      Fault(name + ": " + bad.what());
    }
  }

  // ${VAR} and ${VAR:-default}; nothing else is special.
  static std::string Expand(const std::string& text) {
    std::string out;
    size_t from = 0;
    while (true) {
      const size_t begin = text.find("${", from);
      if (begin == std::string::npos) break;
      const size_t end = text.find('}', begin);
      if (end == std::string::npos) throw BadValue("\"${\" without \"}\"");
      out.append(text, from, begin - from);
      const std::string inside = text.substr(begin + 2, end - begin - 2);
      const size_t split = inside.find(":-");
      const std::string name = inside.substr(0, split);
      if (const char* value = std::getenv(name.c_str())) {
        out += value;
      } else if (split != std::string::npos) {
        out += inside.substr(split + 2);
      } else {
        throw BadValue("environment variable " + name + " is not set");
      }
      from = end + 1;
    }
    return out + text.substr(from);
  }

  // What no single key can see.
  void CheckWhole() {
    if (spec.train.steps <= 0) Fault("train.steps: must be given");
    if (spec.data.train.empty()) Fault("data.train: must name a text file");
    if (spec.model.tokenizer_path.empty() && spec.model.load_parameters_path.empty()) {
      Fault("model.tokenizer_path: must be given when load_parameters_path is not");
    }
    const ModelSection& m = spec.model;
    const int64_t kv_heads = m.n_kv_heads == 0 ? m.n_heads : m.n_kv_heads;
    if (m.n_heads % kv_heads != 0) {
      Fault("model.n_kv_heads: " + std::to_string(kv_heads) + " does not divide n_heads " +
            std::to_string(m.n_heads));
    }
    if (m.head_dim == 0 && m.hidden_dim % m.n_heads != 0) {
      Fault("model.n_heads: " + std::to_string(m.n_heads) + " does not divide hidden_dim " +
            std::to_string(m.hidden_dim));
    }
    // Whoever says what adapter it shall be wants one.
    if (!says_whether_lora_) spec.lora.enable = says_which_lora_;
    if (spec.lora.enable) {
      if (m.load_parameters_path.empty()) {
        Fault("model.load_parameters_path: must name the model that the adapter is for (lora)");
      }
      if (!m.trainable.empty()) {
        Fault("model.trainable: cannot be set with lora, which trains its adapter alone");
      }
      CheckBaseType();
    }
    if (spec.train.eval_interval > 0 && spec.data.eval.empty()) {
      Fault("data.eval: must name a text file when eval_interval is set");
    }
    if (spec.train.early_stopping_patience > 0 && spec.train.eval_interval == 0) {
      Fault("train.eval_interval: must be set for early_stopping_patience");
    }
    if (spec.train.schedule.schedule_steps == 0) {
      spec.train.schedule.schedule_steps = spec.train.steps;
    }
    if (spec.data.max_segments_per_seq == 0) spec.data.max_segments_per_seq = 64;
  }

  void CheckBaseType() {
    const bool wants_f32 = spec.lora.base == LoraBase::kF32;
    if (spec.lora.base == LoraBase::kAuto || wants_f32 == (spec.compute == engine::DType::kF32)) {
      return;
    }
    Fault(wants_f32 ? "lora.base_dtype: f32 weights are computed with in f32: set "
                      "precision.compute to f32"
                    : "lora.base_dtype: bf16, int8 and int4 weights are computed with in bf16, "
                      "precision.compute is f32");
  }

  std::vector<std::string> faults_;
  std::set<std::string> seen_;  // keys of the source being read
  bool says_whether_lora_ = false;
  bool says_which_lora_ = false;
};

}  // namespace

TrainSpec ParseTrainSpec(const std::string& text, const std::string& source,
                         std::span<const std::string> overrides) {
  SpecReader reader;
  reader.ReadYaml(text, source);
  for (const std::string& word : overrides) reader.ReadOverride(word);
  return reader.Finish(source);
}

TrainSpec LoadTrainSpec(const std::filesystem::path& path, std::span<const std::string> overrides) {
  return ParseTrainSpec(engine::ReadWholeFile(path, kMaxSpecBytes), path.string(), overrides);
}

}  // namespace tandem::training
