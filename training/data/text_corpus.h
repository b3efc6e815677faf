#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::training {

// A text file split into samples at lines that consist of a delimiter. Strips white space around
// samples and omits empty ones. The file stays mapped, samples are views into it. Immutable.
class TextCorpus {
 public:
  static constexpr size_t kMaxSampleBytes = size_t{256} << 20;

  // With an empty delimiter the whole file is one sample. Throws kNotFound / kIo, and kDataLoss for
  // a file that is no text. Throws kInvalidArgument when no sample remains, or when one exceeds
  // kMaxSampleBytes: tokenising takes several times its size.
  static TextCorpus Open(const std::filesystem::path& path, std::string_view delimiter);

  int64_t size() const { return static_cast<int64_t>(samples_.size()); }
  std::string_view sample(int64_t i) const { return samples_[static_cast<size_t>(i)]; }
  int64_t bytes() const;  // of all samples
  const std::string& name() const { return name_; }

 private:
  std::shared_ptr<const void> file_;
  std::vector<std::string_view> samples_;
  std::string name_;
};

// The splitting rule, exposed for tests.
std::vector<std::string_view> SplitAtDelimiterLines(std::string_view text,
                                                    std::string_view delimiter);

}  // namespace tandem::training
