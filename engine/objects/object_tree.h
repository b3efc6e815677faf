#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "engine/objects/object_client.h"
#include "engine/objects/transfer.h"

namespace tandem::engine {

// A tree is the objects below a prefix, as a directory of the same files. Who writes one with
// PublishTree keeps this object in it, beside the files:
//
//   <prefix>/tandem-upload.json   {"format":"tandem-upload","version":1,"state":"complete",
//                                  "files":[{"name":"config.json","bytes":1234},…]}
//
// Its state is "uploading" while the other objects change, and "removing" while they are removed,
// so readers refuse a tree whose writer is at work or was killed. A tree without this object is of
// other tools and read as it is.
inline constexpr const char* kUploadManifest = "tandem-upload.json";
inline constexpr size_t kMaxTreeFiles = 200'000;

struct ObjectTree {
  std::vector<ObjectInfo> files;  // without the manifest; sorted by key
  std::string manifest_etag;      // empty: none
};

// The tree below the prefix, which ends with a slash or is empty. Throws kNotFound when there is no
// object, kFailedPrecondition for an unfinished upload, and kDataLoss for names that cannot be
// files, and for files that differ from the manifest.
ObjectTree ListTree(ObjectClient& client, const std::string& prefix);

// Throws kDataLoss when the tree has another manifest by now.
void CheckUnchanged(ObjectClient& client, const std::string& prefix, const ObjectTree& tree);

// Makes `dir` the directory of these files, all of which it fetches or finds there. REQUIRES: the
// caller alone writes to `dir`. Throws kDataLoss when the tree changed meanwhile.
void FetchTree(ObjectStore& store, const std::string& prefix, const std::filesystem::path& dir,
               const OnObjectBytes& on_bytes);

enum class IfObjects { kRefuse, kReplace };

// Throws kAlreadyExists as PublishTree would now.
void CheckTreePlace(ObjectClient& client, const std::string& prefix, IfObjects if_objects);

// Names (relative to `dir`) and sizes of the files that PublishTree uploads. Follows links to
// files. Throws kUnsupported for links to directories, other kinds of files, names that cannot be
// keys, and more than `max_files`.
std::map<std::string, uint64_t> FilesToPublish(const std::filesystem::path& dir,
                                               size_t max_files = kMaxTreeFiles);

// Uploads a directory with all files below it as one tree. With kRefuse, throws kAlreadyExists when
// there are objects below the prefix, unless they are of an upload that did not end. Objects that
// are not in the directory are removed at the end. Throws also as FilesToPublish.
void PublishTree(ObjectStore& store, const std::filesystem::path& dir, const std::string& prefix,
                 IfObjects if_objects, const OnObjectBytes& on_bytes);

// Removes a tree, its manifest last. One that was removed in part reads as not complete, and can be
// removed again.
void RemoveTree(ObjectClient& client, const std::string& prefix);

// Whether a name may become a path below a directory: parts that are not empty, "." or "..",
// without backslashes and control characters, of bounded length and depth.
bool IsSafeObjectName(std::string_view name);

}  // namespace tandem::engine
