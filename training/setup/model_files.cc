#include "training/setup/model_files.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/model/stored_head.h"
#include "training/setup/exported_tensors.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kMaxTextBytes = 512 << 20;
constexpr std::array<const char*, 10> kTokenizerFiles = {
    "tokenizer.json",        "vocab.json",          "merges.txt",
    "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json",
    "tokenizer.model",       "qwen.tiktoken",       "tokenizer.tiktoken",
    "tiktoken.model"};

std::map<std::string, std::string> ReadTokenizerFiles(const fs::path& path) {
  std::map<std::string, std::string> texts;
  if (engine::ModelDir::IsModelFile(path)) {
    const engine::ModelDir model = engine::ModelDir::Open(path);
    for (const char* name : kTokenizerFiles) {
      if (auto text = model.ReadText(name)) texts[name] = std::move(*text);
    }
    return texts;
  }
  if (!fs::is_directory(path)) {
    texts["tokenizer.json"] = engine::ReadWholeFile(path, kMaxTextBytes);
    return texts;
  }
  for (const char* name : kTokenizerFiles) {
    if (fs::exists(path / name)) texts[name] = engine::ReadWholeFile(path / name, kMaxTextBytes);
  }
  return texts;
}

std::optional<std::string> Find(const std::map<std::string, std::string>& texts, const char* name) {
  const auto it = texts.find(name);
  return it == texts.end() ? std::nullopt : std::optional(it->second);
}

engine::TokenizerFiles LoadTokenizerFrom(const std::map<std::string, std::string>& texts,
                                         const std::string& source) {
  std::optional<engine::TokenizerFiles> loaded = engine::LoadTokenizer(
      source, [&](std::string_view name) { return Find(texts, std::string(name).c_str()); });
  if (!loaded)
    throw Error(ErrorCode::kNotFound,
                source + ": has no tokenizer.json, tokenizer.model or vocab.json");
  return std::move(*loaded);
}

TokenId TokenNamed(const engine::Tokenizer& tokenizer, const std::string& spelling,
                   const char* key) {
  const std::optional<TokenId> id = tokenizer.FindToken(spelling);
  if (!id) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(key) + ": the tokenizer has no token \"" + spelling + "\"");
  }
  return *id;
}

void ChooseEnds(const TrainSpec& spec, const engine::TokenizerFiles& tokenizer, ModelFiles* files) {
  const DataSection& data = spec.data;
  if (!data.eos_token.empty()) {
    files->eos = TokenNamed(*tokenizer.tokenizer, data.eos_token, "data.eos_token");
  } else if (tokenizer.eos) {
    files->eos = tokenizer.eos;
  } else if (!data.delimiter.empty()) {
    files->eos = tokenizer.tokenizer->FindToken(data.delimiter);
  }
  if (!data.bos_token.empty()) {
    files->bos = TokenNamed(*tokenizer.tokenizer, data.bos_token, "data.bos_token");
  } else {
    files->bos = tokenizer.bos ? tokenizer.bos : files->eos;
  }
  if (data.add_eos && !files->eos) {
    throw Error(ErrorCode::kInvalidArgument,
                "data.eos_token: must be given, since the tokenizer has no end-of-text token");
  }
}

int64_t OrDefault(int64_t value, int64_t fallback) { return value != 0 ? value : fallback; }

// The configuration described by the spec's fields, as its family would parse it from config.json.
// REQUIRES: the family takes fields.
engine::ModelConfig ConfigFromFields(const TrainSpec& spec, const ModelFiles& files,
                                     int64_t tokenizer_size) {
  const ModelSection& m = spec.model;
  engine::ModelConfig c;
  c.family = m.family;
  c.n_layers = m.n_layers;
  c.hidden_dim = m.hidden_dim;
  c.ffn_dim = m.ffn_dim;
  c.vocab_size = OrDefault(m.vocab_size, tokenizer_size);
  c.max_context_len = OrDefault(m.max_context_len, spec.data.max_target_length);
  c.norm_eps = static_cast<float>(m.norm_eps);
  c.attention.n_heads = m.n_heads;
  c.attention.n_kv_heads = OrDefault(m.n_kv_heads, m.n_heads);
  c.attention.head_dim = OrDefault(m.head_dim, m.hidden_dim / m.n_heads);
  c.rope_theta = m.rope_theta;
  c.tied_embeddings = m.tied_embeddings;
  c.dropout = static_cast<float>(m.dropout.value_or(0));
  files.family->fresh->complete(c);
  if (files.eos) c.eos_tokens = {*files.eos};
  c.bos_token = spec.data.add_bos && files.bos ? *files.bos : -1;
  return c;
}

