#include "engine/objects/object_tree.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "engine/base/attempt.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "engine/base/utf8.h"
#include "engine/io/json.h"
#include "engine/io/posix_file.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kMaxTreeObjects = kMaxTreeFiles + 1;  // and the manifest
constexpr size_t kMaxManifestBytes = size_t{64} << 20;
// A file is an object of two values; the manifest has four more and a list.
constexpr JsonLimits kManifestLimits{.max_depth = 8, .max_values = 3 * int64_t{kMaxTreeFiles} + 16};
constexpr size_t kMaxTreeNameBytes = 1024;
constexpr size_t kMaxTreePartBytes = 255;
constexpr size_t kMaxTreeParts = 32;

std::string ManifestText(const char* state, const std::map<std::string, uint64_t>& files) {
  ordered_json manifest = {{"format", "tandem-upload"},
                           {"version", 1},
                           {"state", state},
                           {"files", ordered_json::array()}};
  for (const auto& [name, bytes] : files) {
    manifest["files"].push_back({{"name", name}, {"bytes", bytes}});
  }
  return manifest.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

struct Manifest {
  bool is_complete = false;
  bool is_being_removed = false;
  std::map<std::string, uint64_t> files;
};

// Throws kDataLoss and kUnsupported. `where` names the object.
Manifest ParseManifest(const std::string& text, const std::string& where) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kDataLoss, where + ": " + why + "; upload the files again");
  };
  ordered_json json;
  const auto bad = ErrorOf([&] { json = ParseUntrustedJson(text, "it", kManifestLimits); });
  if (bad) refuse(bad->what());
  if (!json.is_object() || json.value("format", ordered_json()) != "tandem-upload") {
    refuse("it is not the manifest of an upload");
  }
  if (json.value("version", ordered_json()) != 1) {
    throw Error(ErrorCode::kUnsupported, where + ": it is of a later version of tandem");
  }
  Manifest manifest;
  const ordered_json state = json.value("state", ordered_json());
  manifest.is_complete = IsString(state, "complete");
  manifest.is_being_removed = IsString(state, "removing");
  const auto files = json.find("files");
  if (files == json.end() || !files->is_array()) refuse("it has no list of files");
  for (const ordered_json& file : *files) {
    if (!file.is_object() || !file.contains("name") || !file["name"].is_string() ||
        !file.contains("bytes") || !file["bytes"].is_number_unsigned()) {
      refuse("an entry of its list is not a file");
    }
    manifest.files[file["name"].get<std::string>()] = file["bytes"].get<uint64_t>();
  }
  return manifest;
}

void CheckManifest(const ObjectStore& store, const std::string& prefix, const Manifest& manifest,
                   ObjectTree& tree) {
  const std::string where = store.Name(prefix + kUploadManifest);
  if (manifest.is_being_removed) {
    throw Error(ErrorCode::kFailedPrecondition,
                store.Name(prefix) +
                    " is being removed, or its removal was interrupted; remove the objects below "
                    "it, or write the tree again");
  }
  if (!manifest.is_complete) {
    throw Error(ErrorCode::kFailedPrecondition,
                store.Name(prefix) +
                    " is not complete: its upload is at work or was interrupted; "
                    "run the command that writes it again");
  }
  // Objects that the manifest does not name are leftovers of an earlier upload.
  std::erase_if(tree.files, [&](const ObjectInfo& info) {
    return manifest.files.count(info.key.substr(prefix.size())) == 0;
  });
  std::map<std::string, uint64_t> found;
  for (const ObjectInfo& info : tree.files) found[info.key.substr(prefix.size())] = info.size;
  for (const auto& [name, bytes] : manifest.files) {
    const auto at = found.find(name);
    if (at != found.end() && at->second == bytes) continue;
    throw Error(ErrorCode::kDataLoss,
                where + " lists " + Quoted(name) + " with " + std::to_string(bytes) +
                    " bytes, but " +
                    (at == found.end() ? std::string("it does not exist")
                                       : "it has " + std::to_string(at->second)) +
                    ": upload the files again");
  }
}

// The objects below the prefix. With kRefuse, only those of an upload or a removal that did not
// end.
std::vector<ObjectInfo> ObjectsAt(ObjectClient& client, const std::string& prefix,
                                  IfObjects if_objects) {
  std::vector<ObjectInfo> objects = client.List(prefix, kMaxTreeObjects);
  if (objects.empty() || if_objects == IfObjects::kReplace) return objects;
  const std::string key = prefix + kUploadManifest;
  const std::optional<std::string> text = client.Read(key, kMaxManifestBytes);
  if (text && !ParseManifest(*text, client.store().Name(key)).is_complete) return objects;
  throw Error(ErrorCode::kAlreadyExists, "there are objects below " + client.store().Name(prefix) +
                                             ", such as " +
                                             Quoted(objects.front().key.substr(prefix.size())));
}

[[noreturn]] void RefuseFile(const fs::path& path, const std::string& why) {
  throw Error(ErrorCode::kUnsupported, Quoted(path.string(), 400) + " cannot be uploaded: " + why);
}

}  // namespace

bool IsSafeObjectName(std::string_view name) {
  if (name.empty() || name.size() > kMaxTreeNameBytes) return false;
  const bool has_control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\';
  });
  if (has_control) return false;
  size_t n_parts = 0;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxTreePartBytes) {
      return false;
    }
    // The names of files that are being fetched.
    if (part.ends_with(".incomplete") || ++n_parts > kMaxTreeParts) return false;
    begin = end + 1;
  }
  return true;
}

