#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace tandem::server {

// The absolute path of a file that a request body names, below `root`. Throws kInvalidArgument
// (invalid_path) for absolute paths, `..`, NUL and links that leave the root, and kNotFound
// (path_not_found) for a missing file. Both name `param`.
std::filesystem::path ResolvePath(const std::filesystem::path& root, const std::string& path,
                                  const std::string& param);

// Checks a training spec as the child does, and makes its paths absolute below `model_root`. Throws
// kInvalidArgument with the first fault. Refuses variables (`${…}`): the environment belongs to the
// server, not to the caller.
nlohmann::ordered_json CheckTrainSpec(nlohmann::ordered_json spec,
                                      const std::filesystem::path& model_root);

// Whether `name` may be created in the model root: 1 to 128 characters of [A-Za-z0-9._-], not
// starting with a dot.
bool IsTargetName(const std::string& name);

// The id of a train job's model: the spec's run_name, otherwise the job's id.
std::string ModelIdOfJob(const std::string& spec_json, const std::string& job_id);

// The file name of the model that a train job started from; nullopt for fresh weights.
std::optional<std::string> BaseModelOfJob(const std::string& spec_json);

}  // namespace tandem::server
