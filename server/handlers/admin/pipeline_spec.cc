#include "server/handlers/admin/pipeline_spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "convert/formats/check_spec.h"
#include "engine/base/attempt.h"
#include "server/handlers/handlers.h"
#include "server/pipeline/run.h"
#include "server/pipeline/spec.h"
#include "server/wire/field_reader.h"
#include "server/wire/job_spec.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Default name of a pipeline, and so the default id of the model it loads.
constexpr const char* kName = "pipeline";

Error OnlyOnTheCommandLine(const std::string& param, const std::string& why) {
  return Error(ErrorCode::kInvalidArgument, param + " " + why)
      .WithParam(param)
      .WithReason("invalid_value");
}

// Keeps the first fault of a report and drops the heading above it.
Error FirstFault(const Error& error) {
  std::string message = error.what();
  const size_t heading = message.find(":\n");
  if (heading != std::string::npos) message.erase(0, heading + 2);
  message.erase(std::min(message.find('\n'), message.size()));
  message.erase(0, std::min(message.find_first_not_of(' '), message.size()));
  // Turns "spec:1: jobs.x.key: …" into "jobs.x.key: …": a client does not know the line.
  const size_t jobs = message.find(": ");
  if (jobs != std::string::npos && message.starts_with("spec")) message.erase(0, jobs + 2);
  const size_t end = message.find(": ");
  const std::string field = message.substr(0, end == std::string::npos ? 0 : end);
  const bool is_field =
      field.starts_with("jobs.") || field == "jobs" || field == "name" || field == "dir";
  return Error(ErrorCode::kInvalidArgument, "spec." + message)
      .WithParam(is_field ? "spec." + field : "spec")
      .WithReason("invalid_value");
}

PipelineSpec Parse(const Json& spec) {
  return WithContext(FirstFault, [&] { return ParsePipelineSpec(spec.dump(), "spec", {}, {}); });
}

// Makes the paths of one job's object absolute, each below the model root.
class Paths {
 public:
  Paths(const HandlerContext& context, const PipelineJob& job, Json& object)
      : context_(context), job_(job), object_(object), where_("spec.jobs." + job.name) {}

  void Resolve() {
    if (job_.kind == "convert") {
      for (const char* key : {"from", "base"}) ResolveKey(key);
      ResolveTarget();
      return;
    }
    Refuse("out", "is not allowed over the API: a run stays in its job's directory");
    if (job_.kind == "load") return ResolveLoad();
    if (job_.kind == "generate") return ResolveModel();
    if (job_.kind == "eval") {
      for (const char* key : {"model", "data", "adapter"}) ResolveKey(key);
      return RefuseOtherPaths();
    }
    Refuse("spec", "is not allowed over the API: write the keys of the training spec into the job");
    ResolveTraining();
  }

 private:
  std::string At(const std::string& key) const { return where_ + "." + key; }

  void Refuse(const char* key, const std::string& why) const {
    if (object_.contains(key)) throw OnlyOnTheCommandLine(At(key), why);
  }

  void ResolveKey(const std::string& key) {
    const auto value = object_.find(key);
    if (value == object_.end() || !value->is_string()) return;
    const std::string text = value->get<std::string>();
    if (IsReference(text)) return;
    RefusePartOfReference(key, text);
    *value = ResolvePath(context_.model_root, text, At(key)).string();
  }

  void RefusePartOfReference(const std::string& key, const std::string& text) const {
    if (text.find("${") == std::string::npos) return;
    throw OnlyOnTheCommandLine(
        At(key), "must be ${jobs.NAME.WHAT} as a whole, without other text, over the API");
  }

  // An eval takes training keys only for the form of its data, and none of them is a path.
  void RefuseOtherPaths() const {
    static const training::TrainSpec defaults;
    for (const training::SpecPath& one : training::PathsOf(defaults)) {
      for (const auto& [key, value] : job_.keys) {
        if (std::find(one.names.begin(), one.names.end(), key) == one.names.end()) continue;
        throw OnlyOnTheCommandLine(At(key), "is not allowed in an eval over the API");
      }
    }
  }

  void ResolveModel() {
    const std::string model = job_.Text("model");
    if (context_.is_named_model && context_.is_named_model(model)) return;
    ResolveKey("model");
  }

  // `out` follows the rules for target.name of POST /admin/convert.
  void ResolveTarget() {
    if (!object_.contains("out")) return;
    const std::string name = job_.Text("out");
    if (!IsTargetName(name)) {
      throw BadValue(At("out"), At("out") +
                                    " must name a directory of the model root: 1 to 128 characters "
                                    "of [A-Za-z0-9._-], not starting with a dot, got " +
                                    ShortForm(Json(name)));
    }
    const fs::path target = fs::absolute(context_.model_root).lexically_normal() /
                            convert::TargetName(job_.Text("to"), name);
    if (fs::exists(fs::symlink_status(target)) && job_.Text("overwrite") != "true") {
      throw Error(
          ErrorCode::kAlreadyExists,
          target.filename().string() + " already exists: choose another name, or set overwrite")
          .WithParam(At("out"))
          .WithReason("already_exists");
    }
    object_["out"] = target.string();
  }

