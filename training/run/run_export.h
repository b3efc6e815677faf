#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "engine/tools/merge_adapter.h"
#include "training/setup/run_parts.h"

namespace tandem::training {

// "model.safetensors", or PEFT's name for an adapter's weights.
const char* WeightsFile(const RunParts& parts);

// For a run that trains an adapter: the text of adapter_config.json, and the metadata of its
// weights file.
std::string AdapterConfig(const RunParts& parts);
std::map<std::string, std::string> AdapterMetadata(const RunParts& parts);

// Exports the present model or adapter to `dir`. All ranks call it; the first one alone throws for
// the disk.
void ExportRun(const RunParts& parts, const std::filesystem::path& dir);
// Uses the weights of an earlier export, the directory `from`. Only the first rank.
void ExportRun(const RunParts& parts, const std::filesystem::path& from,
               const std::filesystem::path& dir);
// Whether a directory has the weights of an export.
bool HasWeights(const RunParts& parts, const std::filesystem::path& dir);

// Merges `adapter` into the base and writes the result to `dir`, replacing an existing one
// (engine/tools/merge_adapter.h).
engine::MergeReport ExportMerged(RunParts& parts, const std::filesystem::path& cache_dir,
                                 const std::filesystem::path& adapter,
                                 const std::filesystem::path& dir);

// Continues the prompts of `train.sample` and sends each text to `report`. Exports to files in
// `dir`, which it removes, and runs them through ModelRunner, as a server would. All ranks call it;
// the first one alone does more than export.
void WriteSamples(RunParts& parts, const std::filesystem::path& dir,
                  const std::function<void(const std::string&)>& report);

}  // namespace tandem::training
