#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "engine/io/mapped_file.h"
#include "training/data/sample_source.h"

namespace tandem::training {

// Everything besides the rows that decides the tokens of a prepared file.
struct TokIdentity {
  std::string tokenizer_sha256;  // hex
  std::string template_sha256;
  std::string options;  // JSON of every option that changes a token or a mask bit
  // Ids take two bytes when the vocabulary permits it.
  int64_t vocab_size = 0;
};

// Writes a prepared file piece by piece under a temporary name; Finish publishes it. One thread.
// README.md has the format.
class TokWriter {
 public:
  TokWriter(std::filesystem::path path, TokIdentity identity);
  ~TokWriter();  // removes an unpublished file
  TokWriter(const TokWriter&) = delete;
  TokWriter& operator=(const TokWriter&) = delete;

  void Add(const Sample& sample);
  void Finish();                            // throws kIo
  int64_t bytes() const { return bytes_; }  // of the published file

 private:
  void Put(const void* data, size_t bytes);
  void PutTokens(const Sample& sample);
  void PutMask(const Sample& sample);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  TokIdentity identity_;
  std::ofstream out_;
  bool is_published_ = false;
  bool is_wide_ = false;
  uint32_t crc_ = 0;  // of everything after the header
  int64_t bytes_ = 0;
  std::vector<uint64_t> offsets_ = {0};  // in tokens
  std::vector<uint8_t> mask_;            // one bit per token, lowest first
};

// A prepared file, mapped and fully checked. Const and thread-safe.
class TokFile final : public SampleSource {
 public:
  static bool IsTokFile(const std::filesystem::path& path);
  // Throws kDataLoss for a broken file, kInvalidArgument naming a difference from `identity`.
  static std::unique_ptr<TokFile> Open(const std::filesystem::path& path,
                                       const TokIdentity& identity);

  int64_t size() const override { return n_samples_; }
  Sample Make(int64_t i) const override;
  std::string Where(int64_t i) const override { return "sample " + std::to_string(i + 1); }
  int64_t tokens() const { return n_tokens_; }

 private:
  explicit TokFile(std::shared_ptr<const engine::MappedFile> file);
  void ReadHeader(const std::string& name);
  void CheckBody(const std::string& name) const;
  void CheckIdentity(const TokIdentity& identity, const std::string& name) const;
  uint64_t Offset(int64_t i) const;

  std::shared_ptr<const engine::MappedFile> file_;
  TokIdentity identity_;
  int64_t n_samples_ = 0;
  int64_t n_tokens_ = 0;
  bool is_wide_ = false;
  const std::byte* tokens_ = nullptr;
  const std::byte* mask_ = nullptr;
  const std::byte* offsets_ = nullptr;
};

}  // namespace tandem::training
