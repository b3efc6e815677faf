#include "server/cli/spec_paths.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/hub/options.h"
#include "engine/hub/pull.h"
#include "engine/hub/reference.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

// The directory where Hugging Face's tools cache the data set ORG/NAME; else `path` itself.
fs::path CachedDataSet(const fs::path& path) {
  std::error_code absent;
  if (path.empty() || fs::exists(path, absent)) return path;
  const std::optional<engine::HubReference> reference = engine::ParseHubReference(path.string());
  if (!reference || !reference->gguf.empty() || reference->revision != "main") return path;
  std::string name = "datasets--" + reference->repo;
  name.replace(name.find('/'), 1, "--");
  const fs::path cached = engine::HubOptionsFromEnvironment().cache_dir / name;
  return fs::is_directory(cached, absent) ? cached : path;
}

}  // namespace

void FindSpecPaths(training::TrainSpec& spec) {
  spec.model.load_parameters_path =
      engine::PulledPath(spec.model.load_parameters_path.string(), spec.hub_token);
  spec.model.tokenizer_path =
      engine::PulledPath(spec.model.tokenizer_path.string(), spec.hub_token);
  spec.data.train = CachedDataSet(spec.data.train);
  spec.data.eval = CachedDataSet(spec.data.eval);
}

}  // namespace tandem::server
