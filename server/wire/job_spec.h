#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace tandem::convert {
struct ConvertSpec;
}

namespace tandem::server {

struct HandlerContext;

// A file that a request body names, as an absolute path below `root`. Absolute paths, `..`, NUL and
// links that leave the root throw kInvalidArgument (invalid_path); what is not there, kNotFound
// (path_not_found). `param` is named in both.
std::filesystem::path ResolvePath(const std::filesystem::path& root, const std::string& path,
                                  const std::string& param);

// Checks a training spec as the child will, and makes its paths absolute below `model_root`. Throws
// kInvalidArgument with the first fault. Variables (`${…}`) are refused: the environment is the
// server's, not the caller's.
nlohmann::ordered_json CheckTrainSpec(nlohmann::ordered_json spec,
                                      const std::filesystem::path& model_root);

// The spec of a conversion from what a request asks for: the body of POST /admin/convert, which is
// the spec of a job of type convert. What can be told without reading weights is checked: throws
// kNotFound (model_not_found, path_not_found), kAlreadyExists and kInvalidArgument naming the
// field.
convert::ConvertSpec ConvertSpecOf(const HandlerContext& context,
                                   const nlohmann::ordered_json& body);

// What is made in the model root has such a name: 1 to 128 characters of [A-Za-z0-9._-], the first
// no dot.
bool IsTargetName(const std::string& name);

// The name under which the model of a train job is served: the spec's run_name, else the job's id.
std::string ModelIdOfJob(const std::string& spec_json, const std::string& job_id);

// The model that a train job began with, by its name alone; nullopt for fresh weights.
std::optional<std::string> BaseModelOfJob(const std::string& spec_json);

}  // namespace tandem::server
