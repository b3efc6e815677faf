#pragma once

#include <memory>
#include <string>
#include <vector>

#include "training/data/sample_source.h"

namespace tandem::training {

// Several sources, one after the other.
class JoinedSamples final : public SampleSource {
 public:
  struct Part {
    std::string name;
    std::unique_ptr<SampleSource> source;
  };
  explicit JoinedSamples(std::vector<Part> parts);

  int64_t size() const override { return ends_.back(); }
  Sample Make(int64_t i) const override;
  std::string Where(int64_t i) const override;  // "stories.txt, text 3"

 private:
  size_t PartOf(int64_t i) const;
  int64_t Begin(size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }

  std::vector<Part> parts_;
  std::vector<int64_t> ends_;  // for each part, the number after its last sample
};

}  // namespace tandem::training
