#include "server/handlers/prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/attempt.h"
#include "engine/chat/answers/reasoning_splitter.h"
#include "engine/generate.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/handlers/shared_prefix.h"
#include "server/handlers/text_budget.h"
#include "server/handlers/token_list.h"
#include "server/respond/generation_reply.h"
#include "server/wire/field_reader.h"
#include "training/data/sample_encoder.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

// Text that one chat may make the trainer's encoder render and tokenise. The largest body of
// /tokenize, 32 MiB, is parsed, rendered and tokenised too.
constexpr int64_t kMostTrainedText = 128 << 20;

using engine::kThinkClose;
using engine::kThinkOpen;
using engine::ReasoningSplitter;
using engine::RenderedPiece;
using engine::SpecialTokens;
using engine::StateAfterPrompt;
using engine::Tokenizer;

const Tokenizer& RequireTokenizer(const ServedModel& model) {
  if (!model.loaded().tokenizer) {
    throw Error(
        ErrorCode::kFailedPrecondition,
        "model '" + model.id + "' has no tokenizer: send prompts as token ids to /v1/completions");
  }
  return *model.loaded().tokenizer;
}

void RequireTemplate(const ServedModel& model) {
  if (model.loaded().chat_template) return;
  const std::string& fault = model.loaded().chat_template_error;
  const std::string what =
      fault.empty() ? "' has no chat template" : "' has an unusable chat template (" + fault + ")";
  throw Error(ErrorCode::kFailedPrecondition,
              "model '" + model.id + what +
                  ": start the server with --chat-template FILE, or use /v1/completions")
      .WithParam("messages");
}

constexpr std::string_view kSpace = " \t\r\n";

// Appends text. Keeps the invariant that no piece is empty and adjacent ones differ in origin.
void AppendPiece(std::vector<RenderedPiece>& pieces, std::string_view text, bool from_client) {
  if (text.empty()) return;
  if (!pieces.empty() && pieces.back().from_client == from_client) {
    pieces.back().text += text;
  } else {
    pieces.push_back({std::string(text), from_client});
  }
}

// Renders the chat with a random word after the final message and cuts the text at that word. The
// result is right even if the template trims or moves the message.
std::vector<RenderedPiece> RenderUpToMark(const engine::ChatTemplate& chat_template,
                                          engine::RenderInput input, std::string_view content) {
  const std::string mark = NewObjectId("end");
  nlohmann::ordered_json marked = *input.messages;
  marked.back()["content"] = std::string(content) + mark;
  input.messages = &marked;
  std::vector<RenderedPiece> pieces = chat_template.Render(input);
  for (size_t i = pieces.size(); i-- > 0;) {
    const size_t at = pieces[i].text.rfind(mark);
    if (!pieces[i].from_client || at == std::string::npos) continue;
    pieces[i].text.resize(at);
    pieces.resize(at == 0 ? i : i + 1);
    return pieces;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "the chat template of this model does not write the final message, so the model "
              "cannot continue it")
      .WithParam("continue_final_message");
}

// Appends an answer that begins with <think> verbatim to the generation prompt, because templates
// rewrite and drop thoughts. Its think marks count as the template's text, not the client's.
std::vector<RenderedPiece> RenderThought(const engine::ChatTemplate& chat_template,
                                         engine::RenderInput input, std::string_view answer) {
  nlohmann::ordered_json before = *input.messages;
  before.erase(before.size() - 1);
  input.messages = &before;
  input.add_generation_prompt = true;
  std::vector<RenderedPiece> pieces = chat_template.Render(input);
  const std::string prompt = engine::JoinPieces(pieces);

  answer.remove_prefix(answer.find(kThinkOpen) + kThinkOpen.size());
  if (StateAfterPrompt(prompt) != ReasoningSplitter::State::kThinking) {
    AppendPiece(pieces, kThinkOpen, false);
  } else if (prompt.ends_with('\n') && answer.starts_with('\n')) {
    answer.remove_prefix(1);
  }
  const size_t close = answer.find(kThinkClose);
  AppendPiece(pieces, answer.substr(0, close), true);
  if (close == std::string_view::npos) return pieces;
  AppendPiece(pieces, kThinkClose, false);
  AppendPiece(pieces, answer.substr(close + kThinkClose.size()), true);
  return pieces;
}