std::map<std::string, uint64_t> FilesToPublish(const fs::path& dir, size_t max_files) {
  std::map<std::string, uint64_t> files;
  std::error_code failed;
  fs::recursive_directory_iterator entry(dir, failed);
  for (; !failed && entry != fs::recursive_directory_iterator(); entry.increment(failed)) {
    if (entry->is_directory() && !entry->is_symlink()) continue;
    if (entry->is_directory()) {
      RefuseFile(entry->path(), "it is a link to a directory; put a copy of the directory there");
    }
    if (!entry->is_regular_file()) RefuseFile(entry->path(), "it is not a regular file");
    std::string name = entry->path().lexically_relative(dir).string();
    if (!IsValidUtf8(name)) RefuseFile(entry->path(), "its name is not UTF-8; rename it");
    if (!IsSafeObjectName(name)) {
      RefuseFile(entry->path(),
                 "its name has a backslash or a control character, ends with '.incomplete', is "
                 "longer than " +
                     std::to_string(kMaxTreeNameBytes) + " bytes, or is deeper than " +
                     std::to_string(kMaxTreeParts) + " directories; rename it");
    }
    if (name == kUploadManifest) {
      RefuseFile(entry->path(), "this name is that of the tree's own manifest; remove the file");
    }
    if (files.size() == max_files) {
      throw Error(ErrorCode::kUnsupported,
                  dir.string() + " has more than " + std::to_string(max_files) +
                      " files, the most of one tree; upload its directories one by one");
    }
    files[std::move(name)] = entry->file_size();
  }
  if (failed) ThrowSystemError("list", dir, failed.value());
  return files;
}

ObjectTree ListTree(ObjectClient& client, const std::string& prefix) {
  const ObjectStore& store = client.store();
  ObjectTree tree;
  for (ObjectInfo& info : client.List(prefix, kMaxTreeObjects)) {
    const std::string name = info.key.substr(prefix.size());
    // Some tools create an empty object for each folder.
    if (info.size == 0 && (name.empty() || name.ends_with('/'))) continue;
    if (name == kUploadManifest) {
      tree.manifest_etag = info.etag;
      continue;
    }
    if (!IsSafeObjectName(name)) {
      throw Error(ErrorCode::kDataLoss, "the object " + EscapeJson(store.Name(info.key)) +
                                            " has a name that cannot be a file; remove it, or name "
                                            "a smaller part of the bucket");
    }
    tree.files.push_back(std::move(info));
  }
  if (!tree.manifest_etag.empty()) {
    const std::optional<std::string> text =
        client.Read(prefix + kUploadManifest, kMaxManifestBytes);
    const std::string where = store.Name(prefix + kUploadManifest);
    if (!text) throw Error(ErrorCode::kDataLoss, where + " was removed meanwhile");
    CheckManifest(store, prefix, ParseManifest(*text, where), tree);
  }
  if (tree.files.empty()) {
    throw Error(ErrorCode::kNotFound, "there is no object at or below " +
                                          EscapeJson(store.Name(prefix)) +
                                          ": check the bucket, the key and the endpoint");
  }
  return tree;
}

void CheckUnchanged(ObjectClient& client, const std::string& prefix, const ObjectTree& tree) {
  if (tree.manifest_etag.empty()) return;
  const auto now = client.Find(prefix + kUploadManifest);
  if (now && now->etag == tree.manifest_etag) return;
  throw Error(ErrorCode::kDataLoss, client.store().Name(prefix) +
                                        " changed while it was read: run the same command again");
}

void FetchTree(ObjectStore& store, const std::string& prefix, const fs::path& dir,
               const OnObjectBytes& on_bytes) {
  ObjectClient client(store);
  const ObjectTree tree = ListTree(client, prefix);
  std::vector<ObjectToFetch> wanted;
  for (const ObjectInfo& info : tree.files) {
    const fs::path path = dir / info.key.substr(prefix.size());
    MakeDirectories(path.parent_path());
    wanted.push_back({info, path});
  }
  FetchObjects(store, std::move(wanted), on_bytes);
  CheckUnchanged(client, prefix, tree);
}

void CheckTreePlace(ObjectClient& client, const std::string& prefix, IfObjects if_objects) {
  ObjectsAt(client, prefix, if_objects);
}

void PublishTree(ObjectStore& store, const fs::path& dir, const std::string& prefix,
                 IfObjects if_objects, const OnObjectBytes& on_bytes) {
  ObjectClient client(store);
  const std::string manifest_key = prefix + kUploadManifest;
  const std::map<std::string, uint64_t> files = FilesToPublish(dir);
  const std::vector<ObjectInfo> old = ObjectsAt(client, prefix, if_objects);
  client.Put(manifest_key, ManifestText("uploading", {}));
  std::vector<FileToUpload> uploads;
  for (const auto& [name, bytes] : files) uploads.push_back({dir / name, prefix + name});
  UploadFiles(store, uploads, on_bytes);
  client.Put(manifest_key, ManifestText("complete", files));
  for (const ObjectInfo& info : old) {
    const std::string name = info.key.substr(prefix.size());
    if (name != kUploadManifest && files.count(name) == 0) client.Delete(info.key);
  }
}

void RemoveTree(ObjectClient& client, const std::string& prefix) {
  const std::vector<ObjectInfo> objects = client.List(prefix, kMaxTreeObjects);
  if (objects.empty()) return;
  const std::string manifest_key = prefix + kUploadManifest;
  client.Put(manifest_key, ManifestText("removing", {}));
  for (const ObjectInfo& info : objects) {
    if (info.key != manifest_key) client.Delete(info.key);
  }
  client.Delete(manifest_key);
}

}  // namespace tandem::engine
