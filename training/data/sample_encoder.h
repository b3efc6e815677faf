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

// Turns examples into tokens with the model's own template and tokenizer, as serving would, and
// marks what is trained. A chat is rendered and tokenised once as a whole; which tokens are an
// assistant's answer is found by the template itself and verified:
//
//  - {% generation %} blocks, where the template has them;
//  - else the answer to messages[0..i) is what the rendering of messages[0..i] adds to what serving
//    would feed the model at that point (messages[0..i) with the generation prompt). Each must be
//    the beginning of the whole, in text and in tokens; a template that does otherwise is an error.
//
// So the marks that end a turn are trained with it, whatever their ids; white space behind them is
// not, because nobody ever generates it. Const; any thread. Borrows the tokenizer.
class SampleEncoder {
 public:
  // `chat_template` may be null: then a chat is an error.
  SampleEncoder(std::shared_ptr<const engine::ChatTemplate> chat_template,
                const engine::Tokenizer& tokenizer, EncoderOptions options);

  // Throws Error with the reason, naming the message at fault.
  Sample Encode(const Example& example) const;
  Sample EncodeChat(const Conversation& chat) const;
  Sample EncodePlain(const PlainExample& example) const;
  // The text whose tokens EncodeChat gives, but for an EOS of its own.
  std::string TextOf(const Conversation& chat) const;

  const engine::Tokenizer& tokenizer() const { return tokenizer_; }
  bool has_template() const { return chat_template_ != nullptr; }
  // Whether the template knows the role "developer" itself.
  bool developer_as_system() const;

 private:
  struct Rendered {
    std::string text;
    std::vector<std::pair<size_t, size_t>> client;       // [begin, end) of what clients wrote
    std::vector<std::pair<size_t, size_t>> generations;  // of {% generation %} blocks
  };
  struct Span {
    size_t begin = 0;  // bytes
    size_t end = 0;
    size_t message = 0;
  };
  Rendered Render(const Conversation& chat, size_t n_messages, bool generation_prompt) const;
  std::vector<Span> SpansOfBlocks(const Conversation& chat, const Rendered& whole) const;
  std::vector<Span> SpansOfPrefixes(const Conversation& chat, const Rendered& whole) const;
  size_t TokensBefore(size_t offset, const Rendered& whole, const std::vector<TokenId>& ids,
                      size_t message) const;
  void Train(const Span& span, const Rendered& whole, Sample* sample) const;
  bool IsSpace(TokenId id) const;

  std::shared_ptr<const engine::ChatTemplate> chat_template_;
  const engine::Tokenizer& tokenizer_;
  EncoderOptions options_;
  bool has_blocks_ = false;
};

}  // namespace tandem::training