// Renders the chat with its final message left open: the text ends with it.
std::vector<RenderedPiece> RenderOpen(const engine::ChatTemplate& chat_template,
                                      const engine::RenderInput& input) {
  const auto& content = input.messages->back().at("content").get_ref<const std::string&>();
  const size_t begin = std::min(content.find_first_not_of(kSpace), content.size());
  const bool begins_with_thought =
      std::string_view(content).substr(begin).starts_with(kThinkOpen) &&
      chat_template.Mentions(kThinkOpen) && input.messages->size() > 1;
  return begins_with_thought ? RenderThought(chat_template, input, content)
                             : RenderUpToMark(chat_template, input, content);
}

// The thoughts in the history, if the template reads none of their names.
std::vector<std::string> UnreadThoughts(const engine::ChatTemplate& chat_template,
                                        const nlohmann::ordered_json& messages) {
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    if (chat_template.Mentions(name)) return {};
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].contains("reasoning_content")) continue;
    return {"messages." + std::to_string(i) + ".reasoning_content"};
  }
  return {};
}

}  // namespace

EncodedChat EncodeChat(const ServedModel& model, const ChatPrompt& prompt) {
  const engine::LoadedModel& loaded = model.loaded();
  const Tokenizer& tokenizer = RequireTokenizer(model);
  RequireTemplate(model);
  engine::RenderInput render;
  render.messages = prompt.messages.get();
  render.tools = prompt.tools.tools.get();
  render.extra = prompt.template_kwargs.get();
  render.add_generation_prompt = prompt.add_generation_prompt;
  render.bos_token = loaded.bos_text;
  render.eos_token = loaded.eos_text;
  EncodedChat chat;
  chat.pieces = prompt.continue_final_message ? RenderOpen(*loaded.chat_template, render)
                                              : loaded.chat_template->Render(render);
  const std::string text = engine::JoinPieces(chat.pieces);
  chat.ids = tokenizer.EncodeMixed(text, engine::ClientRanges(chat.pieces));
  if (loaded.has_state) {
    chat.shared_tokens = SharedTokens(*loaded.chat_template, tokenizer, render, text, chat.ids);
  }
  chat.unread = UnreadThoughts(*loaded.chat_template, *prompt.messages);
  return chat;
}

namespace {

// The samples that training makes of a chat: one, or one per learned answer.
std::vector<TrainedChat> EncodeSamples(const ServedModel& model,
                                       const training::SampleEncoder& encoder,
                                       const training::Conversation& chat) {
  std::vector<TrainedChat> samples;
  int64_t n_tokens = 0;
  const auto add = [&](const training::Conversation& part, training::Sample sample) {
    n_tokens += std::ssize(sample.tokens);
    const int64_t most = MostListedTokens(model);
    if (n_tokens > most) {
      throw BadValue("messages", "the samples of these messages have more than " +
                                     std::to_string(most) +
                                     " tokens, and a reply lists no more: send fewer or shorter "
                                     "messages");
    }
    samples.push_back({encoder.TextOf(part),
                       std::move(sample.tokens),
                       {sample.trained.begin(), sample.trained.end()}});
  };
  if (auto whole = encoder.EncodeWhole(chat)) {
    add(chat, std::move(*whole));
    return samples;
  }
  for (const size_t message : LearnedMessages(chat)) {
    const training::Conversation part = UpTo(chat, message);
    add(part, encoder.EncodeChat(part));
  }
  return samples;
}

}  // namespace

