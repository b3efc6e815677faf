#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/formats/model_dir.h"
#include "engine/formats/safetensors/safetensors.h"

namespace tandem::tests {

// Rewrites the model's weights with an lm_head.weight: a copy of the embedding table, or its rows
// in reverse order.
inline void StoreHead(const std::filesystem::path& model, bool is_copy) {
  const engine::ModelDir before = engine::ModelDir::Open(model);
  std::vector<engine::NamedTensor> tensors;
  for (const std::string& name : before.tensor_names()) {
    if (name != "lm_head.weight") tensors.push_back({name, before.FindStored(name)->view});
  }
  engine::NamedTensor head{"lm_head.weight", before.FindStored("model.embed_tokens.weight")->view};
  const std::span<const std::byte> table = before.FindStored("model.embed_tokens.weight")->bytes();
  const size_t row = table.size() / static_cast<size_t>(head.view.shape[0]);
  std::vector<std::byte> rows;
  for (size_t end = table.size(); !is_copy && end > 0; end -= row) {
    rows.insert(rows.end(), table.begin() + static_cast<std::ptrdiff_t>(end - row),
                table.begin() + static_cast<std::ptrdiff_t>(end));
  }
  if (!is_copy) head.view.data = rows.data();
  tensors.push_back(head);
  engine::WriteSafetensors(model / "with_head", tensors, {{"format", "pt"}});
  std::filesystem::rename(model / "with_head", model / "model.safetensors");
}

}  // namespace tandem::tests
