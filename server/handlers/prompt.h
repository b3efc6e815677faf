#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/chat_template.h"
#include "server/models/model_registry.h"
#include "server/wire/chat_request.h"
#include "server/wire/completion_request.h"

namespace tandem::server {

struct EncodedChat {
  std::vector<engine::RenderedPiece> pieces;  // text runs with their origin: template or client
  std::vector<TokenId> ids;
  int64_t shared_tokens = 0;  // see SharedTokens; 0 for models without recurrent layers
  std::vector<std::string>
      unread;  // fields of messages that the template drops, for x-ignored-params
};

// Renders and encodes a chat exactly as the model receives it. Only the template's text can produce
// control tokens (Tokenizer::EncodeMixed). With continue_final_message the text ends with the final
// message, white space included. Throws kFailedPrecondition if the model has no tokenizer or no
// usable chat template; the error message names the remedy.
EncodedChat EncodeChat(const ServedModel& model, const ChatPrompt& prompt);

// A chat whose prompt the client has sent as token ids. Throws kFailedPrecondition if the model has
// no tokenizer.
EncodedChat GivenChat(const ServedModel& model, std::vector<TokenId> ids);

// One training sample of a chat, made by the trainer's own code.
struct TrainedChat {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<bool> loss;  // per id: whether the token is learned
};
// Returns one sample, or one per learned answer if the template rewrites earlier turns; never an
// empty list. Requires the prompt's messages as the client sent them. Throws kInvalidArgument if
// training would refuse the chat, and if its samples exceed MostListedTokens. Throws it too if the
// work takes more than 128 MiB of rendered and tokenised text. Throws kCancelled soon after
// `is_over` returns true.
std::vector<TrainedChat> EncodeTrainedChat(const ServedModel& model, const ChatPrompt& prompt,
                                           const std::function<bool()>& is_over);

std::vector<TokenId> EncodeText(const ServedModel& model, std::string_view text,
                                const PlainPromptOptions& options);

// Like EncodeText, but the result is never empty: an empty prompt becomes BOS. Throws
// kInvalidArgument (prompt) for an empty prompt if the model has no BOS.
std::vector<TokenId> EncodePlainPrompt(const ServedModel& model, std::string_view text,
                                       const PlainPromptOptions& options);

// The prompt that makes the model write the text between two others, whose control tokens stay
// text. REQUIRES: model.loaded().infill.
std::vector<TokenId> EncodeInfill(const ServedModel& model, const Prompt& before,
                                  std::string_view after, const PlainPromptOptions& options);

// Throws kInvalidArgument (context_length_exceeded) with both counts unless the prompt leaves room
// for one token. `param` is "messages" or "prompt".
void CheckPromptLength(const ServedModel& model, size_t n_tokens, const std::string& param);

}  // namespace tandem::server
