#include "training/data/joined_samples.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem::training {

JoinedSamples::JoinedSamples(std::vector<Part> parts) : parts_(std::move(parts)) {
  TANDEM_CHECK(!parts_.empty());
  int64_t end = 0;
  for (const Part& part : parts_) ends_.push_back(end += part.source->size());
}

size_t JoinedSamples::PartOf(int64_t i) const {
  TANDEM_CHECK(i >= 0 && i < size());
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
}

Sample JoinedSamples::Make(int64_t i) const {
  const size_t part = PartOf(i);
  return parts_[part].source->Make(i - Begin(part));
}

std::string JoinedSamples::Where(int64_t i) const {
  const size_t part = PartOf(i);
  return parts_[part].name + ", " + parts_[part].source->Where(i - Begin(part));
}

}  // namespace tandem::training
