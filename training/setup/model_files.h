#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "engine/model/families/config.h"
#include "engine/model/families/family.h"
#include "engine/tokenizer/tokenizer.h"
#include "training/spec/spec.h"
#include "training/step/parameters.h"

namespace tandem::training {

// The parts of a model around its weights: family, configuration, tokenizer and the files exported
// next to the weights.
struct ModelFiles {
  const engine::FamilySpec* family = nullptr;
  engine::ModelConfig config;
  std::unique_ptr<engine::Tokenizer> tokenizer;
  std::optional<TokenId> bos;  // as the spec decides; begins samples when data.add_bos
  std::optional<TokenId> eos;  // ends samples when data.add_eos
  // The chat template and its texts, as a server of the exported model uses them.
  std::string template_source;  // empty: no template
  std::string bos_text;
  std::string eos_text;
  // File name -> text: config.json, generation_config.json, tokenizer files.
  std::map<std::string, std::string> texts;
};

// Reads and checks all files. Throws kInvalidArgument, kDataLoss or kNotFound naming the file or
// the spec's key.
ModelFiles LoadModelFiles(const TrainSpec& spec);

// Adds these end tokens to the exported model (generation_config.json). Returns the new ones.
std::vector<TokenId> AddEndTokens(const std::vector<TokenId>& ends, ModelFiles* files);

// Publishes a Hugging Face model directory with these weights atomically, replacing an existing
// one. Returns `dir`.
std::filesystem::path ExportModel(const ModelFiles& files, const ParameterStore& parameters,
                                  const std::filesystem::path& dir);
// Uses the weights of an earlier export, a directory.
std::filesystem::path ExportModel(const ModelFiles& files, const std::filesystem::path& from,
                                  const std::filesystem::path& dir);
// Writes the files of weights to an unpublished directory.
using WriteWeightFiles = std::function<void(const std::filesystem::path& directory)>;
std::filesystem::path ExportModel(const ModelFiles& files, const WriteWeightFiles& write,
                                  const std::filesystem::path& dir);

// Publishes a PEFT directory the same way. `config` is the text of adapter_config.json; `metadata`
// goes into the weights file.
std::filesystem::path ExportAdapter(const std::string& config,
                                    const std::map<std::string, std::string>& metadata,
                                    const ParameterStore& parameters,
                                    const std::filesystem::path& dir);
std::filesystem::path ExportAdapter(const std::string& config, const std::filesystem::path& from,
                                    const std::filesystem::path& dir);
std::filesystem::path ExportAdapter(const std::string& config, const WriteWeightFiles& write,
                                    const std::filesystem::path& dir);

}  // namespace tandem::training