  void ResolveLoad() {
    for (const char* key : {"server", "model_root"}) {
      Refuse(key, "is not allowed over the API: the job loads the model into this server");
    }
    for (const char* key : {"chat", "max_tokens"}) {
      Refuse(key, "is not allowed over the API: query the model after the job has succeeded");
    }
    ResolveKey("model");
  }

  // Checks a training spec as for a train job. During the check, the model root replaces the
  // outputs of other jobs, which do not exist yet.
  void ResolveTraining() {
    constexpr const char* kStandIn = ".";
    Json spec = object_;
    std::vector<std::pair<std::string, std::string>> references;
    for (const char* key : {"kind", "needs"}) spec.erase(key);
    spec["kind"] = job_.kind;
    for (const auto& [key, value] : job_.keys) {
      for (const std::string& word : value.words) {
        if (word.find("${") == std::string::npos) continue;
        if (value.is_list || !IsReference(word)) RefusePartOfReference(key, word);
        const auto at = Pointer(spec, key);
        spec[at] = kStandIn;
        references.emplace_back(key, word);
      }
    }
    const auto under_this_job = [&](const Error& error) {
      const std::string& param = error.param();
      const auto under = [&](const std::string& text) {
        return text.starts_with("spec.") ? where_ + text.substr(4) : text;
      };
      return Error(error.code(), under(error.what()))
          .WithParam(param == "spec" ? where_ : under(param))
          .WithReason(error.reason());
    };
    spec = WithContext(under_this_job,
                       [&] { return CheckTrainSpec(std::move(spec), context_.model_root); });
    for (const auto& [key, reference] : references) {
      const auto at = Pointer(spec, key);
      if (spec[at] == kStandIn) {
        throw OnlyOnTheCommandLine(At(key),
                                   "is not a path, so it must not be an output of another job");
      }
      spec[at] = reference;
    }
    if (object_.contains("needs")) spec["needs"] = object_["needs"];
    object_ = std::move(spec);
  }

  // Finds a dotted key in the object, as one key or as nested ones.
  static Json::json_pointer Pointer(const Json& object, const std::string& key) {
    Json::json_pointer at;
    const Json* in = &object;
    std::string rest = key;
    while (!in->contains(rest)) {
      size_t dot = rest.find('.');
      while (dot != std::string::npos && !in->contains(rest.substr(0, dot))) {
        dot = rest.find('.', dot + 1);
      }
      if (dot == std::string::npos) break;
      at /= rest.substr(0, dot);
      in = &(*in)[rest.substr(0, dot)];
      rest.erase(0, dot + 1);
    }
    return at / rest;
  }

  const HandlerContext& context_;
  const PipelineJob& job_;
  Json& object_;
  const std::string where_;
};

// Checks the load jobs. The server loads after all other jobs have ended, so no job may need one.
void CheckLoads(const HandlerContext& context, const PipelineSpec& spec) {
  for (const PipelineJob& job : spec.jobs) {
    const std::string where = "spec.jobs." + job.name;
    for (const std::string& need : job.needs) {
      if (spec.Find(need)->kind != "load") continue;
      throw OnlyOnTheCommandLine(
          where + ".needs",
          "must not name " + need + ": the server loads it after all other jobs have ended");
    }
    if (job.kind != "load") continue;
    const std::string id = job.Text("id", spec.name);
    if (!IsModelName(id)) {
      throw BadValue(where + ".id",
                     where + ".id must be " + kModelNameRule + ", got " + ShortForm(Json(id)));
    }
    if (job.Text("replace") != "true" && context.models.Contains(id)) {
      throw Error(ErrorCode::kAlreadyExists,
                  "a model named '" + id + "' is already served: choose another id, or set replace")
          .WithParam(where + ".id")
          .WithReason("already_exists");
    }
  }
}

}  // namespace

CheckedPipeline CheckPipelineSpec(const HandlerContext& context, Json spec) {
  if (spec.contains("dir")) {
    throw OnlyOnTheCommandLine("spec.dir",
                               "is not allowed over the API: a job has its own directory");
  }
  if (!spec.contains("name")) spec["name"] = kName;
  const PipelineSpec asked = Parse(spec);
  CheckLoads(context, asked);
  for (const PipelineJob& job : asked.jobs) Paths(context, job, spec["jobs"][job.name]).Resolve();

  const PipelineSpec checked = Parse(spec);
  PipelineOptions options;
  options.dir =
      fs::absolute(context.model_root) / "a job's directory";  // planning only: it does not exist
  Json plan = Json::array();
  const auto from_the_spec = [](const Error& error) {
    std::string message = error.what();
    const size_t at = message.find("jobs.");
    if (at != std::string::npos) message.replace(0, at, "spec.");
    return Error(error.code(), message).WithParam(error.param()).WithReason(error.reason());
  };
  const auto planned = WithContext(from_the_spec, [&] { return PlanPipeline(checked, options); });
  for (const PlannedJob& job : planned) {
    plan.push_back({{"name", job.name}, {"kind", job.kind}, {"needs", job.needs}});
  }
  return {spec.dump(), Json{{"jobs", plan}}.dump()};
}

}  // namespace tandem::server
