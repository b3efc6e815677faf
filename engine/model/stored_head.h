#pragma once

#include <optional>

#include "engine/formats/model_dir.h"
#include "engine/model/families/family.h"

namespace tandem::engine {

// A config may tie the output head to the embedding table although the checkpoint stores a separate
// head. As in transformers 5, a stored head that differs from the table is the model's head; an
// equal copy stays tied.

// The head that a tied config omits, and the table it ties to.
struct TiedHead {
  WeightSpec head;
  WeightSpec table;
};
// Nullopt for untied configs and for families that never tie.
std::optional<TiedHead> FindTiedHead(const FamilySpec& family, const ModelConfig& config);

// Whether the directory stores a head that differs from the table that `config` ties it to. When a
// head is stored, reads both tensors in pieces and releases their pages.
bool HasOwnHead(const ModelDir& dir, const FamilySpec& family, const ModelConfig& config);

// The warning to log when a caller unties the config.
inline constexpr const char* kOwnHeadNote =
    "config.json ties the output head to the embeddings, but a different lm_head.weight is stored; "
    "the stored head is used, as in transformers 5";

}  // namespace tandem::engine
