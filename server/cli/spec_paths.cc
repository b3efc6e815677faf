#include "server/cli/spec_paths.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/hub/options.h"
#include "engine/hub/reference.h"
#include "engine/objects/fetched_path.h"
#include "engine/objects/object_url.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

// Fetches a data set of an object store. Returns the directory where Hugging Face's tools cache the
// data set ORG/NAME; else `path` itself.
fs::path FoundDataSet(const fs::path& path) {
  std::error_code absent;
  const std::string text = path.string();
  if (text.find("s3://") != std::string::npos || text.find("gs://") != std::string::npos) {
    std::vector<std::string> found;  // of a list with ';' between its paths
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(';', begin), text.size());
      const std::string part = text.substr(begin, end - begin);
      found.push_back(engine::IsObjectUrl(part) ? engine::FetchedPath(part) : part);
      begin = end + 1;
    }
    return training::JoinPaths(found);
  }
  if (path.empty() || fs::exists(path, absent)) return path;
  const std::optional<engine::HubReference> reference = engine::ParseHubReference(path.string());
  if (!reference || !reference->gguf.empty() || reference->revision != "main") return path;
  std::string name = "datasets--" + reference->repo;
  name.replace(name.find('/'), 1, "--");
  const fs::path cached = engine::HubOptionsFromEnvironment().cache_dir / name;
  return fs::is_directory(cached, absent) ? cached : path;
}

}  // namespace

fs::path NewestCheckpointIn(const fs::path& path) {
  std::error_code absent;
  if (!fs::is_directory(path, absent) || fs::exists(path / "config.json", absent)) return path;
  fs::path newest;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, absent)) {
    const std::string name = entry.path().filename().string();
    const bool is_step = name.find_first_not_of("0123456789") == std::string::npos;
    if (!is_step || !fs::exists(entry.path() / "manifest.json", absent)) continue;
    // Names have one width, so that their order is that of the steps.
    if (newest.empty() || name > newest.filename().string()) newest = entry.path();
  }
  return newest.empty() ? path : newest;
}

void FindSpecPaths(training::TrainSpec& spec) {
  for (fs::path* const path : {&spec.model.load_parameters_path, &spec.model.tokenizer_path}) {
    *path = engine::FetchedPath(path->string(), spec.hub_token);
  }
  spec.model.load_parameters_path = NewestCheckpointIn(spec.model.load_parameters_path);
  for (fs::path* const path :
       {&spec.model.config_path, &spec.model.chat_template, &spec.lora.load_path}) {
    if (engine::IsObjectUrl(path->string())) *path = engine::FetchedPath(path->string());
  }
  spec.data.train = FoundDataSet(spec.data.train);
  spec.data.eval = FoundDataSet(spec.data.eval);
}

}  // namespace tandem::server
