#include "training/data/sample_maker.h"

namespace tandem::training {

using engine::SpecialTokens;

SampleMaker::SampleMaker(const TextCorpus& corpus, const engine::Tokenizer& tokenizer,
                         const SampleOptions& options)
    : corpus_(corpus), tokenizer_(tokenizer), options_(options) {
  if (options.content_word_header) words_.emplace(corpus);
}

std::string SampleMaker::Text(int64_t i) const {
  const std::string_view text = corpus_.sample(i);
  return (words_ ? words_->Header(text, options_.seed, i) : std::string()) + std::string(text);
}

Sample SampleMaker::Make(int64_t i) const {
  Sample sample;
  const std::string_view text = corpus_.sample(i);
  if (options_.bos) sample.Append({*options_.bos}, false);
  // The header is a prompt: read, not predicted. It is tokenised separately, as serving tokenises a
  // prompt that ends where generation begins.
  if (words_) {
    const std::string header = words_->Header(text, options_.seed, i);
    if (!header.empty()) {
      sample.Append(tokenizer_.Encode(header, SpecialTokens::kPlainText), false);
    }
  }
  sample.Append(tokenizer_.Encode(text, SpecialTokens::kPlainText), true);
  if (options_.eos) sample.Append({*options_.eos}, true);
  return sample;
}

}  // namespace tandem::training
