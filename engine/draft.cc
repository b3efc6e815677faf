#include "engine/draft.h"

#include <algorithm>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {
namespace {

// A recurrent state cannot be rolled back past a wrong guess.
void RefuseState(const Model& model, const std::string& what) {
  if (ModelRunner::StateFloats(model) == 0) return;
  throw Error(ErrorCode::kUnsupported,
              what +
                  " has recurrent layers, which cannot take a wrong guess back: do without "
                  "--draft-model");
}

std::string Difference(const Tokenizer& target, const Tokenizer& draft) {
  const int64_t size = std::max(target.vocab_size(), draft.vocab_size());
  for (TokenId id = 0; id < size; ++id) {
    const std::string_view ours = target.TokenBytes(id);
    const std::string_view theirs = draft.TokenBytes(id);
    if (ours == theirs && target.IsSpecial(id) == draft.IsSpecial(id)) continue;
    return "token " + std::to_string(id) + " is " + Quoted(ours) + " in the first and " +
           Quoted(theirs) + " in the second" +
           (ours == theirs ? ", and special in only one of them" : "");
  }
  return {};
}

}  // namespace

void AttachDraft(LoadedModel& target, const std::string& target_name, const LoadedModel& draft,
                 const std::string& draft_name) {
  RefuseState(*target.model, "model '" + target_name + "'");
  RefuseState(*draft.model, "draft model '" + draft_name + "'");
  const std::string both = "model '" + target_name + "' and its draft model '" + draft_name + "'";
  if (!target.tokenizer || !draft.tokenizer) {
    throw Error(ErrorCode::kInvalidArgument,
                both + " need a tokenizer each, to show that their tokens are the same");
  }
  if (const std::string difference = Difference(*target.tokenizer, *draft.tokenizer);
      !difference.empty()) {
    throw Error(ErrorCode::kInvalidArgument, both + " have different tokenizers: " + difference +
                                                 ". Choose a draft model with the same vocabulary");
  }
  target.draft = draft.model;
}

}  // namespace tandem::engine
