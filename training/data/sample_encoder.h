#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "training/data/example.h"
#include "training/data/sample.h"

namespace tandem::training {

struct EncoderOptions {
  bool completion_only = true;  // else every token is trained
  std::optional<TokenId> bos;   // before plain texts; a chat's is the template's
  std::optional<TokenId> eos;   // behind plain texts, and chats whose template closes no turn
  std::string bos_text;         // as the template is given them, in training as in serving
  std::string eos_text;
  int64_t now_unix_s = 0;  // what a template's clock shows: samples must not change overnight
};

// How the answers of a chat become samples.
enum class Turns {
  kAuto,      // as kTogether; as kApart where the template rewrites earlier turns
  kApart,     // every learned answer is a sample of its own, behind everything before it
  kTogether,  // a chat is one sample; a chat that cannot be one is an error
};

// The chat up to and including `message`, which alone is learned.
Conversation UpTo(const Conversation& chat, size_t message);
// The learned messages, in order.
std::vector<size_t> LearnedMessages(const Conversation& chat);

// Turns examples into tokens with the model's own template and tokenizer, as serving would, and
// marks the trained ones. A chat is rendered and tokenised once as a whole.
//
// The template itself says which tokens are an answer, and the encoder verifies it. An answer is a
// {% generation %} block where the template has them. Otherwise the answer to messages[0..i) is the
// text that the rendering of messages[0..i] adds to the prompt that serving would feed at that
// point (messages[0..i) with the generation prompt). Each must be the beginning of the whole, in
// text and in tokens.
//
// Some templates rewrite a turn when another follows: they drop thoughts, or end only the last turn
// with EOS. No single text then holds all answers as the model gives them, so each answer needs a
// sample of its own.
//
// Some generation prompts open a thought (`<think>`) that the template leaves out of written
// answers. The last message is then trained behind that prompt: its own thought, or an empty one,
// `</think>`, and the answer.
//
// The marks that end a turn are trained with it, whatever their ids. White space behind them is not
// trained, because no model generates it. Const; any thread. Borrows the tokenizer.
class SampleEncoder {
 public:
  // `chat_template` may be null: then a chat is an error.
  SampleEncoder(std::shared_ptr<const engine::ChatTemplate> chat_template,
                const engine::Tokenizer& tokenizer, EncoderOptions options);

  // Throws Error with the reason, naming the message at fault.
  Sample Encode(const Example& example) const;
  Sample EncodeChat(const Conversation& chat) const;
  // The chat as one sample; nothing where the template rewrites one of its learned answers.
  std::optional<Sample> EncodeWhole(const Conversation& chat) const;
  Sample EncodePlain(const PlainExample& example) const;
  // The text whose tokens EncodeChat gives, but for an EOS of its own.
  std::string TextOf(const Conversation& chat) const;

  const engine::Tokenizer& tokenizer() const { return tokenizer_; }
  // Whether the template knows the role "developer" itself.
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
  Rendered Render(const Conversation& chat, size_t n_messages, bool generation_prompt) const;
  // The text that is tokenised.
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
  bool may_open_thought_ = false;  // whether the generation prompt may end with <think>
};

}  // namespace tandem::training
