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

// What a blob must turn out to be.
struct BlobIdentity {
  enum class Hash { kNone, kSha256, kGitSha1 };

  std::string name;  // in the cache
  uint64_t size = 0;
  Hash hash = Hash::kNone;
  std::string hex;  // of the hash
};

// A blob being written: a file that only ever grows at its end, so that whatever ends the program
// leaves the first bytes of the blob and nothing else. Hashed as it is written. One thread at a
// time; whoever holds it holds the blob's lock.
class PartialBlob {
 public:
  // Hears of bytes of an earlier attempt as they are taken up, at most 1 MiB at a time; what it
  // throws ends the reading, and changes nothing in the file.
  using OnRead = std::function<void(size_t n_bytes)>;

  // Takes up what an earlier attempt left, reading it once; throws kIo.
  PartialBlob(std::filesystem::path path, const BlobIdentity& identity,
              const OnRead& on_read = nullptr);
  ~PartialBlob();

  uint64_t size() const { return size_; }
  bool was_resumed() const { return was_resumed_; }
  // REQUIRES: it does not get larger than the blob. Throws kIo; what was written before stays.
  void Append(std::span<const char> bytes);
  // Forgets everything.
  void Restart();
  // REQUIRES: size() is the blob's. False when the hash is another one: the file is then empty
  // again, as no attempt to go on could mend it.
  bool Verify();
  // The hash that Verify found, for messages.
  const std::string& found_hex() const { return found_hex_; }
  // REQUIRES: Verify() said true. From now on the blob is what it is.
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
  std::unique_ptr<evp_md_ctx_st, FreeHash> hash_;  // null where there is nothing to compare with
  uint64_t size_ = 0;
  bool was_resumed_ = false;
  std::string found_hex_;
};

}  // namespace tandem::engine
