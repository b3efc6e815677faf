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
//   models--ORG--NAME/blobs/<etag>                 contents, named by their hash
//                     blobs/<etag>.incomplete      the first bytes of a blob, without gaps
//                     refs/<revision>              commit of the revision at the last pull
//                     snapshots/<commit>/<file>    relative links to blobs
//   .locks/models--ORG--NAME/<etag>.lock           flock, held while a blob is being written
//
// A link is created only after its blob is complete and verified, so every linked file is usable.
class HubCache {
 public:
  HubCache(std::filesystem::path cache_dir, const std::string& repo);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path BlobPath(const std::string& etag) const;
  std::filesystem::path IncompletePath(const std::string& etag) const;
  std::filesystem::path SnapshotDir(const std::string& commit) const;

  // Commit of a revision (which may be a commit itself). Returns nullopt when it is unknown or its
  // ref cannot be read.
  std::optional<std::string> FindCommit(const std::string& revision) const;
  // Stores the commit of a revision. Does nothing when the revision is a commit.
  void WriteRef(const std::string& revision, const std::string& commit) const;

  // Size of a file in a snapshot. Returns nullopt when the file or its blob does not exist.
  std::optional<uint64_t> FileSize(const std::string& commit, const std::string& name) const;
  std::optional<uint64_t> BlobSize(const std::string& etag) const;
  // Links a snapshot's file to its blob. REQUIRES: IsSafeFileName(name); the blob is complete.
  void LinkFile(const std::string& commit, const std::string& name, const std::string& etag) const;

  // Takes the lock of a blob, released when the descriptor is destroyed. Returns nullopt while
  // another process holds it.
  std::optional<FileDescriptor> TryLockBlob(const std::string& etag) const;

  void CreateFolders() const;

 private:
  std::filesystem::path cache_dir_;
  std::string folder_name_;
  std::filesystem::path folder_;
};

// Returns the blob name of an ETag header: without `W/` and quotes. Throws kDataLoss when it cannot
// be a file name.
std::string BlobNameOfEtag(std::string_view etag);

// Throws kIo with the numbers when the file system of `dir` has less than `needed_bytes` free.
void CheckFreeSpace(const std::filesystem::path& dir, uint64_t needed_bytes, uint64_t total_bytes,
                    const std::string& what);

// For example "12.3 GiB".
std::string HumanBytes(uint64_t bytes);

}  // namespace tandem::engine
