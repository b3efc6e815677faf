#include "training/data/sample_encoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/json.h"

namespace tandem::training {

using engine::SpecialTokens;
using Json = nlohmann::ordered_json;

namespace {

[[noreturn]] void Throw(size_t message, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "messages[" + std::to_string(message) + "]: " + what);
}

constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";
constexpr std::string_view kTurnSpace = " \t\r\n";

std::string_view TrimLeft(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kTurnSpace), text.size()));
  return text;
}

std::string_view TrimRight(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kTurnSpace) + 1);
}

// The thought of a message, and the white space between its end and the answer.
struct Thought {
  std::string text;
  std::string behind;
};

// `newline`: the prompt has a line break after `<think>`, so `</think>` gets a line of its own.
Thought ThoughtOf(const Json& message, bool newline) {
  const auto given = message.find("reasoning_content");
  const std::string behind = newline ? "\n\n" : "";
  if (given != message.end()) {
    const std::string thought(TrimRight(TrimLeft(given->get_ref<const std::string&>())));
    return {thought.empty() || !newline ? thought : thought + "\n", behind};
  }
  const std::string_view content = message.at("content").get_ref<const std::string&>();
  const size_t close = content.find(kThinkClose);
  if (close == std::string_view::npos) return {"", behind};
  std::string_view thought = content.substr(0, close);
  if (TrimLeft(thought).starts_with(kThinkOpen)) {
    thought = TrimLeft(thought).substr(kThinkOpen.size());
  }
  if (newline && thought.starts_with('\n')) thought.remove_prefix(1);
  const std::string_view rest = content.substr(close + kThinkClose.size());
  return {std::string(thought), std::string(rest.substr(0, rest.size() - TrimLeft(rest).size()))};
}

// Size of all texts of a value, plus a share for each value. Levels of JSON are few, so it
// recurses.
int64_t BytesOf(const Json& value) {
  constexpr int64_t kPerValue = 16;
  int64_t n = kPerValue;
  if (value.is_string()) return n + std::ssize(value.get_ref<const std::string&>());
  for (auto inner = value.begin(); value.is_structured() && inner != value.end(); ++inner) {
    n += BytesOf(*inner) + (value.is_object() ? std::ssize(inner.key()) : 0);
  }
  return n;
}

int64_t BytesOf(const Json& messages, size_t n_messages) {
  int64_t n = 0;
  for (size_t i = 0; i < n_messages; ++i) n += BytesOf(messages[i]);
  return n;
}

bool StartsWith(const std::vector<TokenId>& ids, const std::vector<TokenId>& beginning) {
  return ids.size() >= beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), ids.begin());
}

}  // namespace

std::vector<size_t> LearnedMessages(const Conversation& chat) {
  std::vector<size_t> learned;
  for (size_t i = 0; i < chat.learned.size(); ++i) {
    if (chat.learned[i]) learned.push_back(i);
  }
  return learned;
}

Conversation UpTo(const Conversation& chat, size_t message) {
  Conversation part = chat;
  auto messages = std::make_shared<Json>(Json::array());
  for (size_t i = 0; i <= message; ++i) messages->push_back((*chat.messages)[i]);
  part.messages = std::move(messages);
  part.learned.assign(message + 1, false);
  part.learned[message] = true;
  return part;
}

SampleEncoder::SampleEncoder(std::shared_ptr<const engine::ChatTemplate> chat_template,
                             const engine::Tokenizer& tokenizer, EncoderOptions options)
    : chat_template_(std::move(chat_template)),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      has_blocks_(chat_template_ && chat_template_->Mentions("endgeneration")),
      may_open_thought_(chat_template_ && !has_blocks_ && options_.completion_only &&
                        chat_template_->Mentions(kThinkOpen)) {}

bool SampleEncoder::developer_as_system() const {
  return !chat_template_ || !chat_template_->Mentions("developer");
}

void SampleEncoder::Account(int64_t n_bytes) const {
  if (options_.is_cancelled && options_.is_cancelled(n_bytes)) {
    throw Error(ErrorCode::kCancelled, "encoding of the chat cancelled");
  }
}