// Unties the head in the config and in the exported config.json when the loaded model stores one.
void UseStoredHead(const TrainSpec& spec, ordered_json* json, ModelFiles* files) {
  const fs::path& path = spec.model.load_parameters_path;
  if (path.empty() || !files->config.tied_embeddings) return;
  if (!engine::HasOwnHead(engine::ModelDir::Open(path), *files->family, files->config)) return;
  spdlog::warn("model_has_own_head model=\"{}\" reason=\"{}\"", path.string(),
               engine::kOwnHeadNote);
  files->config.tied_embeddings = false;
  (*json)["tie_word_embeddings"] = false;
}

// Parses the JSON that will be exported, so that the trained model equals the served one.
void ChooseConfig(const TrainSpec& spec, int64_t tokenizer_size, ModelFiles* files) {
  const ModelSection& m = spec.model;
  std::string source;
  ordered_json json;
  if (!m.load_parameters_path.empty() || !m.config_path.empty()) {
    const fs::path path =
        m.load_parameters_path.empty() ? m.config_path : m.load_parameters_path / "config.json";
    source = path.string();
    const std::string text =
        engine::ModelDir::IsModelFile(m.load_parameters_path)
            ? engine::ModelDir::Open(m.load_parameters_path).ReadText("config.json").value_or("")
            : engine::ReadWholeFile(path, kMaxTextBytes);
    json = engine::ParseUntrustedJson(text, source);
    files->family = &engine::FindFamily(json, source);
    // Only the text part of a multimodal model is trained, and exported as its own model.
    if (engine::IsMultimodal(json, source)) {
      json = files->family->write_config(engine::ParseModelConfig(*files->family, json, source));
    }
  } else {
    source = "model";
    files->family = &engine::FindFamilyByName(m.family);
    // The spec has no fields for windows, caps and other features of further families.
    if (files->family->fresh == nullptr) {
      const std::string names = engine::FamilyNames(
          [](const engine::FamilySpec& family) { return family.fresh != nullptr; });
      throw Error(ErrorCode::kInvalidArgument,
                  "model.family: fields describe fresh models of these families only: " + names +
                      "; for " + m.family + " set model.config to a config.json");
    }
    json = files->family->write_config(ConfigFromFields(spec, *files, tokenizer_size));
  }
  // transformers 5 writes `dtype` and reads both names.
  json[json.contains("dtype") ? "dtype" : "torch_dtype"] =
      spec.compute == engine::DType::kBF16 ? "bfloat16" : "float32";
  files->config = files->family->parse_config(json, source);
  UseStoredHead(spec, &json, files);
  files->texts["config.json"] = json.dump(2) + "\n";
}

ordered_json TokenizerConfig(const TrainSpec& spec, const ModelFiles& files) {
  ordered_json json = ordered_json::object();
  if (const auto it = files.texts.find("tokenizer_config.json"); it != files.texts.end()) {
    json = engine::ParseUntrustedJson(it->second, "tokenizer_config.json");
  } else {
    json["tokenizer_class"] = "PreTrainedTokenizerFast";
    json["model_max_length"] = files.config.max_context_len;
    json["clean_up_tokenization_spaces"] = false;
    json["add_bos_token"] = spec.data.add_bos;
  }
  const auto spelling = [&](TokenId id) { return std::string(files.tokenizer->TokenBytes(id)); };
  if (files.eos) json["eos_token"] = spelling(*files.eos);
  if (files.bos && spec.data.add_bos) json["bos_token"] = spelling(*files.bos);
  if (!spec.model.chat_template.empty()) {
    json["chat_template"] = engine::ReadWholeFile(spec.model.chat_template, kMaxTextBytes);
  }
  return json;
}

// The template and special texts as a server will find them in the exported model.
void ChooseTemplate(const TrainSpec& spec, const engine::TokenizerFiles& tokenizer,
                    ModelFiles* files) {
  if (!spec.model.chat_template.empty()) {
    files->template_source = engine::ReadWholeFile(spec.model.chat_template, kMaxTextBytes);
  } else {
    files->template_source = tokenizer.chat_template.value_or("");
  }
  std::optional<TokenId> bos = tokenizer.bos;
  if (spec.data.add_bos && files->bos) bos = files->bos;
  if (!bos && files->config.bos_token >= 0) bos = files->config.bos_token;
  std::optional<TokenId> eos = files->eos;
  if (!eos && !files->config.eos_tokens.empty()) eos = files->config.eos_tokens.front();
  if (bos) files->bos_text = files->tokenizer->TokenBytes(*bos);
  if (eos) files->eos_text = files->tokenizer->TokenBytes(*eos);
}

std::string GenerationConfig(const ModelFiles& files, const std::vector<TokenId>& end_tokens) {
  ordered_json generation = ordered_json::object();
  if (files.config.bos_token >= 0) generation["bos_token_id"] = files.config.bos_token;
  if (!end_tokens.empty()) generation["eos_token_id"] = end_tokens;
  return generation.dump(2) + "\n";
}

void WriteText(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.flush();
  if (!out) throw Error(ErrorCode::kIo, path.string() + ": cannot be written");
}

