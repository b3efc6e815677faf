#include "training/data/sample_encoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace tandem::training {

using engine::SpecialTokens;
using Json = nlohmann::ordered_json;

namespace {

[[noreturn]] void Throw(size_t message, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "messages[" + std::to_string(message) + "]: " + what);
}

constexpr const char* kWhatToDo =
    "set data.turns=apart, which makes a sample of each answer as serving would prompt for it, or "
    "mark the answers with {% generation %} in a template of your own (model.chat_template)";

bool StartsWith(const std::vector<TokenId>& ids, const std::vector<TokenId>& beginning) {
  return ids.size() >= beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), ids.begin());
}

}  // namespace

SampleEncoder::SampleEncoder(std::shared_ptr<const engine::ChatTemplate> chat_template,
                             const engine::Tokenizer& tokenizer, EncoderOptions options)
    : chat_template_(std::move(chat_template)),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      has_blocks_(chat_template_ && chat_template_->Mentions("endgeneration")) {}

bool SampleEncoder::developer_as_system() const {
  return !chat_template_ || !chat_template_->Mentions("developer");
}

SampleEncoder::Rendered SampleEncoder::Render(const Conversation& chat, size_t n_messages,
                                              bool generation_prompt) const {
  engine::RenderInput input;
  Json part;
  input.messages = chat.messages.get();
  if (n_messages < chat.messages->size()) {
    part = Json::array();
    for (size_t i = 0; i < n_messages; ++i) part.push_back((*chat.messages)[i]);
    input.messages = &part;
  }
  input.tools = chat.tools.get();
  input.extra = chat.extra.get();
  input.add_generation_prompt = generation_prompt;
  input.bos_token = options_.bos_text;
  input.eos_token = options_.eos_text;
  input.now_unix_s = options_.now_unix_s;
  Rendered out;
  const std::vector<engine::RenderedPiece> pieces =
      chat_template_->Render(input, has_blocks_ ? &out.generations : nullptr);
  out.text = engine::JoinPieces(pieces);
  out.client = engine::ClientRanges(pieces);
  return out;
}

std::vector<SampleEncoder::Span> SampleEncoder::SpansOfBlocks(const Conversation& chat,
                                                              const Rendered& whole) const {
  std::vector<size_t> answers;
  for (size_t i = 0; i < chat.messages->size(); ++i) {
    if ((*chat.messages)[i].at("role") == "assistant") answers.push_back(i);
  }
  const size_t n = whole.generations.size();
  if (n != answers.size()) {
    Throw(answers.front(), "the chat template has " + std::to_string(n) +
                               " {% generation %} blocks here for " +
                               std::to_string(answers.size()) + " messages of the assistant");
  }
  std::vector<Span> spans;
  for (size_t k = 0; k < n; ++k) {
    if (!chat.learned[answers[k]]) continue;
    spans.push_back({whole.generations[k].first, whole.generations[k].second, answers[k]});
  }
  return spans;
}

std::vector<SampleEncoder::Span> SampleEncoder::SpansOfPrefixes(const Conversation& chat,
                                                                const Rendered& whole) const {
  std::vector<Span> spans;
  for (size_t i = 0; i < chat.learned.size(); ++i) {
    if (!chat.learned[i]) continue;
    if (i == 0) Throw(i, "a chat cannot begin with an answer that is learned: nothing asks for it");
    const std::string prompt = Render(chat, i, true).text;
    const std::string answer =
        i + 1 == chat.learned.size() ? whole.text : Render(chat, i + 1, false).text;
    if (!answer.starts_with(prompt)) {
      Throw(i,
            "the chat template does not begin an answer as it asks for one (its rendering is not "
            "a continuation of the generation prompt), so what the model says is not known; mark "
            "it with {% generation %} in a template of your own (model.chat_template)");
    }
    if (!whole.text.starts_with(answer)) {
      Throw(i, std::string("the chat template writes this part of the chat differently when more "
                           "messages follow, so it would be trained on what serving never sees; ") +
                   kWhatToDo);
    }
    spans.push_back({prompt.size(), answer.size(), i});
  }
  return spans;
}

