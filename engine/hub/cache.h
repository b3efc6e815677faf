#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/hub/reference.h"
#include "engine/io/posix_file.h"

namespace tandem::engine {

// A model's folder in Hugging Face's cache, which other tools share:
//
//   models--ORG--NAME/blobs/<etag>                 contents, each under its hash
//                     blobs/<etag>.incomplete      the first bytes of one, never with a gap
//                     refs/<revision>              the commit it stood for when last asked
//                     snapshots/<commit>/<file>    relative links to blobs
//   .locks/models--ORG--NAME/<etag>.lock           held (flock) while a blob is being written
//
// A link is made only when its blob is whole and verified, so what is there can be used.
class HubCache {
 public:
  HubCache(std::filesystem::path cache_dir, const std::string& repo);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path BlobPath(const std::string& etag) const;
  std::filesystem::path IncompletePath(const std::string& etag) const;
  std::filesystem::path SnapshotDir(const std::string& commit) const;

  // The commit that the revision (which may be a commit itself) stood for; nullopt when unknown, be
  // it that what says so cannot be read.
  std::optional<std::string> FindCommit(const std::string& revision) const;
  // Does nothing for a revision that is a commit.
  void WriteRef(const std::string& revision, const std::string& commit) const;

  // Size of the file in a snapshot; nullopt when it is not there, or not whole.
  std::optional<uint64_t> FileSize(const std::string& commit, const std::string& name) const;
  std::optional<uint64_t> BlobSize(const std::string& etag) const;
  // REQUIRES: IsSafeFileName(name), the blob is whole.
  void LinkFile(const std::string& commit, const std::string& name, const std::string& etag) const;

  // Holds the lock of a blob until it is destroyed; nullopt while another process does.
  std::optional<FileDescriptor> TryLockBlob(const std::string& etag) const;

  void CreateFolders() const;

 private:
  std::filesystem::path cache_dir_;
  std::string folder_name_;
  std::filesystem::path folder_;
};

// The name of a blob from an ETag header: without `W/` and quotes. Throws kDataLoss for what cannot
// be a file's name.
std::string BlobNameOfEtag(std::string_view etag);

// Throws kIo when the file system of `dir` has less than `needed_bytes` free, with the sum.
void CheckFreeSpace(const std::filesystem::path& dir, uint64_t needed_bytes, uint64_t total_bytes,
                    const std::string& what);

// "12.3 GiB"
std::string HumanBytes(uint64_t bytes);

}  // namespace tandem::engine
