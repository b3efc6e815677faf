#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::training {

// The figures of a served teacher on disk: for each learned token of each sample the teacher's k
// likeliest tokens and their log-probabilities. README.md has the format.

// Everything that the figures of a file depend on.
struct TeacherHeader {
  std::string teacher;  // the model's name on its server
  std::string samples;  // hash of what decides the samples
  int64_t top_k = 0;

  bool operator==(const TeacherHeader&) const = default;
};

// The figures of one sample, in the order of its learned tokens, likeliest first.
struct ScoredSample {
  int64_t sample = 0;
  std::vector<TokenId> ids;     // [tokens, top_k]
  std::vector<float> logprobs;  // [tokens, top_k]
};

// A file is a header, frames, and the end.
std::string EncodeTeacherHeader(const TeacherHeader& header);
// `fingerprint`: of the server's answer; may be empty.
std::string EncodeTeacherFrame(std::span<const ScoredSample> samples,
                               const std::string& fingerprint);
std::string EncodeTeacherEnd();

// A file in memory, mapped or copied. Const and thread-safe.
class TeacherFigures {
 public:
  // Reads frames until the end, or until a frame that is incomplete or damaged. `owner` keeps the
  // bytes alive. Throws kDataLoss when the header is not one.
  TeacherFigures(std::shared_ptr<const void> owner, std::span<const std::byte> bytes,
                 const std::string& source);

  const TeacherHeader& header() const { return header_; }
  // Fingerprint of the last frame that has one.
  const std::string& fingerprint() const { return fingerprint_; }
  bool is_complete() const { return is_complete_; }
  size_t whole_bytes() const { return whole_bytes_; }  // of header and frames that were read
  size_t size() const { return places_.size(); }
  bool Has(int64_t sample) const { return places_.contains(sample); }
  // Learned tokens of a sample; -1: it has no figures.
  int64_t TokensOf(int64_t sample) const;
  // Fills ids[top_k] and logprobs[top_k] of a sample's learned token. REQUIRES: token <
  // TokensOf(sample).
  void Copy(int64_t sample, int64_t token, TokenId* ids, float* logprobs) const;

 private:
  struct Place {
    size_t offset = 0;  // of the ids in bytes_
    int64_t n_tokens = 0;
  };
  bool ReadFrame();
  bool ReadSamples(size_t begin, size_t end);

  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
  TeacherHeader header_;
  std::string fingerprint_;
  bool is_complete_ = false;
  size_t whole_bytes_ = 0;
  std::map<int64_t, Place> places_;
};

}  // namespace tandem::training
