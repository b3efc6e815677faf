#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/chat_template.h"
#include "server/models/model_registry.h"
#include "server/wire/chat_request.h"

namespace tandem::server {

struct EncodedChat {
  std::vector<engine::RenderedPiece> pieces;  // the text, and who wrote it
  std::vector<TokenId> ids;
};

// A rendered chat and its ids: exactly what the model is fed. Control tokens come from the
// template's text alone (Tokenizer::EncodeMixed). With
// continue_final_message the text ends where the final message does, white space included. Throws
// kFailedPrecondition when the model has no tokenizer or no usable chat template; the message says
// what to do.
EncodedChat EncodeChat(const ServedModel& model, const ChatPrompt& prompt);

// A chat as training feeds it, by the trainer's own code.
struct TrainedChat {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<bool> loss;  // beside ids: whether the token is learned
};
// One sample, or one for each learned answer where the template rewrites earlier turns; never
// empty. The prompt's messages are as they came. Throws kInvalidArgument where training would
// refuse the chat.
std::vector<TrainedChat> EncodeTrainedChat(const ServedModel& model, const ChatPrompt& prompt);

// The ids of a plain prompt: BOS if the model wants one (and `add_special_tokens`), then the text.
std::vector<TokenId> EncodeText(const ServedModel& model, std::string_view text,
                                bool add_special_tokens);

// The same of a prompt to go on from, which is never empty: no text means "from the beginning", and
// only BOS can say that. Throws kInvalidArgument (prompt) where the model has none.
std::vector<TokenId> EncodePlainPrompt(const ServedModel& model, std::string_view text,
                                       bool add_special_tokens);

// Throws kInvalidArgument (context_length_exceeded) with both counts unless the prompt leaves room
// for a token. `param` is messages or prompt.
void CheckPromptLength(const ServedModel& model, size_t n_tokens, const std::string& param);

}  // namespace tandem::server
