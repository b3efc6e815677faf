#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "engine/model/config.h"
#include "engine/model/family.h"
#include "engine/tokenizer/tokenizer.h"
#include "training/spec/spec.h"
#include "training/step/parameters.h"

namespace tandem::training {

// What surrounds the weights of a model being trained: family, configuration, tokenizer and the
// files that will be exported beside the weights.
struct ModelFiles {
  const engine::FamilySpec* family = nullptr;
  engine::ModelConfig config;
  std::unique_ptr<engine::Tokenizer> tokenizer;
  std::optional<TokenId> bos;  // as the spec decides; begins samples when data.add_bos
  std::optional<TokenId> eos;  // ends samples when data.add_eos
  // As a server that opens the exported model renders chats.
  std::string template_source;  // empty: no template
  std::string bos_text;
  std::string eos_text;
  // File name -> text: config.json, generation_config.json, tokenizer files.
  std::map<std::string, std::string> texts;
};

// Reads and checks all of it. Throws kInvalidArgument / kDataLoss / kNotFound naming the file or
// the key of the spec.
ModelFiles LoadModelFiles(const TrainSpec& spec);

// Makes these end tokens of the exported model (generation_config.json) and returns those that were
// none before.
std::vector<TokenId> AddEndTokens(const std::vector<TokenId>& ends, ModelFiles* files);

// A Hugging Face model directory with these weights, published atomically; one that is there
// already is replaced. Returns `dir`.
std::filesystem::path ExportModel(const ModelFiles& files, const ParameterStore& parameters,
                                  const std::filesystem::path& dir);
// The same with weights that were exported before.
std::filesystem::path ExportModel(const ModelFiles& files, const std::filesystem::path& weights,
                                  const std::filesystem::path& dir);

// The same of adapters: a PEFT directory. `config` is the text of adapter_config.json, `metadata`
// stands beside the weights.
std::filesystem::path ExportAdapter(const std::string& config,
                                    const std::map<std::string, std::string>& metadata,
                                    const ParameterStore& parameters,
                                    const std::filesystem::path& dir);
std::filesystem::path ExportAdapter(const std::string& config, const std::filesystem::path& weights,
                                    const std::filesystem::path& dir);

// The exported tensors; the views borrow `bytes`.
std::vector<engine::NamedTensor> ExportedTensors(const ParameterStore& parameters,
                                                 std::vector<std::vector<std::byte>>* bytes);

}  // namespace tandem::training