std::vector<TokenId> SampleEncoder::Tokens(std::string_view text,
                                           const std::vector<engine::TextRange>& client) const {
  Account(std::ssize(text));
  return tokenizer_.EncodeMixed(text, client);
}

SampleEncoder::Rendered SampleEncoder::Render(const Conversation& chat, size_t n_messages,
                                              bool generation_prompt) const {
  if (options_.is_cancelled) Account(BytesOf(*chat.messages, n_messages));
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
  Account(std::ssize(out.text));
  return out;
}

std::vector<SampleEncoder::Span> SampleEncoder::SpansOfBlocks(const Conversation& chat,
                                                              const Rendered& whole) const {
  std::vector<size_t> answers;
  for (size_t i = 0; i < chat.messages->size(); ++i) {
    if (engine::IsString((*chat.messages)[i].at("role"), "assistant")) answers.push_back(i);
  }
  const size_t n = whole.generations.size();
  if (n != answers.size()) {
    Throw(answers.front(), "the chat template has " + std::to_string(n) +
                               " {% generation %} blocks for " + std::to_string(answers.size()) +
                               " messages of the assistant");
  }
  std::vector<Span> spans;
  for (size_t k = 0; k < n; ++k) {
    if (!chat.learned[answers[k]]) continue;
    spans.push_back({whole.generations[k].first, whole.generations[k].second, answers[k]});
  }
  return spans;
}

// Renders the chat with its last answer after the thought that the generation prompt opens. Absent
// when the prompt opens no thought, or when the rendering already continues the prompt.
std::optional<SampleEncoder::Rendered> SampleEncoder::RenderBehindThought(
    const Conversation& chat, const Rendered& whole) const {
  const size_t n = chat.messages->size();
  if (!may_open_thought_ || n < 2 || !chat.learned.back()) {
    return std::nullopt;
  }
  Rendered out = Render(chat, n - 1, true);
  const std::string_view prompt = TrimRight(out.text);
  if (whole.text.starts_with(out.text) || !prompt.ends_with(kThinkOpen)) return std::nullopt;
  const size_t begin = prompt.size() - kThinkOpen.size();
  if (!whole.text.starts_with(prompt.substr(0, begin))) return std::nullopt;

  const auto append = [&out](std::string_view text, bool from_client) {
    if (text.empty()) return;
    if (from_client) out.client.emplace_back(out.text.size(), out.text.size() + text.size());
    out.text += text;
  };
  std::string_view answer = TrimLeft(std::string_view(whole.text).substr(begin));
  if (answer.starts_with(kThinkOpen)) {
    answer = TrimLeft(answer.substr(kThinkOpen.size()));
  } else if (answer.find(kThinkClose) == std::string_view::npos) {
    const Thought thought = ThoughtOf(chat.messages->back(), out.text.ends_with('\n'));
    append(thought.text, true);
    append(kThinkClose, false);
    append(thought.behind, true);
  }
  const auto at = static_cast<size_t>(answer.data() - whole.text.data());
  const size_t moved_to = out.text.size();
  out.text += answer;
  for (const auto& [first, last] : whole.client) {
    if (last <= at) continue;
    out.client.emplace_back(std::max(first, at) - at + moved_to, last - at + moved_to);
  }
  return out;
}

SampleEncoder::Rendered SampleEncoder::RenderWhole(const Conversation& chat) const {
  Rendered whole = Render(chat, chat.messages->size(), false);
  const bool is_one_answer = LearnedMessages(chat).size() == 1;
  if (is_one_answer) {
    if (auto behind_thought = RenderBehindThought(chat, whole)) return std::move(*behind_thought);
  }
  return whole;
}

