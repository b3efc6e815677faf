#include "server/wire/job_spec.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "server/wire/field_reader.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

constexpr size_t kMaxTargetName = 128;

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// "train" for "data.train": in nested objects a key has only the last word.
std::string LastWord(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

// Last words of the keys that take paths, and the paths in the parsed spec.
struct SpecPaths {
  std::set<std::string> keys;
  std::set<std::string> values;
};

SpecPaths FindPaths(const training::TrainSpec& spec) {
  SpecPaths paths;
  for (const training::SpecPath& one : training::PathsOf(spec)) {
    for (const std::string& name : one.names) paths.keys.insert(LastWord(name));
    if (!one.path.empty()) paths.values.insert(one.path);
  }
  return paths;
}

// A list of paths in the form of the parsed spec; empty if it is not a list of strings.
std::string JoinedWords(const Json& list) {
  std::vector<std::string> words;
  for (const Json& word : list) {
    if (!word.is_string()) return "";
    words.push_back(word.get<std::string>());
  }
  return training::JoinPaths(words);
}

Error InvalidPath(const std::string& param, const std::string& why) {
  return Error(ErrorCode::kInvalidArgument, param + " " + why)
      .WithParam(param)
      .WithReason("invalid_path");
}

void RefuseVariables(const Json& value) {
  if (value.is_string() && value.get_ref<const std::string&>().find("${") != std::string::npos) {
    throw BadValue("spec",
                   "spec must not use variables (${…}) over the API: write their values instead");
  }
  if (value.is_structured()) {
    for (const Json& element : value) RefuseVariables(element);
  }
}

// Replaces the strings that the parsed spec uses as paths. A key alone is ambiguous (`train` is
// also a section), and so is a value (a run can have a file's name).
void MakePathsAbsolute(Json& object, const SpecPaths& paths, const fs::path& root,
                       const std::string& where) {
  for (auto& [key, value] : object.items()) {
    const std::string param = where + "." + key;
    if (value.is_object()) {
      MakePathsAbsolute(value, paths, root, param);
    } else if (value.is_string() && paths.keys.contains(LastWord(key)) &&
               paths.values.contains(value.get<std::string>())) {
      value = ResolvePath(root, value.get<std::string>(), param).string();
    } else if (value.is_array() && paths.keys.contains(LastWord(key))) {
      if (!paths.values.contains(JoinedWords(value))) {
        throw InvalidPath(param, "must be a path or a list of paths");
      }
      for (Json& one : value) one = ResolvePath(root, one.get<std::string>(), param).string();
    }
  }
}

// A run_name is used as the name of a directory and of a model.
bool IsRunName(std::string_view name) {
  if (name == "." || name == "..") return false;
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  });
}

}  // namespace

fs::path ResolvePath(const fs::path& root, const std::string& path, const std::string& param) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    throw InvalidPath(param, "must name a file below the model root");
  }
  const fs::path relative(path);
  if (relative.is_absolute()) {
    throw InvalidPath(param, "must be relative to the model root, got an absolute path");
  }
  for (const fs::path& part : relative) {
    if (part == "..") throw InvalidPath(param, "must not contain '..'");
  }
  std::error_code failed;
  const fs::path real_root = fs::canonical(root, failed);
  if (failed) {
    throw Error(ErrorCode::kNotFound, "the model root (--model-root) does not exist")
        .WithParam(param)
        .WithReason("path_not_found");
  }
  const fs::path real = fs::canonical(real_root / relative, failed);
  if (failed) {
    throw Error(ErrorCode::kNotFound,
                param + ": '" + path.substr(0, 200) + "' does not exist below the model root")
        .WithParam(param)
        .WithReason("path_not_found");
  }
  const auto [root_end, unused] =
      std::mismatch(real_root.begin(), real_root.end(), real.begin(), real.end());
  if (root_end != real_root.end()) {
    throw InvalidPath(param, "leads out of the model root through a link");
  }
  return real;
}

namespace {

// The parser's message has a heading and one line per fault, "  field: text". The API reports the
// first.
Error FirstFault(const Error& error) {
  std::string message = error.what();
  const size_t heading = message.find(":\n");
  if (heading != std::string::npos) message.erase(0, heading + 2);
  message.erase(std::min(message.find('\n'), message.size()));
  message.erase(0, std::min(message.find_first_not_of(' '), message.size()));
  const size_t field_end = message.find(": ");
  const std::string param =
      field_end == std::string::npos ? "spec" : "spec." + message.substr(0, field_end);
  return Error(ErrorCode::kInvalidArgument, "spec." + message)
      .WithParam(param)
      .WithReason("invalid_value");
}

}  // namespace

Json CheckTrainSpec(Json spec, const fs::path& model_root) {
  RefuseVariables(spec);
  const training::TrainSpec parsed =
      WithContext(FirstFault, [&] { return training::ParseTrainSpec(spec.dump(), "spec", {}); });
  if (spec.contains("run_name") && !IsRunName(parsed.run_name)) {
    throw BadValue("spec.run_name",
                   "spec.run_name must be 1 to 128 characters of [A-Za-z0-9._-] and not '.' or "
                   "'..', since it names the model");
  }
  // A client may write files below the model root, and a library runs with the server's rights.
  if (!parsed.train.loss_library.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "spec.train.loss_library is not allowed over the API, since a library is code: run "
                "`tandem train` on the command line")
        .WithParam("spec.train.loss_library")
        .WithReason("unsupported_value");
  }
  // The server would send requests to addresses that a client names.
  if (parsed.is_distill()) {
    throw Error(ErrorCode::kUnsupported,
                "spec.kind train.distill is not allowed over the API, since the run asks another "
                "server: run `tandem train` on the command line")
        .WithParam("spec.kind")
        .WithReason("unsupported_value");
  }
  MakePathsAbsolute(spec, FindPaths(parsed), model_root, "spec");
  return spec;
}

bool IsTargetName(const std::string& name) {
  // A leading dot would hide the directory; it also rules out "." and "..".
  if (name.empty() || name.size() > kMaxTargetName || name.front() == '.') return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
}

std::string ModelIdOfJob(const std::string& spec_json, const std::string& job_id) {
  const Json spec = Json::parse(spec_json, nullptr, false);
  if (!spec.is_object()) return job_id;
  const auto name = spec.find("run_name");
  if (name == spec.end() || !name->is_string() || !IsRunName(name->get<std::string>())) {
    return job_id;
  }
  return name->get<std::string>();
}

std::optional<std::string> BaseModelOfJob(const std::string& spec_json) {
  // Both spellings of the key: under `model`, and MaxText's at the top level.
  const Json spec = Json::parse(spec_json, nullptr, false);
  for (const char* pointer : {"/model/load_parameters_path", "/load_parameters_path"}) {
    const Json::json_pointer at(pointer);
    if (!spec.is_object() || !spec.contains(at) || !spec[at].is_string()) continue;
    fs::path path = fs::path(spec[at].get<std::string>()).lexically_normal();
    if (path.filename().empty()) path = path.parent_path();
    if (!path.filename().empty()) return path.filename().string();
  }
  return std::nullopt;
}

}  // namespace tandem::server
