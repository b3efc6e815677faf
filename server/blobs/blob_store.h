#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace tandem::server {

// Error::reason() of a kUnavailable for want of the object store that replicas share. Requests get
// 503; lasting work waits until the store is back.
inline constexpr const char* kBlobStoreUnavailableReason = "blob_store_unavailable";

struct BlobContent {
  int64_t bytes = 0;
  std::string sha256;  // in lower-case hexadecimal
};

// Where replicas keep the bytes that they share: uploaded files and the results of jobs. The
// database names them. A blob is one file, a tree is a directory; both have names such as
// "files/file-12ab" and appear whole or not at all. Any thread.
//
// Methods throw kUnavailable (blob_store_unavailable) for a store that refuses or does not answer;
// the message names the URL and what to do. They throw kDataLoss for other bytes than expected, and
// kIo for this machine's disk.
class BlobStore {
 public:
  BlobStore() = default;
  virtual ~BlobStore() = default;
  BlobStore(const BlobStore&) = delete;
  BlobStore& operator=(const BlobStore&) = delete;

  // Whether every replica has a data directory of its own, so that a blob may be missing there.
  virtual bool is_remote() const = 0;

  // Publishes a file of the data directory. Every replica can read it at return. Returns its
  // SHA-256; empty if the store keeps none. REQUIRES: the file does not change.
  virtual std::string Put(const std::string& name, const std::filesystem::path& file) = 0;
  // Makes `to` the file with this content. A fetch that was interrupted resumes. REQUIRES: the
  // caller alone writes `to`.
  virtual void Fetch(const std::string& name, const BlobContent& content,
                     const std::filesystem::path& to) = 0;
  // Removes a blob or the parts of an upload that did not end. Does nothing if there is neither.
  virtual void Remove(const std::string& name) = 0;

  // Publishes a directory of the data directory, and replaces an earlier tree of this name.
  virtual void PutTree(const std::string& name, const std::filesystem::path& dir) = 0;
  // Makes `dir` that directory, by one rename. Each file has the hash that PutTree has recorded.
  // Does nothing if `dir` exists.
  virtual void FetchTree(const std::string& name, const std::filesystem::path& dir) = 0;

  // Removes everything whose name begins with `name` and a slash.
  virtual void RemoveBelow(const std::string& name) = 0;

  // The URL of a name in the store; empty without one.
  virtual std::string UrlOf(const std::string& name) const = 0;

  // Ends running transfers with kCancelled, and refuses new ones.
  virtual void Stop() = 0;
};

// A data directory that all replicas share, or that one server has: the files are in place.
std::shared_ptr<BlobStore> SharedDirectory();

}  // namespace tandem::server
