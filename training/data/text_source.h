#pragma once

#include "training/data/sample_maker.h"
#include "training/data/sample_source.h"

namespace tandem::training {

// The samples of a text file, split at delimiter lines. Borrows the tokenizer.
class TextSource final : public SampleSource {
 public:
  TextSource(TextCorpus corpus, const engine::Tokenizer& tokenizer, const SampleOptions& options)
      : corpus_(std::move(corpus)), maker_(corpus_, tokenizer, options) {}
  TextSource(const TextSource&) = delete;  // the maker refers to the corpus
  TextSource& operator=(const TextSource&) = delete;

  int64_t size() const override { return corpus_.size(); }
  Sample Make(int64_t i) const override { return maker_.Make(i); }
  std::string Where(int64_t i) const override { return "text " + std::to_string(i + 1); }

 private:
  TextCorpus corpus_;
  SampleMaker maker_;
};

}  // namespace tandem::training
