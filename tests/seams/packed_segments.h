#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"
#include "training/setup/exported_tensors.h"
#include "training/step/micro_batch.h"

namespace tandem::tests {

// Three segments of unequal length in one packed row; no length is a multiple of a block or a tile.
inline std::vector<std::vector<TokenId>> Segments(int64_t vocab) {
  std::vector<std::vector<TokenId>> segments;
  uint32_t state = 12345;
  for (const size_t length : {19u, 3u, 41u}) {
    std::vector<TokenId> tokens(length);
    for (TokenId& token : tokens) {
      state = state * 1664525u + 1013904223u;
      token = static_cast<TokenId>((state >> 8) % static_cast<uint32_t>(vocab));
    }
    segments.push_back(tokens);
  }
  return segments;
}

inline training::MicroBatch Pack(const std::vector<std::vector<TokenId>>& segments) {
  training::MicroBatch batch;
  for (size_t s = 0; s < segments.size(); ++s) {
    batch.segments.push_back(
        {static_cast<int64_t>(batch.tokens.size()), static_cast<int64_t>(segments[s].size())});
    for (size_t i = 0; i < segments[s].size(); ++i) {
      batch.tokens.push_back(segments[s][i]);
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.targets.push_back(-1);
      batch.weights.push_back(0);
      batch.sources.push_back({s, static_cast<uint32_t>(i)});
    }
  }
  return batch;
}

// Writes the parameters as a model directory, as training exports them.
inline void Export(const training::ParameterStore& parameters, const std::string& config,
                   const std::filesystem::path& dir) {
  std::vector<std::vector<std::byte>> bytes;
  engine::WriteSafetensors(dir / "model.safetensors", training::ExportedTensors(parameters, &bytes),
                           {{"format", "pt"}});
  engine::WriteFileAtomically(dir / "config.json", config);
}

}  // namespace tandem::tests