// Finds every learned answer in the whole text. Returns the first answer that the template rewrites
// when more messages follow, if any.
std::optional<size_t> SampleEncoder::FindAnswers(const Conversation& chat, const Rendered& whole,
                                                 std::vector<Span>* answers) const {
  for (const size_t i : LearnedMessages(chat)) {
    if (i == 0) Throw(i, "a chat must not start with a learned answer; set its weight to 0");
    const std::string prompt = Render(chat, i, true).text;
    const bool is_last = i + 1 == chat.learned.size();
    const std::string answer = is_last ? whole.text : Render(chat, i + 1, false).text;
    if (!answer.starts_with(prompt)) {
      const Conversation alone = UpTo(chat, i);
      if (RenderWhole(alone).text.starts_with(prompt)) return i;
      Throw(i,
            "the chat template renders this answer differently from a continuation of the "
            "generation prompt, so its tokens are unknown; mark answers with {% generation %} in "
            "your own template (model.chat_template)");
    }
    if (!whole.text.starts_with(answer)) return i;
    answers->push_back({prompt.size(), answer.size(), i});
  }
  return std::nullopt;
}

// Number of tokens before `offset`. Throws when they are not the first tokens of the whole, because
// a token would then be half prompt, half answer.
size_t SampleEncoder::TokensBefore(size_t offset, const Rendered& whole,
                                   const std::vector<TokenId>& ids, size_t message) const {
  if (offset == whole.text.size()) return ids.size();
  const std::vector<engine::TextRange> client = engine::RangesWithin(whole.client, 0, offset);
  const std::vector<TokenId> before =
      Tokens(std::string_view(whole.text).substr(0, offset), client);
  if (!StartsWith(ids, before)) {
    Throw(message,
          "the answer and adjacent text share a token; remove white space from the answer's ends, "
          "or set the message's weight to 0");
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
    // The token that ends a turn may directly follow the block.
    if (end < sample->tokens.size() && tokenizer_.IsSpecial(sample->tokens[end])) ++end;
  } else {
    size_t last = end;
    while (last > begin && IsSpace(sample->tokens[last - 1])) --last;
    if (last > begin && tokenizer_.IsSpecial(sample->tokens[last - 1])) end = last;
  }
  if (begin >= end) Throw(span.message, "the chat template writes no text for this answer");
  std::fill(sample->trained.begin() + static_cast<std::ptrdiff_t>(begin),
            sample->trained.begin() + static_cast<std::ptrdiff_t>(end), uint8_t{1});
}

// Returns the first answer that the template rewrites, if any; the sample is then incomplete.
std::optional<size_t> SampleEncoder::EncodeInto(const Conversation& chat, Sample* sample) const {
  if (!chat_template_) {
    throw Error(
        ErrorCode::kFailedPrecondition,
        "the model has no chat template, which chats need: set model.chat_template to a file");
  }
  const Rendered whole = RenderWhole(chat);
  std::vector<Span> answers;
  if (options_.completion_only && has_blocks_) {
    answers = SpansOfBlocks(chat, whole);
  } else if (options_.completion_only) {
    if (const auto rewritten = FindAnswers(chat, whole, &answers)) return rewritten;
  }
  sample->Append(Tokens(whole.text, whole.client), !options_.completion_only);
  for (const Span& answer : answers) Train(answer, whole, sample);
  // A model that never sees an end never stops.
  size_t last = sample->tokens.size();
  while (last > 0 && IsSpace(sample->tokens[last - 1])) --last;
  const bool is_open =
      last > 0 && sample->trained[last - 1] != 0 && !tokenizer_.IsSpecial(sample->tokens[last - 1]);
  if (is_open && options_.eos) sample->Append({*options_.eos}, true);
  return std::nullopt;
}

std::optional<Sample> SampleEncoder::EncodeWhole(const Conversation& chat) const {
  Sample sample;
  if (EncodeInto(chat, &sample)) return std::nullopt;
  return sample;
}

Sample SampleEncoder::EncodeChat(const Conversation& chat) const {
  Sample sample;
  if (const auto rewritten = EncodeInto(chat, &sample)) {
    Throw(*rewritten,
          "the chat template writes this answer differently when more messages follow, so one "
          "sample cannot hold all answers; set data.turns=auto for one sample per answer, or mark "
          "answers with {% generation %} in your own template (model.chat_template)");
  }
  return sample;
}

std::string SampleEncoder::TextOf(const Conversation& chat) const { return RenderWhole(chat).text; }

// Uses serving's tokens of the prompt. If the completion's begin would merge into the prompt's last
// token, keeps them separate, as in generation.
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
