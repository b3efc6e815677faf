#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "engine/io/posix_file.h"

struct evp_md_ctx_st;

namespace tandem::engine {

// Size and hash that a blob must have.
struct BlobIdentity {
  enum class Hash { kNone, kSha256, kGitSha1 };

  std::string name;  // file name in the cache
  uint64_t size = 0;
  Hash hash = Hash::kNone;
  std::string hex;  // of the hash
};

// A blob being written. The file only grows at its end, so that an interrupted program leaves the
// first bytes of the blob and nothing else. Bytes are hashed as they are written. One thread at a
// time; the owner holds the blob's lock.
class PartialBlob {
 public:
  // Reports bytes of an earlier attempt as they are read, normally at most 1 MiB per call. An
  // exception ends the reading and leaves the file unchanged.
  using OnRead = std::function<void(size_t n_bytes)>;

  // Resumes an earlier attempt's file and hashes it once. Throws kIo.
  PartialBlob(std::filesystem::path path, const BlobIdentity& identity,
              const OnRead& on_read = nullptr);
  ~PartialBlob();

  uint64_t size() const { return size_; }
  bool was_resumed() const { return was_resumed_; }
  // Appends bytes. REQUIRES: the file does not exceed the blob's size. Throws kIo; earlier bytes
  // stay.
  void Append(std::span<const char> bytes);
  // Truncates the file to zero bytes and restarts the hash.
  void Restart();
  // Checks the hash. REQUIRES: size() equals the blob's size. On a mismatch returns false and
  // restarts the file, because resuming cannot repair it.
  bool Verify();
  // The hash that Verify computed, for messages.
  const std::string& found_hex() const { return found_hex_; }
  // fsyncs the file and renames it to the blob. REQUIRES: Verify() returned true.
  void Publish(const std::filesystem::path& path);

 private:
  void BeginHash();
  void Hash(std::span<const char> bytes);

  struct FreeHash {
    void operator()(evp_md_ctx_st* context) const;
  };

  const std::filesystem::path path_;
  const BlobIdentity identity_;
  FileDescriptor file_;
  std::unique_ptr<evp_md_ctx_st, FreeHash> hash_;  // null when the blob has no known hash
  uint64_t size_ = 0;
  bool was_resumed_ = false;
  std::string found_hex_;
};

}  // namespace tandem::engine
