#include "server/handlers/prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/tokenizer/tokenizer.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using engine::RenderedPiece;
using engine::SpecialTokens;
using engine::Tokenizer;

const Tokenizer& RequireTokenizer(const ServedModel& model) {
  if (!model.loaded().tokenizer) {
    throw Error(ErrorCode::kFailedPrecondition,
                "model '" + model.id +
                    "' has no tokenizer: it takes prompts as token ids, at /v1/completions");
  }
  return *model.loaded().tokenizer;
}

// Whether the template's own text may form a control token there.
class ClientSpans {
 public:
  explicit ClientSpans(const std::vector<RenderedPiece>& pieces) {
    size_t at = 0;
    for (const RenderedPiece& piece : pieces) {
      if (piece.from_client && !piece.text.empty()) spans_.push_back({at, at + piece.text.size()});
      at += piece.text.size();
    }
  }
  bool Overlaps(size_t begin, size_t end) const {
    return std::any_of(spans_.begin(), spans_.end(),
                       [&](const auto& span) { return begin < span.second && span.first < end; });
  }

 private:
  std::vector<std::pair<size_t, size_t>> spans_;
};

void Append(std::vector<TokenId>& ids, const std::vector<TokenId>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

std::vector<TokenId> EncodePieces(const Tokenizer& tokenizer, const ControlTokens& control_tokens,
                                  const std::vector<RenderedPiece>& pieces) {
  const std::string text = engine::JoinPieces(pieces);
  const std::vector<ControlTokens::Occurrence> occurrences = control_tokens.FindIn(text);
  const ClientSpans client(pieces);
  const bool is_spelled_by_client = std::any_of(
      occurrences.begin(), occurrences.end(),
      [&](const auto& occurrence) { return client.Overlaps(occurrence.begin, occurrence.end); });
  if (!is_spelled_by_client) return tokenizer.Encode(text, SpecialTokens::kParseSpecial);

  // Only the template's own control tokens count; all between them is plain text.
  std::vector<TokenId> ids;
  size_t done = 0;
  const auto add_text_up_to = [&](size_t end) {
    const std::string_view part = std::string_view(text).substr(done, end - done);
    if (!part.empty()) Append(ids, tokenizer.Encode(part, SpecialTokens::kPlainText));
  };
  for (const ControlTokens::Occurrence& occurrence : occurrences) {
    if (client.Overlaps(occurrence.begin, occurrence.end)) continue;
    add_text_up_to(occurrence.begin);
    ids.push_back(occurrence.id);
    done = occurrence.end;
  }
  add_text_up_to(text.size());
  return ids;
}

std::string_view Trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Leaves the last message open: what the template put behind its text goes.
void CutBehindFinalMessage(std::vector<RenderedPiece>& pieces, const std::string& content) {
  for (size_t i = pieces.size(); i-- > 0;) {
    if (!pieces[i].from_client) continue;
    for (const std::string_view wanted : {std::string_view(content), Trim(content)}) {
      const size_t at = pieces[i].text.rfind(wanted);
      if (wanted.empty() || at == std::string::npos) continue;
      pieces[i].text.resize(at + wanted.size());
      pieces.resize(i + 1);
      return;
    }
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      "the chat template of this model changes the final message, so it cannot be continued")
      .WithParam("continue_final_message");
}

}  // namespace

EncodedChat EncodeChat(const ServedModel& model, const ChatPrompt& prompt,
                       const std::vector<bool>* learned_messages) {
  const engine::LoadedModel& loaded = model.loaded();
  const Tokenizer& tokenizer = RequireTokenizer(model);
  if (!loaded.chat_template) {
    throw Error(ErrorCode::kFailedPrecondition,
                "model '" + model.id +
                    "' has no chat template: start the server with --chat-template FILE, or use "
                    "/v1/completions")
        .WithParam("messages");
  }
  engine::RenderInput render;
  render.messages = prompt.messages.get();
  render.extra = prompt.template_kwargs.get();
  render.add_generation_prompt = prompt.add_generation_prompt;
  render.bos_token = loaded.bos_text;
  render.eos_token = loaded.eos_text;
  render.learned_messages = learned_messages;
  EncodedChat chat;
  chat.pieces = loaded.chat_template->Render(render);
  if (prompt.continue_final_message) {
    CutBehindFinalMessage(chat.pieces, prompt.messages->back()["content"].get<std::string>());
  }
  chat.ids = EncodePieces(tokenizer, model.control_tokens, chat.pieces);
  return chat;
}

std::vector<TokenId> EncodeText(const ServedModel& model, std::string_view text,
                                bool add_special_tokens) {
  const engine::LoadedModel& loaded = model.loaded();
  std::vector<TokenId> ids;
  if (add_special_tokens && loaded.add_bos && loaded.bos) ids.push_back(*loaded.bos);
  const Tokenizer& tokenizer = RequireTokenizer(model);
  if (!text.empty()) Append(ids, tokenizer.Encode(text, SpecialTokens::kPlainText));
  return ids;
}

std::vector<TokenId> EncodePlainPrompt(const ServedModel& model, std::string_view text,
                                       bool add_special_tokens) {
  std::vector<TokenId> ids = EncodeText(model, text, add_special_tokens);
  if (!ids.empty()) return ids;
  const std::optional<TokenId> bos = model.loaded().bos;
  if (!bos) {
    throw BadValue("prompt", "prompt must not be empty: model '" + model.id +
                                 "' has no beginning-of-text token");
  }
  return {*bos};
}

void CheckPromptLength(const ServedModel& model, size_t n_tokens, const std::string& param) {
  const int64_t context = model.loaded().max_model_len;
  if (static_cast<int64_t>(n_tokens) < context) return;
  // Libraries that shorten and try again know this fault by its words, as they often see no more
  // of an answer than its message: LangChain by "prompt is too long", LiteLLM and others by "this
  // model's maximum context length is".
  throw Error(ErrorCode::kInvalidArgument,
              "prompt is too long: this model's maximum context length is " +
                  std::to_string(context) + " tokens, answer included, and " + param +
                  (param == "messages" ? " have " : " has ") + std::to_string(n_tokens) + " tokens")
      .WithParam(param)
      .WithReason("context_length_exceeded");
}

}  // namespace tandem::server
