#include "convert/work/identity.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/posix_file.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Raise this when the same conversion starts to lay out its files differently.
constexpr int kLayoutVersion = 1;
constexpr size_t kMaxFiles = 1'000'000;

Json IdentityOfFile(const fs::path& path, const std::string& name) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) engine::ThrowSystemError("inspect", path, errno);
  return {name, status.st_size, status.st_ino,
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

Json IdentityOfFiles(const fs::path& root) {
  if (!fs::is_directory(root)) return Json::array({IdentityOfFile(root, root.string())});
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
    if (paths.size() > kMaxFiles) {
      throw Error(ErrorCode::kIo, root.string() + ": the directory has more than " +
                                      std::to_string(kMaxFiles) + " files, which is the limit");
    }
  }
  std::sort(paths.begin(), paths.end());
  Json files = Json::array();
  for (const fs::path& path : paths) files.push_back(IdentityOfFile(path, path.string()));
  return files;
}

}  // namespace

std::string IdentityOf(const ConvertSpec& spec) {
  Json identity = {
      {"layout_version", kLayoutVersion},
      {"format", spec.format},
      {"dtype", spec.dtype},
      {"layout", spec.layout},
      {"max_shard_bytes", spec.max_shard_bytes},
      {"maxtext",
       {spec.maxtext.ocdbt, spec.maxtext.zarr, spec.maxtext.model, spec.maxtext.all_bf16}},
      {"source", IdentityOfFiles(spec.source)}};
  if (spec.peft.rank != 0) identity["peft"] = {spec.peft.rank, spec.peft.alpha};
  if (!spec.base.empty()) identity["base"] = IdentityOfFiles(spec.base);
  return identity.dump() + "\n";
}

}  // namespace tandem::convert