// How many tokens the text before `offset` has; that they are the first ones of the whole is
// checked: else a token would be half prompt, half answer.
size_t SampleEncoder::TokensBefore(size_t offset, const Rendered& whole,
                                   const std::vector<TokenId>& ids, size_t message) const {
  if (offset == whole.text.size()) return ids.size();
  const std::vector<engine::TextRange> client = engine::RangesWithin(whole.client, 0, offset);
  const std::vector<TokenId> before =
      tokenizer_.EncodeMixed(std::string_view(whole.text).substr(0, offset), client);
  if (!StartsWith(ids, before)) {
    Throw(message,
          "the answer and the text beside it share a token, so neither could be trained without "
          "the other; remove white space from the answer's ends, or give the message weight 0");
  }
  return before.size();
}

bool SampleEncoder::IsSpace(TokenId id) const {
  return !tokenizer_.IsSpecial(id) &&
         tokenizer_.TokenBytes(id).find_first_not_of(" \t\r\n") == std::string_view::npos;
}

void SampleEncoder::Train(const Span& span, const Rendered& whole, Sample* sample) const {
  const size_t begin = TokensBefore(span.begin, whole, sample->tokens, span.message);
  size_t end = TokensBefore(span.end, whole, sample->tokens, span.message);
  if (has_blocks_) {
    // What ends a turn may stand right behind the block.
    if (end < sample->tokens.size() && tokenizer_.IsSpecial(sample->tokens[end])) ++end;
  } else {
    size_t last = end;
    while (last > begin && IsSpace(sample->tokens[last - 1])) --last;
    if (last > begin && tokenizer_.IsSpecial(sample->tokens[last - 1])) end = last;
  }
  if (begin >= end) Throw(span.message, "the chat template writes nothing of this answer");
  std::fill(sample->trained.begin() + static_cast<std::ptrdiff_t>(begin),
            sample->trained.begin() + static_cast<std::ptrdiff_t>(end), uint8_t{1});
}

Sample SampleEncoder::EncodeChat(const Conversation& chat) const {
  if (!chat_template_) {
    throw Error(ErrorCode::kFailedPrecondition,
                "the model has no chat template, which chats need: name a file with "
                "model.chat_template");
  }
  const Rendered whole = Render(chat, chat.messages->size(), false);
  Sample sample;
  sample.Append(tokenizer_.EncodeMixed(whole.text, whole.client), !options_.completion_only);
  if (options_.completion_only) {
    for (const Span& span :
         has_blocks_ ? SpansOfBlocks(chat, whole) : SpansOfPrefixes(chat, whole)) {
      Train(span, whole, &sample);
    }
  }
  // A model that is never shown an end never stops.
  size_t last = sample.tokens.size();
  while (last > 0 && IsSpace(sample.tokens[last - 1])) --last;
  const bool is_open =
      last > 0 && sample.trained[last - 1] != 0 && !tokenizer_.IsSpecial(sample.tokens[last - 1]);
  if (is_open && options_.eos) sample.Append({*options_.eos}, true);
  return sample;
}

std::string SampleEncoder::TextOf(const Conversation& chat) const {
  return Render(chat, chat.messages->size(), false).text;
}

// The prompt's tokens are those that serving would make of it. Where the completion's beginning
// would join the prompt's last token, they are kept apart, as they are when a model generates.
Sample SampleEncoder::EncodePlain(const PlainExample& example) const {
  Sample sample;
  if (options_.bos) sample.Append({*options_.bos}, !options_.completion_only);
  const std::vector<TokenId> prompt =
      example.prompt.empty() ? std::vector<TokenId>()
                             : tokenizer_.Encode(example.prompt, SpecialTokens::kPlainText);
  std::vector<TokenId> completion =
      tokenizer_.Encode(example.prompt + example.completion, SpecialTokens::kPlainText);
  if (StartsWith(completion, prompt)) {
    completion.erase(completion.begin(),
                     completion.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  } else {
    completion = tokenizer_.Encode(example.completion, SpecialTokens::kPlainText);
  }
  sample.Append(prompt, !options_.completion_only);
  sample.Append(completion, true);
  if (options_.eos) sample.Append({*options_.eos}, true);
  return sample;
}

Sample SampleEncoder::Encode(const Example& example) const {
  return example.is_chat() ? EncodeChat(example.chat) : EncodePlain(example.plain);
}

}  // namespace tandem::training
