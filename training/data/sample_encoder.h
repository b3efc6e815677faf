#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "training/data/example.h"
#include "training/data/sample.h"

namespace tandem::training {

// Increase this whenever the same rows produce other tokens or masks than before. Prepared files
// and records of checked rows carry it, so that a run never mixes two encodings.
inline constexpr int kEncoderVersion = 3;

struct EncoderOptions {
  bool completion_only = true;  // false: every token is trained
  std::optional<TokenId> bos;   // before plain texts; chats get theirs from the template
  std::optional<TokenId> eos;   // after plain texts, and after chats whose template closes no turn
  std::string bos_text;         // the template's bos_token, in training as in serving
  std::string eos_text;
  int64_t now_unix_s = 0;  // time that templates see, fixed so that samples stay the same
  // Called before and after each rendering of a chat and before each tokenisation, on any thread,
  // with the bytes of the messages or the text. True ends the call with kCancelled. A chat takes
  // two renderings and two tokenisations per answer.
  std::function<bool(int64_t n_bytes)> is_cancelled = {};
};

// How the answers of a chat become samples.
enum class Turns {
  kAuto,      // kTogether, or kApart when the template rewrites earlier turns
  kApart,     // every learned answer is a sample, after everything before it
  kTogether,  // a chat is one sample, or an error
};

// The chat up to and including `message`, the only learned one.
Conversation UpTo(const Conversation& chat, size_t message);
// Indices of the learned messages, in order.
std::vector<size_t> LearnedMessages(const Conversation& chat);

// Turns examples into tokens with the model's own template and tokenizer, as serving does, and
// marks the trained tokens. Renders and tokenises a chat once, as a whole.
//
// The template defines which tokens are an answer, and the encoder verifies it. An answer is a {%
// generation %} block if the template has them. Otherwise the answer to messages[0..i) is the text
// that the rendering of messages[0..i] adds to serving's prompt at that point (messages[0..i) with
// the generation prompt). Both must be a prefix of the whole, in text and in tokens.
//
// Some templates rewrite a turn when another follows: they drop thoughts, or end only the last turn
// with EOS. No single text then holds all answers as the model gives them, so each answer needs a
// sample of its own.
//
// Some generation prompts open a thought (`<think>`) that the template omits from written answers.
// The last message is then trained after that prompt: its own thought, or an empty one, `</think>`,
// and the answer.
//
// The marks that end a turn are trained with it, whatever their ids. White space after them is not
// trained, because no model generates it. Const and thread-safe. Borrows the tokenizer.
class SampleEncoder {
 public:
  // `chat_template` may be null; chats are then errors.
  SampleEncoder(std::shared_ptr<const engine::ChatTemplate> chat_template,
                const engine::Tokenizer& tokenizer, EncoderOptions options);

  // Throws Error with the reason, naming the faulty message.
  Sample Encode(const Example& example) const;
  Sample EncodeChat(const Conversation& chat) const;
  // The chat as one sample. Absent when the template rewrites one of its learned answers.
  std::optional<Sample> EncodeWhole(const Conversation& chat) const;
  Sample EncodePlain(const PlainExample& example) const;
  // The text that EncodeChat tokenises, without an EOS that it adds.
  std::string TextOf(const Conversation& chat) const;

  const engine::Tokenizer& tokenizer() const { return tokenizer_; }
  // Whether the template supports the role "developer" itself.
  bool developer_as_system() const;

 private:
  struct Rendered {
    std::string text;
    std::vector<std::pair<size_t, size_t>> client;       // [begin, end) of clients' text
    std::vector<std::pair<size_t, size_t>> generations;  // of {% generation %} blocks
  };
  struct Span {
    size_t begin = 0;  // bytes
    size_t end = 0;
    size_t message = 0;
  };
  // Throws kCancelled if is_cancelled says so.
  void Account(int64_t n_bytes) const;
  std::vector<TokenId> Tokens(std::string_view text,
                              const std::vector<engine::TextRange>& client) const;
  Rendered Render(const Conversation& chat, size_t n_messages, bool generation_prompt) const;
  // The text to tokenise.
  Rendered RenderWhole(const Conversation& chat) const;
  std::optional<Rendered> RenderBehindThought(const Conversation& chat,
                                              const Rendered& whole) const;
  std::vector<Span> SpansOfBlocks(const Conversation& chat, const Rendered& whole) const;
  std::optional<size_t> FindAnswers(const Conversation& chat, const Rendered& whole,
                                    std::vector<Span>* answers) const;
  std::optional<size_t> EncodeInto(const Conversation& chat, Sample* sample) const;
  size_t TokensBefore(size_t offset, const Rendered& whole, const std::vector<TokenId>& ids,
                      size_t message) const;
  void Train(const Span& span, const Rendered& whole, Sample* sample) const;
  bool IsSpace(TokenId id) const;

  std::shared_ptr<const engine::ChatTemplate> chat_template_;
  const engine::Tokenizer& tokenizer_;
  EncoderOptions options_;
  bool has_blocks_ = false;
  bool may_open_thought_ = false;  // the generation prompt may end with <think>
};

}  // namespace tandem::training
