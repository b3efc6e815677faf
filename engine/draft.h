#pragma once

#include <memory>
#include <string>

#include "engine/api/loaded_model.h"

namespace tandem::engine {

// Lets `draft` guess the next tokens of `target` (EngineOptions::draft_rows). Answers stay those of
// `target` alone, bit for bit. Throws kInvalidArgument with both names when the vocabularies differ
// or one is unknown, and kUnsupported for a model with recurrent layers. The number of logits may
// differ, as the padding of a vocabulary does.
void AttachDraft(LoadedModel& target, const std::string& target_name, const LoadedModel& draft,
                 const std::string& draft_name);

}  // namespace tandem::engine
