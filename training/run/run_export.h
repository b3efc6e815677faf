#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "engine/tools/merge_adapter.h"
#include "training/setup/run_parts.h"

namespace tandem::training {

// "model.safetensors", or the name that PEFT gives to the weights of an adapter.
const char* WeightsFile(const RunParts& parts);

// Of a run that trains an adapter: the text of adapter_config.json, and what stands beside its
// weights.
std::string AdapterConfig(const RunParts& parts);
std::map<std::string, std::string> AdapterMetadata(const RunParts& parts);

// The model or the adapter as it stands. Returns `dir`.
std::filesystem::path ExportRun(const RunParts& parts, const std::filesystem::path& dir);
// The same with weights that were exported before.
std::filesystem::path ExportRun(const RunParts& parts, const std::filesystem::path& weights,
                                const std::filesystem::path& dir);

// The base with the adapter in `adapter` merged in, at `dir` (engine/tools/merge_adapter.h); one
// that is there already is replaced.
engine::MergeReport ExportMerged(RunParts& parts, const std::filesystem::path& cache_dir,
                                 const std::filesystem::path& adapter,
                                 const std::filesystem::path& dir);

// Continues the prompts of `train.sample` through files (in `dir`, removed after) and ModelRunner,
// as a server would run the model at this moment; each text goes to `report`.
void WriteSamples(RunParts& parts, const std::filesystem::path& dir,
                  const std::function<void(const std::string&)>& report);

}  // namespace tandem::training
