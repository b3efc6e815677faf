#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/objects/object_client.h"

namespace tandem::engine {

// Bytes that moved, from any thread of a transfer.
using OnObjectBytes = std::function<void(uint64_t n_bytes)>;

struct ObjectToFetch {
  ObjectInfo info;
  // While it is fetched, the file is `<path>.incomplete` and grows only at its end, so its size
  // tells the next attempt where to resume.
  std::filesystem::path path;
};

// Fetches objects with several connections, in segments of options.segment_bytes. A file gets its
// name when it is complete and on disk. Bytes of an earlier attempt count for `on_bytes` too. The
// caller makes sure that no other process fetches the same files, and that `.incomplete` files
// belong to the same version of the object. Throws like ObjectClient, and kIo.
void FetchObjects(ObjectStore& store, std::vector<ObjectToFetch> files,
                  const OnObjectBytes& on_bytes);

struct FileToUpload {
  std::filesystem::path path;
  std::string key;
};

// Uploads files with several connections: small ones as one request, others in parts. An object
// appears whole or not at all. After a failure, the parts that were sent are removed. Throws like
// ObjectClient, and kIo for a file that cannot be read or that shrinks meanwhile.
void UploadFiles(ObjectStore& store, const std::vector<FileToUpload>& files,
                 const OnObjectBytes& on_bytes);

}  // namespace tandem::engine