std::vector<TrainedChat> EncodeTrainedChat(const ServedModel& model, const ChatPrompt& prompt,
                                           const std::function<bool()>& is_over) {
  const engine::LoadedModel& loaded = model.loaded();
  const Tokenizer& tokenizer = RequireTokenizer(model);
  RequireTemplate(model);
  TextBudget budget(kMostTrainedText, is_over);
  training::EncoderOptions options;
  options.is_cancelled = [&](int64_t n_bytes) { return budget.Spend(n_bytes); };
  options.eos = loaded.eos;
  options.bos_text = loaded.bos_text;
  options.eos_text = loaded.eos_text;
  options.now_unix_s = training::kTemplateUnixS;
  const training::SampleEncoder encoder(loaded.chat_template, tokenizer, options);
  training::Conversation chat =
      training::ParseConversation(*prompt.messages, nullptr, "messages",
                                  encoder.developer_as_system(), training::LastMessage::kAssistant);
  chat.extra = prompt.template_kwargs;

  std::vector<TrainedChat> samples;
  const auto cancelled =
      ErrorOf({ErrorCode::kCancelled}, [&] { samples = EncodeSamples(model, encoder, chat); });
  if (!cancelled) return samples;
  if (!budget.is_exceeded()) throw Error(*cancelled);
  throw BadValue("messages", "train: true renders and tokenises at most " +
                                 std::to_string(kMostTrainedText >> 20) +
                                 " MiB of text, and these messages need more, because every answer "
                                 "repeats all messages before it: send fewer or shorter messages");
}

EncodedChat GivenChat(const ServedModel& model, std::vector<TokenId> ids) {
  EncodedChat chat;
  chat.pieces.push_back({engine::Decode(RequireTokenizer(model), ids, /*skip_special=*/false),
                         /*from_client=*/false});
  chat.ids = std::move(ids);
  return chat;
}

std::vector<TokenId> EncodeText(const ServedModel& model, std::string_view text,
                                const PlainPromptOptions& options) {
  RequireTokenizer(model);
  return engine::EncodePrompt(
      model.loaded(), text, options.add_special_tokens,
      options.parse_special ? SpecialTokens::kParseSpecial : SpecialTokens::kPlainText);
}

std::vector<TokenId> EncodePlainPrompt(const ServedModel& model, std::string_view text,
                                       const PlainPromptOptions& options) {
  std::vector<TokenId> ids = EncodeText(model, text, options);
  if (!ids.empty()) return ids;
  const std::optional<TokenId> bos = model.loaded().bos;
  if (!bos) {
    throw BadValue("prompt", "prompt must not be empty: model '" + model.id +
                                 "' has no beginning-of-text token");
  }
  return {*bos};
}

std::vector<TokenId> EncodeInfill(const ServedModel& model, const Prompt& before,
                                  std::string_view after, const PlainPromptOptions& options) {
  const Tokenizer& tokenizer = RequireTokenizer(model);
  const engine::LoadedModel& loaded = model.loaded();
  std::vector<TokenId> ids;
  const auto add = [&](const std::vector<TokenId>& more) {
    ids.insert(ids.end(), more.begin(), more.end());
  };
  if (options.add_special_tokens && loaded.add_bos && loaded.bos) ids.push_back(*loaded.bos);
  ids.push_back(loaded.infill->prefix);
  if (const auto* given = std::get_if<std::vector<TokenId>>(&before)) {
    add(*given);
  } else {
    add(tokenizer.Encode(std::get<std::string>(before), SpecialTokens::kPlainText));
  }
  ids.push_back(loaded.infill->suffix);
  add(tokenizer.Encode(after, SpecialTokens::kPlainText));
  ids.push_back(loaded.infill->middle);
  return ids;
}

void CheckPromptLength(const ServedModel& model, size_t n_tokens, const std::string& param) {
  const int64_t context = model.loaded().max_model_len;
  if (static_cast<int64_t>(n_tokens) < context) return;
  // Libraries that shorten the prompt and retry recognise this error by its message alone.
  // LangChain looks for "prompt is too long", LiteLLM and others for "this model's maximum context
  // length is".
  throw Error(ErrorCode::kInvalidArgument,
              "prompt is too long: this model's maximum context length is " +
                  std::to_string(context) + " tokens, answer included, and " + param +
                  (param.ends_with("s") ? " have " : " has ") + std::to_string(n_tokens) +
                  " tokens")
      .WithParam(param)
      .WithReason("context_length_exceeded");
}

}  // namespace tandem::server