// Publishes a directory of texts and weights, replacing an older one. `write` writes the weights to
// the path it receives.
fs::path Publish(const std::map<std::string, std::string>& texts, const fs::path& dir,
                 const WriteWeightFiles& write) {
  MakeDirectories(dir.parent_path());
  engine::PublishDirectory(
      dir,
      [&](const fs::path& temporary) {
        write(temporary);
        for (const auto& [name, text] : texts) WriteText(temporary / name, text);
      },
      engine::IfThere::kReplace);
  return dir;
}

// Copies the files of weights, one or several with an index.
void CopyWeights(const fs::path& from, const fs::path& to) {
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) {
      fs::copy_file(entry.path(), to / name);
    }
  }
}

constexpr const char* kModelWeights = "model.safetensors";
constexpr const char* kAdapterWeights = "adapter_model.safetensors";

void WriteWeights(const ParameterStore& parameters,
                  const std::map<std::string, std::string>& metadata, const fs::path& path) {
  std::vector<std::vector<std::byte>> bytes;
  const std::vector<engine::NamedTensor> tensors = ExportedTensors(parameters, &bytes);
  engine::WriteSafetensors(path, tensors, metadata);
}

}  // namespace

ModelFiles LoadModelFiles(const TrainSpec& spec) {
  ModelFiles files;
  const fs::path tokenizer_path = spec.model.tokenizer_path.empty()
                                      ? spec.model.load_parameters_path
                                      : spec.model.tokenizer_path;
  files.texts = ReadTokenizerFiles(tokenizer_path);
  engine::TokenizerFiles tokenizer = LoadTokenizerFrom(files.texts, tokenizer_path.string());
  const int64_t tokenizer_size = tokenizer.tokenizer->vocab_size();
  ChooseEnds(spec, tokenizer, &files);
  files.tokenizer = std::move(tokenizer.tokenizer);

  ChooseConfig(spec, tokenizer_size, &files);
  if (files.config.vocab_size < tokenizer_size) {
    throw Error(ErrorCode::kInvalidArgument,
                "model.vocab_size: " + std::to_string(files.config.vocab_size) +
                    " is less than the tokenizer's size " + std::to_string(tokenizer_size));
  }
  if (spec.data.max_target_length > files.config.max_context_len) {
    throw Error(ErrorCode::kInvalidArgument,
                "data.max_target_length: " + std::to_string(spec.data.max_target_length) +
                    " is more than the model's context length " +
                    std::to_string(files.config.max_context_len));
  }

  ChooseTemplate(spec, tokenizer, &files);

  files.texts["tokenizer_config.json"] = TokenizerConfig(spec, files).dump(2) + "\n";
  if (!spec.model.chat_template.empty()) files.texts.erase("chat_template.jinja");
  files.texts["generation_config.json"] = GenerationConfig(files, files.config.eos_tokens);
  return files;
}

std::vector<TokenId> AddEndTokens(const std::vector<TokenId>& ends, ModelFiles* files) {
  std::vector<TokenId> all(files->config.eos_tokens);
  std::vector<TokenId> added;
  // The tokenizer's EOS ends answers whether or not this list contains it.
  for (const TokenId end : ends) {
    if (end == files->eos || std::find(all.begin(), all.end(), end) != all.end()) continue;
    all.push_back(end);
    added.push_back(end);
  }
  files->texts["generation_config.json"] = GenerationConfig(*files, all);
  return added;
}

fs::path ExportModel(const ModelFiles& files, const ParameterStore& parameters,
                     const fs::path& dir) {
  return Publish(files.texts, dir, [&](const fs::path& to) {
    WriteWeights(parameters, {{"format", "pt"}}, to / kModelWeights);
  });
}

fs::path ExportModel(const ModelFiles& files, const fs::path& from, const fs::path& dir) {
  return Publish(files.texts, dir, [&](const fs::path& to) { CopyWeights(from, to); });
}

fs::path ExportModel(const ModelFiles& files, const WriteWeightFiles& write, const fs::path& dir) {
  return Publish(files.texts, dir, write);
}

fs::path ExportAdapter(const std::string& config,
                       const std::map<std::string, std::string>& metadata,
                       const ParameterStore& parameters, const fs::path& dir) {
  return ExportAdapter(
      config, [&](const fs::path& to) { WriteWeights(parameters, metadata, to / kAdapterWeights); },
      dir);
}

fs::path ExportAdapter(const std::string& config, const fs::path& from, const fs::path& dir) {
  return ExportAdapter(
      config, [&](const fs::path& to) { CopyWeights(from, to); }, dir);
}

fs::path ExportAdapter(const std::string& config, const WriteWeightFiles& write,
                       const fs::path& dir) {
  return Publish({{"adapter_config.json", config}}, dir, write);
}

}  // namespace tandem::training
